"""A round's state on its way to a client, and the client's result on its way back, as bytes."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from torch import Tensor

from ccvr.core.errors import FederationError
from ccvr.models.state import Tensors
from ccvr.models.tensor_file import UnreadableTensors, tensors_from_bytes, tensors_to_bytes
from ccvr.training.local import Client, GlobalState, LocalMetrics, LocalResult

SENT, RESULT = "ccvr-sent/1", "ccvr-result/1"
"""Formats of bytes."""


def sent_bytes(state: GlobalState) -> bytes:
    groups = {"parameters": state.parameters, "buffers": state.buffers, "broadcast": state.broadcast}
    return tensors_to_bytes(_flat(groups), format=SENT)


def sent_from_bytes(blob: bytes) -> GlobalState:
    _, tensors = _read(blob, SENT)
    return GlobalState(*(_group(tensors, name) for name in ("parameters", "buffers", "broadcast")))


def result_bytes(result: LocalResult) -> bytes:
    groups = {"parameters": result.parameters, "buffers": result.buffers, "payload": result.payload}
    return tensors_to_bytes(
        _flat(groups),
        format=RESULT,
        num_examples=result.num_examples,
        num_steps=result.num_steps,
        remembers=result.remembers,
        metrics=asdict(result.metrics),
    )


def result_from_bytes(blob: bytes, client: Client, sent: GlobalState) -> LocalResult:
    """The result of that client; one that does not fit what was sent, or what the client has, is refused."""
    header, tensors = _read(blob, RESULT)
    try:
        metrics = _metrics(**header["metrics"])
        result = LocalResult(
            client.id,
            _group(tensors, "parameters"),
            _group(tensors, "buffers"),
            int(header["num_examples"]),
            int(header["num_steps"]),
            _group(tensors, "payload"),
            {},
            metrics,
            remembers=header["remembers"] is True,
        )
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise FederationError(f"its result is damaged ({error}).") from error
    if result.num_examples != len(client.indices):
        raise FederationError(f"it trained on {result.num_examples} images; {len(client.indices)} are its own.")
    _require_alike(sent.parameters, result.parameters)
    _require_alike(sent.buffers, result.buffers)
    _require_finite(result.payload)
    return result


def _metrics(loss: float, head_row_norms: list[float], bytes_down: int, bytes_up: int, seconds: float) -> LocalMetrics:
    """Metrics that can be written down: nothing but finite numbers."""
    numbers = [float(loss), float(seconds), *map(float, head_row_norms)]
    if not all(map(math.isfinite, numbers)):
        raise ValueError("a metric is not finite")
    return LocalMetrics(numbers[0], tuple(numbers[2:]), int(bytes_down), int(bytes_up), numbers[1])


def _require_alike(sent: Tensors, found: Tensors) -> None:
    """The same names, types and shapes; and finite numbers, because one NaN would spoil the average of everybody."""
    described = [{name: (t.dtype, t.shape) for name, t in tensors.items()} for tensors in (sent, found)]
    if described[0] != described[1]:
        raise FederationError("its tensors are not those of the model that was sent.")
    _require_finite(found)


def _require_finite(tensors: Tensors) -> None:
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise FederationError(f"{name} is not finite in its result.")


def _read(blob: bytes, format: str) -> tuple[dict[str, Any], Tensors]:
    try:
        return tensors_from_bytes(blob, format=format)
    except UnreadableTensors as error:
        raise FederationError(f"these bytes are not what they should be ({error}).") from error


def _flat(groups: Mapping[str, Mapping[str, Tensor]]) -> Tensors:
    return {f"{group}/{name}": tensor for group, tensors in groups.items() for name, tensor in tensors.items()}


def _group(tensors: Tensors, group: str) -> Tensors:
    mark = f"{group}/"
    return {name.removeprefix(mark): tensor for name, tensor in tensors.items() if name.startswith(mark)}
