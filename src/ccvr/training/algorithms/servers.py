"""Server optimisers: a step of the global model along the clients' mean change."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from ccvr.core.errors import SpecError
from ccvr.models.state import Tensors
from ccvr.training.algorithm import Algorithm, ServerContext
from ccvr.training.messages import LocalResult, ModelState


@dataclass(frozen=True)
class FedAvgM(Algorithm):
    """FedAvg with momentum on the server: v ← momentum v + (w − w̄), w ← w − v (Hsu et al. 2019)."""

    is_server = True

    momentum: float = 0.1
    """Momentum of the server."""

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise SpecError(f"fedavgm: momentum is {self.momentum}; give a number from 0 to below 1.")

    def init(self, model: ModelState, num_clients: int) -> Tensors:
        return {name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in model.parameters.items()}

    def aggregate(
        self, before: ModelState, results: Iterable[LocalResult], state: Tensors, server: ServerContext
    ) -> tuple[ModelState, Tensors]:
        mean, old = server.average(results), before.parameters
        velocity = {n: self.momentum * state[n] + (w.double() - mean.parameters[n].double()) for n, w in old.items()}
        return ModelState({n: (w.double() - velocity[n]).to(w.dtype) for n, w in old.items()}, mean.buffers), velocity
