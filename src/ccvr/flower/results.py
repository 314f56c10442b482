"""The state that a client receives in a round, and its result, as bytes."""

from collections.abc import Mapping
from typing import Any

import torch

from ccvr.algorithms.messages import Client, GlobalState, LocalMetrics, LocalResult, group_of, joined
from ccvr.core.errors import FederationError
from ccvr.models.state import Tensors, num_bytes
from ccvr.models.tensor_file import UnreadableTensors, tensors_from_bytes, tensors_to_bytes

SENT, RESULT = "ccvr-sent/1", "ccvr-result/1"
"""Formats of bytes."""
SENT_GROUPS = ("parameters", "buffers", "broadcast")
MAX_MAGNITUDE = {"parameters": 1e9, "buffers": 1e18, "payload": 1e9}
"""What a client sends, and how large a number in it may be: far above any trained weight; a variance is a square."""
MAX_PAYLOAD = 10
"""Largest payload beside the model, in models or megabytes, whichever is more."""
MAX_STEPS, MAX_SECONDS = 10**9, 10**9
MAX_LOSS = torch.finfo(torch.float32).max
"""Sums of finite losses stay finite in float64."""


def sent_bytes(state: GlobalState) -> bytes:
    return tensors_to_bytes(joined({group: getattr(state, group) for group in SENT_GROUPS}), format=SENT)


def sent_from_bytes(blob: bytes) -> GlobalState:
    _, tensors = _read(blob, SENT)
    return GlobalState(*(group_of(tensors, group) for group in SENT_GROUPS))


def result_bytes(result: LocalResult) -> bytes:
    return tensors_to_bytes(
        joined({group: getattr(result, group) for group in MAX_MAGNITUDE}),
        format=RESULT,
        num_examples=result.num_examples,
        num_steps=result.num_steps,
        remembers=result.has_state,
        loss=result.metrics.loss,
        seconds=result.metrics.seconds,
    )


def result_from_bytes(blob: bytes, client: Client, sent: GlobalState) -> LocalResult:
    """The result of that client; one that does not fit what was sent, or what the client has, is refused."""
    header, tensors = _read(blob, RESULT)
    groups = {group: group_of(tensors, group) for group in MAX_MAGNITUDE}
    if sum(map(len, groups.values())) != len(tensors):
        raise FederationError("its result has tensors that were not asked for.")
    for group, found in groups.items():
        _require_fitting(found, getattr(sent, group, None), MAX_MAGNITUDE[group])
    if num_bytes(groups["payload"]) > MAX_PAYLOAD * max(sent.model_bytes, 10**6):
        raise FederationError(f"beside its model it sends {num_bytes(groups['payload']):,} bytes, which is too much.")
    if header.get("num_examples") != len(client.indices):
        raise FederationError(f"it trained on {header.get('num_examples')} samples; {len(client.indices)} are its own.")
    return LocalResult(
        client.id,
        groups["parameters"],
        groups["buffers"],
        len(client.indices),
        int(_number(header, "num_steps", 1, MAX_STEPS, (int,))),
        groups["payload"],
        {},
        LocalMetrics.of(
            sent,
            groups["parameters"],
            groups["payload"],
            loss=_number(header, "loss", -MAX_LOSS, MAX_LOSS),
            seconds=_number(header, "seconds", 0, MAX_SECONDS),
        ),
        has_state=header.get("remembers") is True,
    )


def _number(
    header: Mapping[str, Any], name: str, least: float, most: float, kinds: tuple[type, ...] = (int, float)
) -> float:
    value: Any = header.get(name)
    if type(value) not in kinds or not least <= value <= most:
        raise FederationError(f"its {name} is {str(value)[:30]}; it must be a number from {least:g} to {most:g}.")
    return float(value)


def _require_fitting(found: Tensors, sent: Tensors | None, most: float) -> None:
    """Require the names, types and shapes that were ``sent``, and no numbers that would spoil the average."""
    forms, wanted = ({name: (t.dtype, t.shape) for name, t in each.items()} for each in (found, sent or {}))
    if sent is not None and forms != wanted:
        raise FederationError("its tensors are not those of the model that was sent.")
    for name, tensor in found.items():
        if sent is not None and torch.equal(tensor, sent[name]):  # a constant of the model may be anything
            continue
        numbers = tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)  # of any type
        if not numbers.isfinite().all():
            raise FederationError(f"{name} is not finite in its result.")
        if numbers.numel() and (largest := numbers.abs().max().item()) > most:
            raise FederationError(f"{name} is as large as {largest:.3g} in its result; the most is {most:.3g}.")


def _read(blob: bytes, format: str) -> tuple[dict[str, Any], Tensors]:
    try:
        return tensors_from_bytes(blob, format=format)
    except UnreadableTensors as error:
        raise FederationError(f"these bytes are not what they should be ({error}).") from error
