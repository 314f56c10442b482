"""What passes between a server and its clients: the global model, and what training made of it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ccvr.core.arrays import IntArray
from ccvr.data.batches import TrainingSamples
from ccvr.models.state import Tensors, copied, flattened, num_bytes


@dataclass(frozen=True)
class Client:
    """A client and the samples it owns."""

    id: int
    data: TrainingSamples
    indices: IntArray


@dataclass(frozen=True)
class ModelState:
    """A model's tensors: what training changes, and the buffers beside them. Do not write to them."""

    parameters: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]

    @cached_property
    def tensors(self) -> Tensors:
        """Parameters and buffers."""
        return {**self.parameters, **self.buffers}


@dataclass(frozen=True)
class GlobalState(ModelState):
    """What the server sends: the model, and what its algorithm sends beside it, on the CPU."""

    broadcast: Tensors

    @cached_property
    def model_bytes(self) -> int:
        return num_bytes(self.tensors)


@dataclass(frozen=True)
class LocalMetrics:
    """How a client's local training went."""

    loss: float
    head_row_norms: tuple[float, ...]
    """Norms of the head's rows; none where the head stays with the client."""
    bytes_down: int
    bytes_up: int
    seconds: float

    @classmethod
    def of(
        cls, sent: GlobalState, parameters: Mapping[str, Tensor], payload: Tensors, *, loss: float, seconds: float
    ) -> "LocalMetrics":
        """The metrics of a client that received ``sent`` and sends these tensors."""
        head = parameters.get("head.weight")
        norms = [] if head is None else torch.linalg.vector_norm(head, dim=1, dtype=torch.float64).tolist()
        down, up = (sent.model_bytes + num_bytes(tensors) for tensors in (sent.broadcast, payload))
        return cls(loss, tuple(norms), down, up, seconds)


@dataclass(frozen=True)
class LocalResult:
    """What a client sends back. Do not write to its mappings; their tensors are the model's until ``copied``."""

    client: int
    parameters: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    num_examples: int
    num_steps: int
    payload: Tensors
    """What the client's objective sends to the server."""
    state: Tensors
    """What the client keeps for its next round."""
    metrics: LocalMetrics
    has_state: bool = False
    """Whether the state was written for the client's next round."""

    def copied(self) -> "LocalResult":
        """With tensors of its own: the model may train the next client."""
        return replace(
            self, parameters=flattened(self.parameters), buffers=flattened(self.buffers), payload=copied(self.payload)
        )


def joined(groups: Mapping[str, Mapping[str, Tensor]]) -> Tensors:
    """Groups of tensors as one mapping, with names "group/name"."""
    return {f"{group}/{name}": tensor for group, tensors in groups.items() for name, tensor in tensors.items()}


def group_of(tensors: Mapping[str, Tensor], group: str) -> Tensors:
    """One of the groups that ``joined`` put together."""
    mark = f"{group}/"
    return {name.removeprefix(mark): tensor for name, tensor in tensors.items() if name.startswith(mark)}
