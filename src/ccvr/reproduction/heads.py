"""Heads: the calibrations that tables of the paper compare, and more of ours, by name."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ccvr.calibration.methods import parse_calibration
from ccvr.calibration.spec import UNCALIBRATED, Calibration, CalibrationOptions
from ccvr.calibration.table import find_calibrator
from ccvr.core.tables import Table
from ccvr.experiment.presets import WHOLE
from ccvr.experiment.spec import Spec

NUMBERS = (50, 100, 500, 1000, 2000)
"""Virtual features per class in the paper's sweep."""

HEADS: Table[str] = Table(
    "head",
    {
        UNCALIBRATED: "",
        "ccvr": "ccvr",
        **{f"ccvr-m{number}": f"ccvr,num_virtual={number}" for number in NUMBERS},
        "oracle": f"oracle,{WHOLE}",
        **{f"oracle-partial-{n}": f"oracle-partial,per_class={n},{WHOLE}" for n in (1000, 100)},
        "ccvr-t0": "ccvr,transform=none",
        "ccvr-t1": "ccvr,transform_at=statistics",
        "ccvr-t1-signed": "ccvr,transform_at=statistics,transform=signed-tukey:0.5",
        "ccvr-converged": "ccvr-converged,transform=none,num_virtual=2000",
        "ncm": "ncm,transform=none",
        "cof-means": "cof-means,transform=none",
        "cof": "cof,transform=none",
        "lda": "lda,transform=none",
        "ridge": "ridge,transform=none",
        "lda-taps": "lda,transform=none,taps=auto",
        "ridge-taps": "ridge,transform=none,taps=auto",
        "kernel": "kernel",
    },
    closed=True,
)
"""What each head is, on top of the options of its cell (the paper's, by algorithm and data)."""


def calibration_of(head: str, spec: Spec) -> Calibration:
    """How a head other than the uncalibrated one is fitted."""
    parsed = parse_calibration(HEADS[head], spec.calibration)
    return dataclasses.replace(parsed, label=head)


def find_label(head: str, spec: Spec, results: Mapping[str, Any]) -> str | None:
    """The label under which a run has this head, whatever it is called there; None if it does not have it."""
    if head == UNCALIBRATED:
        return UNCALIBRATED if UNCALIBRATED in results["accuracy"] else None
    wanted = calibration_of(head, spec)
    reads = find_calibrator(wanted.method).reads or frozenset(CalibrationOptions.__dataclass_fields__)
    options = {name: getattr(wanted.options, name) for name in reads - {"seed"}}
    for label, row in results["calibrations"].items():
        same = row["method"] == wanted.method and all(row.get(name, value) == value for name, value in options.items())
        if same and row.get("seed", spec.seed) == spec.seed and label in results["accuracy"]:
            return str(label)
    return None
