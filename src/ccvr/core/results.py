"""results.json: the scores of a finished run. One schema for runs, reports and records."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

from ccvr.core.errors import RunError
from ccvr.core.schema import Count, Percent, Size, mistyped

UNCALIBRATED = "uncalibrated"
"""The label of the head as training left it."""
TRAINED = "trained"
"""The label of the clients' own models as training left them."""


class ClientScores(TypedDict):
    """Mean, minimum and 10th percentile over clients; None where there is no client to score."""

    mean: Percent | None
    worst: Percent | None
    p10: Percent | None


NO_SCORES: ClientScores = {"mean": None, "worst": None, "p10": None}


class Personal(TypedDict):
    """Models of the clients' own, each scored on the test set under the client's label mix, in percent."""

    method: str
    """The personalisation's name; the algorithm where training made them."""
    options: dict[str, Any]
    head: str
    """The label of the head that they started from; ``client_accuracy`` has its scores."""
    accuracy: ClientScores
    clients: list[Percent | None]
    """Of each client by number; None where there is nothing to score. Empty in results of old versions."""


class SharedSamples(TypedDict):
    """Raw data that moved: samples that every client got beside its own, and their bytes to all clients together."""

    samples: Count
    bytes: Count


class Calibrated(TypedDict):
    """What of a calibration's row is read; its options are beside it."""

    method: str
    num_virtual: NotRequired[Count | None]
    per_class: NotRequired[Count | None]
    bytes: NotRequired[Count]
    seconds: NotRequired[Size]


class Results(TypedDict):
    """The content of results.json. Scores are in percent of the test set, by label of the head."""

    accuracy: dict[str, Percent]
    per_class_recall: dict[str, list[Percent | None]]
    """In the order of ``class_names``; None for a class without test samples."""
    client_accuracy: dict[str, ClientScores]
    """Under each client's own label mix."""
    calibrations: dict[str, dict[str, Any]]
    """``method``, its options, ``seed``, ``statistics``, ``absent_classes``, ``bytes`` and ``seconds``."""
    deployed: str
    """The label of the head in the run's model."""
    class_names: list[str]
    num_clients: NotRequired[Count]
    validation_accuracy: NotRequired[dict[str, Percent]]
    """On the clients' held-out samples."""
    selection: NotRequired[dict[str, Any]]
    missing: NotRequired[dict[str, dict[str, str]]]
    """Question → absent client → reason."""
    personal: NotRequired[dict[str, Personal]]
    """Models of the clients' own by label; ``personal_rows`` reads them."""
    personal_accuracy: NotRequired[ClientScores]
    """Where old versions wrote the scores of own models that training made."""
    files: NotRequired[dict[str, str]]
    """SHA-256 of the heads and the model that the scores are of, by path in the run. Not in results of old versions."""
    shared: NotRequired[SharedSamples]
    """Only where clients share samples (data.shared)."""


def empty_results(class_names: Sequence[str], num_clients: int) -> Results:
    """The results of a run before its first head is scored, with the keys in the order of the file."""
    return {
        "accuracy": {},
        "per_class_recall": {},
        "client_accuracy": {},
        "calibrations": {},
        "deployed": UNCALIBRATED,
        "class_names": list(class_names),
        "num_clients": num_clients,
    }


def personal_rows(results: Results) -> dict[str, Personal]:
    """Models of the clients' own by label, also in results of old versions."""
    old = results.get("personal_accuracy")
    rows: dict[str, Personal] = {}
    if old is not None:
        rows[TRAINED] = {"method": TRAINED, "options": {}, "head": UNCALIBRATED, "accuracy": old, "clients": []}
    return rows | results.get("personal", {})


def shared_line(results: Results) -> str:
    """What a reader must know about data that moved, in one line; nothing where none did."""
    found = results.get("shared")
    if found is None:
        return ""
    return (
        f"raw data moved: every client trained on {found['samples']:,} shared samples beside its own "
        f"({found['bytes']:,} bytes to all clients); statistics are of their own samples alone"
    )


MAX_HEADS = 1_000
"""Labels of heads, and of the clients' own models, that tables show."""
BY_HEAD = ("accuracy", "per_class_recall", "client_accuracy", "calibrations", "validation_accuracy")


def with_heads(own: Results, other: Results, labels: Mapping[str, str]) -> Results:
    """``own`` and some heads of ``other``; ``labels`` maps their labels there to their labels in the union."""
    union: dict[str, Any] = {**own}
    for key in BY_HEAD:
        found: Any = other.get(key, {})
        added = {new: found[old] for old, new in labels.items() if old in found}
        if added or key in own:
            union[key] = {**union.get(key, {}), **added}
    return cast(Results, union)


def check_results(content: object, path: Path, remedy: str) -> Results:
    """Return parsed JSON as results.

    Raises:
        RunError: a key is absent, a value has another type, or a head lacks a score.
    """
    fact = mistyped(content, Results)
    results = cast(Results, content)
    if fact or (fact := _incomplete(results)):
        raise RunError(f"{path} is damaged: {fact}. {remedy}")
    return results


def _incomplete(results: Results) -> str | None:
    """The first score that a head lacks."""
    for key in ("accuracy", "calibrations", "personal"):
        number = len(cast(dict[str, Any], results).get(key, {}))
        if number > MAX_HEADS:
            return f"{key} has {number:,} labels, more than {MAX_HEADS:,}"
    for label in [UNCALIBRATED, results["deployed"], *results["accuracy"]]:
        scores = {key: results[key] for key in ("accuracy", "per_class_recall", "client_accuracy")}
        for key, by_head in scores.items():
            if label not in by_head:
                return f"{key} has no head {label!r:.60}"
        found, expected = len(results["per_class_recall"][label]), len(results["class_names"])
        if found != expected:
            return f"per_class_recall[{label!r:.60}] has {found} values for {expected} classes"
    for label, personal in results.get("personal", {}).items():
        if personal["head"] not in results["accuracy"]:
            return f"personal[{label!r:.60}] is of the head {personal['head']!r:.60}, which has no accuracy"
    rows = ((row, Calibrated, ("calibrations", label)) for label, row in results["calibrations"].items())
    return next((fact for row in rows if (fact := mistyped(*row))), None)
