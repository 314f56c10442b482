"""Several global models, one for each cluster of clients."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ccvr.algorithms.algorithm import Algorithm, Fold, ServerContext
from ccvr.algorithms.messages import LocalResult, ModelState, group_of, joined
from ccvr.algorithms.objectives import LocalContext, LocalObjective, Outcome
from ccvr.core.errors import SpecError, TrainingError
from ccvr.models.state import Tensors

CLUSTER, SIZES = "cluster", "sizes"


def choose(context: LocalContext, number: int) -> int:
    """Load the model that has the smallest loss on the client's samples; the received one is 0, the first of equals."""
    others = [group_of(context.broadcast, str(each)) for each in range(1, number)]
    models, losses = [dict(context.received), *others], []
    for model in models:
        context.start_from(model)
        losses.append(context.mean_loss())
    chosen = min(range(number), key=losses.__getitem__)
    context.start_from(models[chosen])
    return chosen


class OfCluster(LocalObjective):
    """Cross-entropy, from the model of the client's cluster on, whose number is sent."""

    def __init__(self, context: LocalContext, *, number: int) -> None:
        super().__init__(context)
        self.chosen = choose(context, number)

    def finish(self, num_steps: int) -> Outcome:
        return Outcome(payload={CLUSTER: torch.tensor(self.chosen)})


@dataclass(frozen=True)
class Ifca(Algorithm):
    """Each client trains that of several models with the smallest loss on its data (Ghosh et al. 2020).

    The model of the cluster with most clients in the last round is the run's global model, and has the number 0; the
    others are the server's state. They start with the numbers of the first one, in another order in each tensor.
    """

    averages = False
    one_model = False
    sends = "the other clusters' models to the client, the number of its cluster back"

    clusters: int = 2
    """How many models there are."""

    def __post_init__(self) -> None:
        if self.clusters < 2:
            raise SpecError(f"ifca: clusters is {self.clusters}; give at least 2.")

    def init(self, model: ModelState, num_clients: int) -> Tensors:
        if self.clusters > num_clients:
            raise SpecError(
                f"ifca: clusters is {self.clusters}, and there are {num_clients} clients. Give at most {num_clients}."
            )
        others = {str(k): _shuffled(model.parameters, seed=k) | dict(model.buffers) for k in range(1, self.clusters)}
        return joined(others)

    def broadcast(self, state: Tensors) -> Tensors:
        return {name: tensor for name, tensor in state.items() if name != SIZES}

    def objective(self, context: LocalContext) -> LocalObjective:
        return OfCluster(context, number=self.clusters)

    def aggregate(
        self, before: ModelState, results: Iterable[LocalResult], state: Tensors, server: ServerContext
    ) -> tuple[ModelState, Tensors]:
        folds, sizes = [Fold(server.buffers) for _ in range(self.clusters)], [0] * self.clusters
        for result in results:
            chosen = self._cluster_of(result)
            folds[chosen].add(result)
            sizes[chosen] += 1
        models = [before, *(_split(group_of(state, str(k)), before) for k in range(1, self.clusters))]
        models = [fold.result() if size else old for fold, size, old in zip(folds, sizes, models, strict=True)]
        order = sorted(range(self.clusters), key=lambda k: -sizes[k])
        others = {str(place): models[k].tensors for place, k in enumerate(order) if place}
        return models[order[0]], {**joined(others), SIZES: torch.tensor([sizes[k] for k in order])}

    def personalise(self, context: LocalContext) -> None:
        choose(context, self.clusters)

    def report(self, state: Tensors) -> dict[str, Any]:
        return {"cluster_sizes": state[SIZES].tolist()} if SIZES in state else {}

    def _cluster_of(self, result: LocalResult) -> int:
        found = result.payload.get(CLUSTER, torch.tensor(-1))
        if found.numel() != 1 or not 0 <= found.item() < self.clusters:
            raise TrainingError(
                f"client {result.client} says that its cluster is {found.tolist()}; there are {self.clusters}."
            )
        return int(found)


def _shuffled(tensors: Mapping[str, Tensor], *, seed: int) -> Tensors:
    """The numbers of each tensor in random order: as good a start, and constants stay what they are."""
    rng = torch.Generator().manual_seed(seed)
    return {n: t.flatten()[torch.randperm(t.numel(), generator=rng)].view(t.shape) for n, t in tensors.items()}


def _split(tensors: Tensors, like: ModelState) -> ModelState:
    """Tensors as parameters and buffers."""
    return ModelState({n: tensors[n] for n in like.parameters}, {n: tensors[n] for n in like.buffers})
