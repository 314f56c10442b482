"""Heads: the calibrations that tables of the paper compare, and more of ours, by name."""

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from ccvr.calibration.calibrator import Calibrator
from ccvr.calibration.closed_forms import Cof, CofMeans, Kernel, Lda, Ncm, Ridge
from ccvr.calibration.methods import Calibration, current_options, parse_calibrations
from ccvr.calibration.oracles import Oracle, OraclePartial
from ccvr.calibration.table import CALIBRATORS
from ccvr.calibration.virtual import Ccvr, CcvrConverged
from ccvr.core.results import UNCALIBRATED, Results
from ccvr.core.tables import Table
from ccvr.experiment.spec import Spec

NUMBERS = (50, 100, 500, 1000, 2000)
"""Virtual features per class in the paper's sweep."""
MethodOf = Callable[[Ccvr], Calibrator]
"""A head's method, from the options that the paper has for CCVR in a cell."""


def _ccvr(**changes: Any) -> MethodOf:
    return lambda ccvr: replace(ccvr, **changes)


def _fixed(method: Calibrator) -> MethodOf:
    return lambda ccvr: method


HEADS: Table[MethodOf] = Table(
    "head",
    {
        UNCALIBRATED: _ccvr(),  # never fitted
        "ccvr": _ccvr(),
        **{f"ccvr-m{number}": _ccvr(num_virtual=number) for number in NUMBERS},
        "oracle": _fixed(Oracle(epochs=50)),
        **{f"oracle-partial-{n}": _fixed(OraclePartial(per_class=n, epochs=50)) for n in (1000, 100)},
        "ccvr-t0": _ccvr(transform="none"),
        "ccvr-t1": _ccvr(transform_at="statistics"),
        "ccvr-t1-signed": _ccvr(transform_at="statistics", transform="signed-tukey:0.5"),
        "ccvr-converged": _fixed(CcvrConverged(transform_at="draws")),
        "ncm": _fixed(Ncm()),
        "cof-means": _fixed(CofMeans()),
        "cof": _fixed(Cof()),
        "lda": _fixed(Lda()),
        "ridge": _fixed(Ridge()),
        "lda-taps": _fixed(Lda(taps="auto")),
        "ridge-taps": _fixed(Ridge(taps="auto")),
        "kernel": _fixed(Kernel()),
    },
    closed=True,
)


def calibration_of(head: str, spec: Spec) -> Calibration:
    """How a head other than the uncalibrated one is fitted."""
    own = [each.method for each in parse_calibrations(spec.calibration) if isinstance(each.method, Ccvr)]
    method = HEADS[head](own[0] if own else Ccvr())
    name = next(name for name, cls in CALIBRATORS.items() if cls is type(method))
    return Calibration(name, head, method)


def find_label(head: str, spec: Spec, results: Results) -> str | None:
    """The label under which a run has this head, whatever it is called there; None if it does not have it."""
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
