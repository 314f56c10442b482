"""Files about one and the same training, taken together: a record and a run, or a run and its copy."""

import itertools
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from ccvr.calibration.methods import current_options
from ccvr.core.results import TRAINED, UNCALIBRATED, Personal, Results, personal_rows, with_heads
from ccvr.report.runs import RunFiles
from ccvr.reproduction.records import DIGITS

INCIDENTAL = ("bytes", "seconds")
"""What a calibration took, which makes it no other."""
END = 0
"""In place of a round: the model that results.json is about."""


def same_training(one: RunFiles, other: RunFiles) -> bool:
    """Whether both are about one training: the same accuracy in all rounds that both scored, to a record's digits."""
    first, second = _course(one), _course(other)
    return all(first[round] == second[round] for round in first.keys() & second.keys())


def _course(run: RunFiles) -> dict[int, float]:
    scored = {each["round"]: each.get("accuracy") for each in run.rounds} | {END: run.accuracy[UNCALIBRATED]}
    return {number: round(accuracy, DIGITS) for number, accuracy in scored.items() if accuracy is not None}


def united(own: RunFiles, other: RunFiles) -> RunFiles:
    """A run with what only another file about the same training has, heads and analyses among it; its own win."""
    return replace(
        own,
        results=_with_own_models(own, other, _labels(own, other)),
        rounds=own.rounds or other.rounds,
        label_counts=other.label_counts if own.label_counts is None else own.label_counts,
        analyses={**other.analyses, **own.analyses},
        provenance={**own.provenance, "calibrated": _later_commits(own, other)},
    )


def lost(kept: RunFiles, gone: RunFiles) -> list[str]:
    """What one file has and the other, which takes its place, has not."""
    heads = [label for label in gone.accuracy if label not in kept.accuracy]
    own = [label for label in personal_rows(gone.results) if label not in personal_rows(kept.results)]
    return heads + own + [name for name in gone.analyses if name not in kept.analyses]


def unused(label: str, taken: Collection[str]) -> str:
    """The label, with a number where there is another head of that name."""
    names = itertools.chain([label], (f"{label}-{number}" for number in itertools.count(2)))
    return next(name for name in names if name not in taken)


def _labels(own: RunFiles, other: RunFiles) -> dict[str, str]:
    """The heads that the other has alone, by their labels there, and what they are called from now on."""
    labels: dict[str, str] = {}
    for label, row in other.results["calibrations"].items():
        mine = own.results["calibrations"].get(label)
        if label in other.accuracy and not (mine and _is_same(mine, row)):
            labels[label] = unused(label, {*own.accuracy, *labels.values()})
    return labels


def _with_own_models(own: RunFiles, other: RunFiles, labels: dict[str, str]) -> Results:
    """The union of heads, and of the clients' own models that started from them."""
    union, mine = with_heads(own.results, other.results, labels), personal_rows(own.results)
    added: dict[str, Personal] = {}
    for label, row in personal_rows(other.results).items():
        moved: Personal = {**row, "head": labels.get(row["head"], row["head"])}
        is_mine = any(_made(moved) == _made(each) for each in mine.values())
        if not is_mine and not (label == TRAINED and TRAINED in mine):
            added[unused(label, {*mine, *added})] = moved
    return {**union, "personal": {**mine, **added}} if added else union


def _made(row: Personal) -> tuple[object, ...]:
    return row["method"], row["options"], row["head"]


def _is_same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two calibrations are one; an option that only one of them names is of a later version."""
    one, other = _with_defaults(one), _with_defaults(other)
    return all(one[name] == other[name] for name in one.keys() & other.keys() if name not in INCIDENTAL)


def _with_defaults(row: dict[str, Any]) -> dict[str, Any]:
    """A calibration of an older version, in which None stood for the method's default."""
    now = current_options(row["method"], row)
    return {name: now.get(name) if value is None else value for name, value in row.items()}


def _later_commits(own: RunFiles, other: RunFiles) -> list[dict[str, Any]]:
    """Where what was added comes from: the other's own start, too, if that was with another commit."""
    start = {"commit": other.provenance.get("commit")}
    foreign = [start] if start["commit"] != own.provenance.get("commit") else []
    return [*own.provenance.get("calibrated", []), *foreign, *other.provenance.get("calibrated", [])]
