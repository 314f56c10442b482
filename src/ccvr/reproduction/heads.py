"""Heads: the calibrations that tables of the paper compare, and more of ours, by name."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NewType

from ccvr.calibration.calibrator import Calibrator
from ccvr.calibration.closed_forms import Cof, CofMeans, Kernel, Lda, Ncm, Ridge
from ccvr.calibration.methods import Calibration, current_options, parse_calibrations
from ccvr.calibration.oracles import Oracle, OraclePartial
from ccvr.calibration.table import CALIBRATORS
from ccvr.calibration.virtual import Ccvr, CcvrConverged
from ccvr.core.results import UNCALIBRATED, Results
from ccvr.core.tables import Table
from ccvr.experiment.spec import Spec
from ccvr.report.published import Published

HeadName = NewType("HeadName", str)
"""A key of ``HEADS``."""
BEFORE, CCVR, ORACLE = HeadName(UNCALIBRATED), HeadName("ccvr"), HeadName("oracle")
Entry = tuple[str, HeadName]
"""A cell and one of its heads: an entry of a table of the paper."""
Entries = Mapping[Entry, Published | None]
"""What the paper says of each entry; None where it prints no number."""
MethodOf = Callable[[Ccvr], Calibrator]
"""A head's method, from the options that the paper has for CCVR in a cell."""


@dataclass(frozen=True)
class Head:
    """A head that tables compare: how it is fitted, and what tables call it."""

    method: MethodOf
    words: str
    num_virtual: int = 0
    """Virtual features per class in the paper's sweep; 0 for a head outside of it."""


def _ccvr(words: str, **changes: Any) -> Head:
    return Head(lambda ccvr: replace(ccvr, **changes), words)


def _sweep(number: int) -> Head:
    return Head(lambda ccvr: replace(ccvr, num_virtual=number), f"CCVR, M_c = {number}", number)


def _fixed(method: Calibrator, words: str) -> Head:
    return Head(lambda _: method, words)


def _partial(number: int) -> Head:
    return _fixed(OraclePartial(per_class=number, epochs=50), f"{number} real samples per class")


OURS = {
    "ncm": Ncm(),
    "cof-means": CofMeans(),
    "cof": Cof(),
    "lda": Lda(),
    "ridge": Ridge(),
    "lda-taps": Lda(taps="auto"),
    "ridge-taps": Ridge(taps="auto"),
    "kernel": Kernel(),
}
HEADS: Table[Head] = Table(
    "head",
    {
        BEFORE: _ccvr(""),  # never fitted
        CCVR: _ccvr("CCVR"),
        **{f"ccvr-m{number}": _sweep(number) for number in (50, 100, 500, 1000, 2000)},
        ORACLE: _fixed(Oracle(epochs=50), "whole data"),
        **{f"oracle-partial-{number}": _partial(number) for number in (1000, 100)},
        "ccvr-t0": _ccvr("ccvr-t0", transform="none"),
        "ccvr-t1": _ccvr("ccvr-t1", transform_at="statistics"),
        "ccvr-t1-signed": _ccvr("ccvr-t1-signed", transform_at="statistics", transform="signed-tukey:0.5"),
        "ccvr-converged": _fixed(CcvrConverged(transform_at="draws"), "ccvr-converged"),
        **{name: _fixed(method, name) for name, method in OURS.items()},
    },
    closed=True,
)
HEAD_NAMES = tuple(map(HeadName, HEADS))


def calibration_of(head: HeadName, spec: Spec) -> Calibration:
    """How a head other than the uncalibrated one is fitted."""
    own = [each.method for each in parse_calibrations(spec.calibration) if isinstance(each.method, Ccvr)]
    method = HEADS[head].method(own[0] if own else Ccvr())
    name = next(name for name, cls in CALIBRATORS.items() if cls is type(method))
    return Calibration(name, head, method)


def find_label(head: HeadName, spec: Spec, results: Results) -> str | None:
    """The label of this head in a run, found by its options; None if the run lacks it."""
    if head == UNCALIBRATED:
        return UNCALIBRATED
    wanted = calibration_of(head, spec)
    options = {**asdict(wanted.method), "seed": spec.seed}
    for label, row in results["calibrations"].items():
        if row["method"] == wanted.name and label in results["accuracy"]:
            found = {**options, **current_options(wanted.name, {"seed": spec.seed, **row})}
            if found == options:
                return label
    return None
