"""A finished run as one small file: numbers alone, enough for every table and for most figures."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from ccvr.core.arrays import Array
from ccvr.core.errors import RunError
from ccvr.core.results import check_results
from ccvr.core.run import RunFolder, parse_json
from ccvr.report.runs import Analysis, RunFiles

FORMAT = "ccvr-record/1"
MARK = b'"ccvr-record/'
KEPT_ANALYSES = ("cka", "norms", "separability")
"""Analyses whose arrays are small."""
KEPT_PROVENANCE = ("started", "commit", "versions", "hardware")
DIGITS = 4
REMEDY = "Record the run again, or update ccvr."


def record_bytes(run: RunFiles, *, scale: str) -> bytes:
    """The run as JSON, a line for each part. The same run gives the same bytes."""
    data = {key: value for key, value in run.spec.get("data", {}).items() if key != "root"}
    parts = {
        "format": FORMAT,
        "name": run.name,
        "scale": scale,
        "seed": run.spec.get("seed", 0),
        "provenance": _provenance(run.provenance),
        "spec": {**run.spec, "data": data},
        "label_counts": None if run.label_counts is None else run.label_counts.tolist(),
        "rounds": _rounded([_round(each, whole=each in (run.rounds[0], run.rounds[-1])) for each in run.rounds]),
        "results": run.results,
        "analyses": {name: _analysis(run.analyses[name]) for name in KEPT_ANALYSES if name in run.analyses},
    }
    encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
    lines = [f"{encode(key)}: {encode(value)}" for key, value in parts.items()]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def _provenance(found: dict[str, Any]) -> dict[str, Any]:
    """When, with which code and where; commits of calibrations and own models that were added later, too."""
    later = [each.get("commit") for key in ("calibrated", "personalised") for each in found.get(key, ())]
    return {key: found[key] for key in KEPT_PROVENANCE if key in found} | {"calibrated": list(dict.fromkeys(later))}


def _started(kept: dict[str, Any]) -> dict[str, Any]:
    """The provenance as a run's own file has it; early records lack ``calibrated``."""
    return {**kept, "calibrated": [{"commit": commit} for commit in kept.get("calibrated", ())]}


def _round(record: dict[str, Any], *, whole: bool) -> dict[str, Any]:
    """What the global model reached; of the first and the last round also what every client's head looks like."""
    kept = {key: record.get(key) for key in ("round", "accuracy", "loss", "seconds")}
    clients = [
        {key: each[key] for key in ("client", "examples", "loss", "head_row_norms") if key in each}
        for each in record.get("clients", ())
    ]
    return kept | ({"clients": clients} if whole else {})


def _analysis(found: Analysis) -> dict[str, Any]:
    arrays, about = found
    return {"arrays": {name: _rounded(array.tolist()) for name, array in arrays.items()}, "about": _rounded(about)}


def _rounded(value: Any) -> Any:
    """Numbers to a few digits; JSON has no infinities, so they become null."""
    match value:
        case float():
            return round(value, DIGITS) if math.isfinite(value) else None
        case list():
            return [_rounded(each) for each in value]
        case dict():
            return {key: _rounded(each) for key, each in value.items()}
    return value


def is_record(path: Path) -> bool:
    """Whether a file is one of ours; a folder called results may hold anything."""
    try:
        with path.open("rb") as file:
            return MARK in file.read(200)
    except OSError:
        return False


def read_record(path: Path) -> RunFiles:
    """Read a record as the run that it was made from."""
    try:
        parts = _parts(path.read_text(encoding="utf-8"))
        counts = parts["label_counts"]
        run = RunFiles(
            name=str(parts["name"]),
            folder=RunFolder(path),
            spec=dict(parts["spec"]),
            results=check_results(parts["results"], path, REMEDY),
            rounds=_rounds(parts["rounds"]),
            provenance=_started(parts["provenance"]),
            label_counts=None if counts is None else np.array(counts),
            analyses={name: _arrays(found) for name, found in parts["analyses"].items()},
        )
    except (OSError, LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        why = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise RunError(f"{path} is not a record of a run ({why}). {REMEDY}") from error
    return run


def _parts(text: str) -> dict[str, Any]:
    parts: dict[str, Any] = parse_json(text)
    if parts["format"] != FORMAT:
        raise ValueError(f"the format is {parts['format']!r}, this version reads {FORMAT!r}")
    return parts


def _rounds(rounds: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for each in rounds:
        if type(each["round"]) is not int or not isinstance(each["accuracy"], int | float | None):
            raise ValueError("a round does not say its number and accuracy")
    return list(rounds)


def _arrays(found: dict[str, Any]) -> Analysis:
    return {name: _array(values) for name, values in found["arrays"].items()}, dict(found["about"])


def _array(values: Any) -> Array:
    array = np.array(values)
    return np.array(values, dtype=float) if array.dtype == object else array  # null is NaN
