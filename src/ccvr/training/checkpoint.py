"""A round state as bytes and back."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from ccvr.algorithms.messages import group_of, joined
from ccvr.algorithms.table import upgraded
from ccvr.core.errors import RunError
from ccvr.core.files import require_file
from ccvr.core.schema import Count, mistyped
from ccvr.models.tensor_file import (
    UnreadableTensors,
    header_length,
    read_header,
    read_tensor_file,
    tensors_from_bytes,
    tensors_to_bytes,
)
from ccvr.training.rounds import RoundState

FORMAT = "ccvr-checkpoint/1"


class CheckpointHeader(TypedDict):
    """What is beside the tensors of a checkpoint."""

    round: Count
    memories: list[list[Count]]
    """Client and round of each state that clients keep."""
    settings: NotRequired[dict[str, Any]]


GROUPS = ("parameters", "buffers", "server")
UNREADABLE = (UnreadableTensors, KeyError, TypeError, ValueError, OSError)


def checkpoint_bytes(state: RoundState, settings: Mapping[str, Any]) -> bytes:
    """Everything that the next round depends on, except the clients' states, which are files of their own.

    ``settings`` are the fields, by dotted name, that the state was trained with.
    """
    tensors, rounds = joined({group: getattr(state, group) for group in GROUPS}), sorted(state.client_rounds.items())
    return tensors_to_bytes(tensors, format=FORMAT, round=state.round, memories=rounds, settings=dict(settings))


def read_checkpoint(path: Path, settings: Mapping[str, Any] | None = None) -> RoundState:
    """The state in a file; one that was trained with other ``settings`` is refused."""
    try:
        header, tensors = tensors_from_bytes(read_tensor_file(path), format=FORMAT)
        _require_fields(header)
        unknown = {key.partition("/")[0] for key in tensors} - {*GROUPS}
        parameters, buffers, server = (group_of(tensors, group) for group in GROUPS)
        state = RoundState(header["round"], parameters, buffers, server, dict(header["memories"]))
        trained_with = dict(header.get("settings", {}))
    except UNREADABLE as error:
        raise _unreadable(path, error) from error
    if unknown:
        raise _unreadable(path, f"unknown tensors {', '.join(sorted(unknown))}")
    _require_same(_upgraded(trained_with), settings or {}, path)
    return state


def _upgraded(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of an older version, as this one names them; before there was a choice, torch ran the steps."""
    mark = "training."
    training = {name.removeprefix(mark): value for name, value in settings.items() if name.startswith(mark)}
    others = {name: value for name, value in settings.items() if not name.startswith(mark)}
    return others | {f"{mark}{name}": value for name, value in {"step": "torch", **upgraded(training)}.items()}


def named_states(path: Path) -> list[tuple[int, int]]:
    """The client states that a checkpoint names, as (client, round): read from its first bytes alone."""
    return _read_header(path)[0]


def trained_with(path: Path) -> dict[str, Any]:
    """The fields, by dotted name, that a checkpoint was trained with: read from its first bytes alone."""
    return _read_header(path)[1]


def _read_header(path: Path) -> tuple[list[tuple[int, int]], dict[str, Any]]:
    try:
        require_file(path)
        with path.open("rb") as file:
            start = file.read(8)
            header, _ = read_header(start + file.read(header_length(start)), format=FORMAT)
        _require_fields(header)
        return [(client, round) for client, round in header["memories"]], dict(header.get("settings", {}))
    except UNREADABLE as error:
        raise _unreadable(path, error) from error


def _require_fields(header: Mapping[str, Any]) -> None:
    if fact := mistyped(header, CheckpointHeader):
        raise ValueError(fact)
    if any(len(pair) != 2 for pair in header["memories"]):
        raise ValueError("memories are not pairs of client and round")


def _unreadable(path: Path, error: object) -> RunError:
    return RunError(f"checkpoint {path} cannot be read ({error}). Delete it to go on from the one before.")


def _require_same(trained_with: Mapping[str, Any], settings: Mapping[str, Any], path: Path) -> None:
    """Refuse a field that has another value now; one that only one side knows is of another version of ours."""
    for name in trained_with.keys() & settings.keys():
        if trained_with[name] != settings[name]:
            raise RunError(
                f"checkpoint {path} was trained with {name} = {trained_with[name]!r}; the spec now says "
                f"{settings[name]!r}. Undo that change in spec.toml, or start a new run."
            )
