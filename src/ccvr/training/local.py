"""One client's part of a round: a pure function of the global model, the client's samples and its state."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from ccvr.algorithms.algorithm import Algorithm, shared
from ccvr.algorithms.messages import Client, GlobalState, LocalMetrics, LocalResult, group_of, joined
from ccvr.algorithms.objectives import LocalContext, LocalObjective, Proximal, Step
from ccvr.algorithms.sgd import Sgd
from ccvr.algorithms.spec import TrainingSpec
from ccvr.core.errors import TrainingError
from ccvr.core.seeds import derive_seed, stream
from ccvr.data.batches import Batch, epoch
from ccvr.kernels.crops import Crops
from ccvr.kernels.inputs import Inputs
from ccvr.models.flat import Flat
from ccvr.models.split import SplitModel
from ccvr.models.state import Scratch, Tensors, plain

ALGORITHM, CLSPROX, PRIVATE = "algorithm", "clsprox", "private"
"""Groups of a client's state: what each objective keeps, and the tensors that stay with the client."""


def train_client(
    scratch: Scratch[SplitModel],
    received: GlobalState,
    client: Client,
    state: Tensors,
    algorithm: Algorithm,
    spec: TrainingSpec,
    *,
    round: int,
    seed: int,
) -> LocalResult:
    """Train a model of the right shape, whatever it holds, from the received state on one client's samples.

    Tensors that the algorithm keeps private come from the client's state, and at its first time from the model as it
    was built. The result's tensors are the model's own: take a copy before it trains again.
    """
    started = time.perf_counter()
    private = {**scratch.first, **private_part(state)}
    context = _context(scratch, received, client, state, spec, round=round, seed=seed)
    model = context.model
    _require_trainable(model, client, spec)
    device = model.head.weight.device
    objectives = {ALGORITHM: algorithm.objective(context)}
    if spec.clsprox:
        objectives[CLSPROX] = Proximal(context, mu=spec.clsprox, scope="head.")
    # Dropout and the like in a user's model read the global generator: give them this client's stream.
    with seeded(derive_seed(seed, "model", client=client.id, round=round), device):
        rng = stream(seed, "batches", client=client.id, round=round)
        num_steps, loss = _descend(scratch, client, list(objectives.values()), spec, rng=rng)
    everything = scratch.parameters(), scratch.buffers()
    names = {name for tensors in everything for name in tensors}
    if other := scratch.moved() or sorted({*received.tensors, *private} ^ names):
        raise TrainingError(
            f"the model has other tensors after client {client.id} trained in round {round}: {other[0]} is not what or "
            "where it was. Make all modules and buffers when the model is built."
        )
    if not (math.isfinite(loss) and _is_finite(everything[0])):
        raise TrainingError(
            f"client {client.id} diverged in round {round}: its loss is {loss}. Lower the learning rate ({spec.lr:g})."
        )
    parameters, buffers = (shared(tensors, private) for tensors in everything)
    outcomes = {name: objective.finish(num_steps) for name, objective in objectives.items()}
    payload: Tensors = {name: plain(tensor) for name, tensor in outcomes[ALGORITHM].payload.items()}
    groups = {group: outcome.state for group, outcome in outcomes.items()}
    groups[PRIVATE] = {name: tensors[name] for tensors in everything for name in tensors if name in private}
    kept = {name: plain(tensor) for name, tensor in joined(groups).items()}
    metrics = LocalMetrics.of(received, parameters, payload, loss=loss, seconds=time.perf_counter() - started)
    return LocalResult(client.id, parameters, buffers, len(client.indices), num_steps, payload, kept, metrics)


def own_model(
    scratch: Scratch[SplitModel],
    received: GlobalState,
    client: Client,
    state: Tensors,
    algorithm: Algorithm,
    spec: TrainingSpec,
    *,
    round: int,
    seed: int,
) -> SplitModel:
    """The model as one client has it: what it received, the tensors that stayed with it, adapted by the algorithm."""
    context = _context(scratch, received, client, state, spec, round=round, seed=seed)
    with seeded(derive_seed(seed, "model", client=client.id, round=round), context.model.head.weight.device):
        algorithm.personalise(context)
    return context.model


def _context(
    scratch: Scratch[SplitModel],
    received: GlobalState,
    client: Client,
    state: Tensors,
    spec: TrainingSpec,
    *,
    round: int,
    seed: int,
) -> LocalContext:
    """What the client has at hand; its model is loaded with what it received and with what stayed there."""
    private = {**scratch.first, **private_part(state)}
    model = scratch.load(received.parameters, received.buffers, *([private] if private else []))
    device = model.head.weight.device
    anchor = {**received.tensors, **{name: tensor.clone() for name, tensor in private.items()}}
    is_grouped = any(group_of(state, group) for group in (ALGORITHM, CLSPROX, PRIVATE))
    own = group_of(state, ALGORITHM) if is_grouped else state  # states of old versions have no groups

    def batches() -> Iterator[Batch]:
        rng = stream(seed, "look", client=client.id, round=round)
        return epoch(client.data, client.indices, spec.batch_size, rng=rng)

    return LocalContext(
        model=model,
        received={name: tensor.to(device) for name, tensor in anchor.items()},
        state={name: tensor.to(device) for name, tensor in own.items()},
        broadcast={name: tensor.to(device) for name, tensor in received.broadcast.items()},
        all_labels=client.data.samples.labels,
        indices=client.indices,
        spec=spec,
        batches=batches,
        round=round,
    )


def private_part(state: Tensors) -> Tensors:
    """The model's tensors that stayed with a client, by their names."""
    return group_of(state, PRIVATE)


def _is_finite(tensors: Mapping[str, Tensor]) -> bool:
    each = [tensors.whole] if isinstance(tensors, Flat) else tensors.values()
    numbers = [tensor for tensor in each if tensor.is_floating_point()]
    total = sum(norm.item() for norm in torch._foreach_norm(numbers))  # of finite numbers it may overflow: look again
    return math.isfinite(total) or all(bool(tensor.isfinite().all()) for tensor in numbers)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global generator, and restore it afterwards."""
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
    """Refuse single samples where batch normalisation needs a variance."""
    if min(len(client.indices), spec.batch_size) == 1 and any(isinstance(part, _BatchNorm) for part in model.modules()):
        raise TrainingError(
            f"client {client.id} trains on single samples (it has {len(client.indices)}, training.batch_size is "
            f"{spec.batch_size}), and the model has batch normalisation. Give both at least 2 (partition.min_size)."
        )


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

    def loss_of(batch: Batch) -> Tensor:
        return _loss(model, batch.inputs, batch.labels.to(device), objectives)

    for number in range(spec.local_epochs):
        losses.clear()
        for objective in objectives:
            objective.start_epoch(number)
        for batch in epoch(client.data, client.indices, spec.batch_size, rng=rng):
            optimiser.drop_gradients()
            losses.append(objectives[0].backward(batch, loss_of))
            for objective in objectives:
                objective.correct_gradients()
            optimiser.step()
            num_steps += 1
    return num_steps, torch.stack(losses).double().mean().item()


def _loss(model: SplitModel, batch: Inputs | Crops, labels: Tensor, objectives: Sequence[LocalObjective]) -> Tensor:
    """The loss of the first objective, which is the algorithm's, and what the others add."""
    inputs = model.inputs(batch)
    features = model.features(inputs)
    scores = model.head(features)
    loss = objectives[0].data_loss(scores, labels)
    step = Step(batch, inputs, labels, features, scores)
    for objective in objectives:
        added = objective.loss(step)
        loss = loss + added if isinstance(added, Tensor) or added else loss
    return loss
