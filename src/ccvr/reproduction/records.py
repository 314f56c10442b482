"""A finished run as one small file: numbers alone, enough for every table and for most figures."""

import json
import math
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

import numpy as np

from ccvr.core.arrays import Array
from ccvr.core.errors import RunError
from ccvr.core.files import parse_json, read_text, require_file
from ccvr.core.history import Round, Start
from ccvr.core.results import check_results
from ccvr.core.run import RunFolder
from ccvr.core.schema import Count, mistyped
from ccvr.report.analyses import ABOUT, Analysis, misfit
from ccvr.report.runs import RunFiles, SpecTable, inconsistent, miscounted

FORMAT = "ccvr-record/1"
MARK = b'"ccvr-record/'
KEPT_ANALYSES = ("cka", "norms", "separability")
"""Analyses whose arrays are small."""
KEPT_PROVENANCE = ("started", "commit", "versions", "hardware")
DIGITS = 4
REMEDY = "Record the run again, or update ccvr."


class KeptProvenance(Start):
    calibrated: NotRequired[list[str | None]]


class KeptAnalysis(TypedDict):
    arrays: dict[str, Any]
    about: dict[str, Any]


class Record(TypedDict):
    """The content of a record."""

    format: str
    name: str
    provenance: KeptProvenance
    spec: SpecTable
    label_counts: list[list[Count]] | None
    rounds: list[Round]
    results: dict[str, Any]
    analyses: dict[str, KeptAnalysis]


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
        "results": {key: value for key, value in run.results.items() if key != "files"},
        "analyses": {name: _analysis(run.analyses[name]) for name in KEPT_ANALYSES if name in run.analyses},
    }
    encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
    lines = [f"{encode(key)}: {encode(value)}" for key, value in parts.items()]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode(errors="backslashreplace")


def _provenance(found: dict[str, Any]) -> dict[str, Any]:
    """When, with which code and where; commits of calibrations and own models that were added later, too."""
    later = [each.get("commit") for key in ("calibrated", "personalised") for each in found.get(key, ())]
    return {key: found[key] for key in KEPT_PROVENANCE if key in found} | {"calibrated": list(dict.fromkeys(later))}


def _started(kept: KeptProvenance) -> dict[str, Any]:
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
        require_file(path)
        with path.open("rb") as file:
            return MARK in file.read(200)
    except (OSError, ValueError):
        return False


def read_record(path: Path) -> RunFiles:
    """Read a record as the run that it was made from."""
    try:
        parts = _parts(read_text(path))
        counts = None if parts["label_counts"] is None else np.array(parts["label_counts"])
        run = RunFiles(
            name=parts["name"],
            folder=RunFolder(path),
            spec=cast(dict[str, Any], parts["spec"]),
            results=check_results(parts["results"], path, REMEDY),
            rounds=cast(list[dict[str, Any]], parts["rounds"]),
            provenance=_started(parts["provenance"]),
            label_counts=counts,
            analyses={name: _arrays(found) for name, found in parts["analyses"].items() if name in ABOUT},
        )
    except (OSError, TypeError, ValueError, OverflowError) as error:
        raise RunError(f"{path} is not a record of a run ({error}). {REMEDY}") from error
    if fact := _misfit(run):
        raise RunError(f"{path} is not a record of a run ({fact}). {REMEDY}")
    return run


def _parts(text: str) -> Record:
    content = parse_json(text)
    if fact := mistyped(content, Record):
        raise ValueError(fact)
    parts = cast(Record, content)
    if parts["format"] != FORMAT:
        raise ValueError(f"the format is {parts['format']!r:.60}, this version reads {FORMAT!r}")
    return parts


def _misfit(run: RunFiles) -> str | None:
    """Why the parts of a record cannot be shown together."""
    counts = run.label_counts
    if fact := (None if counts is None else miscounted(counts)) or inconsistent(run):
        return fact
    facts = ((name, misfit(name, found, len(run.class_names))) for name, found in run.analyses.items())
    return next((f"{name}: {fact}" for name, fact in facts if fact), None)


def _arrays(found: KeptAnalysis) -> Analysis:
    about = {key: [math.nan if each is None else each for each in value] if isinstance(value, list) else value
             for key, value in found["about"].items()}  # fmt: skip
    return {name: _array(values) for name, values in found["arrays"].items()}, about


def _array(values: Any) -> Array:
    array = np.array(values)
    return np.array(values, dtype=float) if array.dtype == object else array  # null is NaN
