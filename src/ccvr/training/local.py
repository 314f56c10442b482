"""One client's part of a round: a pure function of the global model, the client's images and its memory."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from ccvr.core.errors import TrainingError
from ccvr.core.seeds import derive_seed, stream
from ccvr.data.batches import TrainingImages, epoch
from ccvr.data.images import IntArray
from ccvr.kernels.crops import Crops
from ccvr.models.flat import Flat
from ccvr.models.split import SplitModel
from ccvr.models.state import Scratch, Tensors, copied, flattened, num_bytes, plain
from ccvr.training.objectives import LocalContext, LocalObjective, ObjectiveFactory, Step
from ccvr.training.sgd import Sgd
from ccvr.training.spec import TrainingSpec


@dataclass(frozen=True)
class Client:
    """A client and the images it owns."""

    id: int
    images: TrainingImages
    indices: IntArray


@dataclass(frozen=True)
class GlobalState:
    """What the server sends: the model, and what its algorithm sends beside it. On the CPU; nobody writes to it."""

    parameters: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    broadcast: Tensors

    @cached_property
    def model(self) -> Tensors:
        """Parameters and buffers."""
        return {**self.parameters, **self.buffers}

    @cached_property
    def model_bytes(self) -> int:
        return num_bytes(self.model)


@dataclass(frozen=True)
class LocalMetrics:
    """How a client's local training went."""

    loss: float
    head_row_norms: tuple[float, ...]
    bytes_down: int
    bytes_up: int
    seconds: float


@dataclass(frozen=True)
class LocalResult:
    """What comes back from a client: mappings that nobody writes to. Tensors are the model's until ``copied``."""

    client: int
    parameters: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    num_examples: int
    num_steps: int
    payload: Tensors
    memory: Tensors
    metrics: LocalMetrics
    remembers: bool = False
    """Whether the memory was put away for the client's next round."""

    def copied(self) -> "LocalResult":
        """With tensors of its own: the model may train the next client."""
        return replace(
            self, parameters=flattened(self.parameters), buffers=flattened(self.buffers), payload=copied(self.payload)
        )


def train_client(
    scratch: Scratch[SplitModel],
    received: GlobalState,
    client: Client,
    memory: Tensors,
    factories: Sequence[ObjectiveFactory],
    spec: TrainingSpec,
    *,
    round: int,
    seed: int,
) -> LocalResult:
    """Train a model of the right shape, whatever it holds, from the received state on one client's images.

    The result's tensors are the model's own: take a copy before it trains again.
    """
    started = time.perf_counter()
    model = scratch.load(received.parameters, received.buffers)
    _require_trainable(model, client, spec)
    context = _context(model, received, client, memory, spec)
    objectives = [factory(context) for factory in factories]
    # Dropout and the like in a user's model read the global generator: give them this client's stream.
    with _seeded(derive_seed(seed, "model", client=client.id, round=round), model.head.weight.device):
        rng = stream(seed, "batches", client=client.id, round=round)
        num_steps, loss = _descend(scratch, client, objectives, spec, rng=rng)
    parameters, buffers = scratch.parameters(), scratch.buffers()
    if other := scratch.moved() or sorted(received.model.keys() ^ {*parameters, *buffers}):
        raise TrainingError(
            f"the model has other tensors after client {client.id} trained in round {round}: {other[0]} is not what or "
            "where it was. Make all modules and buffers when the model is built."
        )
    if not (math.isfinite(loss) and _is_finite(parameters)):
        raise TrainingError(
            f"client {client.id} diverged in round {round}: its loss is {loss}. Lower training.lr ({spec.lr:g})."
        )
    outcomes = [objective.finish(num_steps) for objective in objectives]
    payload: Tensors = {name: plain(tensor) for outcome in outcomes for name, tensor in outcome.payload.items()}
    kept: Tensors = {name: plain(tensor) for outcome in outcomes for name, tensor in outcome.memory.items()}
    metrics = LocalMetrics(
        loss=loss,
        head_row_norms=tuple(torch.linalg.vector_norm(model.head.weight, dim=1, dtype=torch.float64).tolist()),
        bytes_down=received.model_bytes + num_bytes(received.broadcast),
        bytes_up=received.model_bytes + num_bytes(payload),
        seconds=time.perf_counter() - started,
    )
    return LocalResult(client.id, parameters, buffers, len(client.indices), num_steps, payload, kept, metrics)


def _is_finite(tensors: Mapping[str, Tensor]) -> bool:
    each = [tensors.whole] if isinstance(tensors, Flat) else tensors.values()
    numbers = [tensor for tensor in each if tensor.is_floating_point()]
    total = sum(norm.item() for norm in torch._foreach_norm(numbers))  # of finite numbers it may overflow: look again
    return math.isfinite(total) or all(bool(tensor.isfinite().all()) for tensor in numbers)


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's own generator, and leave it as it was."""
    before = torch.get_rng_state()
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)  # torch.manual_seed also queues a call for every other device
    else:
        torch.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before)


def _require_trainable(model: SplitModel, client: Client, spec: TrainingSpec) -> None:
    """Batch normalisation has no variance of a single image."""
    if min(len(client.indices), spec.batch_size) == 1 and any(isinstance(part, _BatchNorm) for part in model.modules()):
        raise TrainingError(
            f"client {client.id} trains on single images (it has {len(client.indices)}, training.batch_size is "
            f"{spec.batch_size}), and the model has batch normalisation. Give both at least 2 (partition.min_size)."
        )


def _context(
    model: SplitModel, received: GlobalState, client: Client, memory: Tensors, spec: TrainingSpec
) -> LocalContext:
    device = model.head.weight.device
    return LocalContext(
        model=model,
        received=_on(device, received.model),
        memory=_on(device, memory),
        broadcast=_on(device, received.broadcast),
        all_labels=client.images.source.labels,
        indices=client.indices,
        lr=spec.lr,
    )


def _on(device: torch.device, tensors: Tensors) -> Tensors:
    return dict(tensors) if device.type == "cpu" else {name: tensor.to(device) for name, tensor in tensors.items()}


def _descend(
    scratch: Scratch[SplitModel],
    client: Client,
    objectives: Sequence[LocalObjective],
    spec: TrainingSpec,
    *,
    rng: np.random.Generator,
) -> tuple[int, float]:
    """Run the local epochs; the number of steps and the mean loss of the last epoch."""
    model = scratch.model
    device = model.head.weight.device
    optimiser = Sgd(scratch.trained(), spec)
    if not model.training:
        model.train()
    losses: list[Tensor] = []
    num_steps = 0
    for _ in range(spec.local_epochs):
        losses.clear()
        for crops, labels in epoch(client.images, client.indices, spec.batch_size, rng=rng):
            optimiser.drop_gradients()
            loss = _loss(model, crops, labels.to(device), objectives)
            loss.backward()
            for objective in objectives:
                objective.correct_gradients()
            optimiser.step()
            losses.append(loss.detach())
            num_steps += 1
    return num_steps, torch.stack(losses).double().mean().item()


def _loss(model: SplitModel, crops: Crops, labels: Tensor, objectives: Sequence[LocalObjective]) -> Tensor:
    inputs = model.inputs(crops)
    features = model.features(inputs)
    scores = model.head(features)
    loss = functional.cross_entropy(scores, labels)
    step = Step(crops, inputs, labels, features, scores)
    for objective in objectives:
        loss = loss + objective.loss(step)
    return loss
