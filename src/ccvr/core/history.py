"""rounds.jsonl and provenance.json: what happened in a run, and where it comes from."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from ccvr.core.files import MAX_TEXT, parse_json, require_file
from ccvr.core.schema import Count, Percent, Real, Size, mistyped

MAX_LINES = 100_000
"""Rounds of a run."""
MAX_NUMBERS = 10**7
"""Values in all rounds that are held in memory: a thousand rounds of a hundred clients on a hundred classes."""


class ClientRound(TypedDict):
    """A client's part of a round."""

    client: Count
    examples: NotRequired[Count]
    steps: NotRequired[Count]
    loss: NotRequired[Real | None]
    head_row_norms: NotRequired[list[Size] | None]
    """By class; empty where the head stays with the client."""
    bytes_down: NotRequired[Count]
    bytes_up: NotRequired[Count]
    seconds: NotRequired[Size]


class Round(TypedDict):
    """A line of rounds.jsonl. Algorithms add keys of their own."""

    round: Count
    accuracy: NotRequired[Percent | None]
    loss: NotRequired[Real | None]
    seconds: NotRequired[Size | None]
    clients: NotRequired[list[ClientRound]]
    revision_bytes: NotRequired[Count]


class Start(TypedDict):
    """A start of a command that made the run what it is."""

    started: NotRequired[str]
    command: NotRequired[list[str]]
    seed: NotRequired[int]
    commit: NotRequired[str | None]
    versions: NotRequired[dict[str, str | None]]
    hardware: NotRequired[dict[str, str | int | None]]


class Provenance(Start):
    """The content of provenance.json: the first start, and the later ones."""

    resumed: NotRequired[list[Start]]
    calibrated: NotRequired[list[Start]]
    personalised: NotRequired[list[Start]]


def read_rounds(path: Path) -> list[dict[str, Any]]:
    """All records of rounds.jsonl. Raises OSError or ValueError, as ``each_round`` does."""
    found, numbers = [], 0
    for record, size in each_round(path):
        numbers += size
        if numbers > MAX_NUMBERS:
            raise ValueError(f"it holds more than {MAX_NUMBERS:,} values")
        found.append(record)
    return found


def each_round(path: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """Each record of rounds.jsonl and how many values it has; a last line that a crash cut short is left out.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is too long, or a line is not the record of a round.
    """
    require_file(path)
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_TEXT), b""), start=1):
            if number > MAX_LINES:
                raise ValueError(f"it has more than {MAX_LINES:,} lines")
            if not line.endswith(b"\n"):
                if len(line) == MAX_TEXT:
                    raise ValueError(f"line {number} is longer than {MAX_TEXT:,} bytes")
                return
            yield _round(line, number), line.count(b",") + 1


def _round(line: bytes, number: int) -> dict[str, Any]:
    try:
        record: dict[str, Any] = parse_json(line)
    except ValueError as error:
        raise ValueError(f"line {number}: {error}") from error
    if fact := mistyped(record, Round):
        raise ValueError(f"line {number}: {fact}")
    return record
