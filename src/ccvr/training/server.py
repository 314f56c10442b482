"""Server updates: what becomes of the models that clients send back."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from ccvr.models.state import Tensors, WeightedMean
from ccvr.training.local import LocalResult


class ServerUpdate:
    """The average of the clients' parameters, weighted by their examples (FedAvg; McMahan et al. 2017).

    Parameters only: buffers follow ``training.buffers``. Results come one by one and are not kept.
    """

    def init(self, parameters: Tensors, num_clients: int) -> Tensors:
        """What the server remembers before the first round."""
        return {}

    def broadcast(self, state: Tensors) -> Tensors:
        """What is sent to the clients beside the model."""
        return {}

    def apply(self, parameters: Tensors, results: Iterable[LocalResult], state: Tensors) -> tuple[Tensors, Tensors]:
        """New parameters and new server state."""
        return average(results), state


def average(results: Iterable[LocalResult]) -> Tensors:
    """Σ n_k w_k / Σ n_k, folded in float64."""
    mean = WeightedMean()
    for result in results:
        mean.add(result.parameters, result.num_examples)
    return mean.result()


@dataclass(frozen=True)
class ServerMomentum(ServerUpdate):
    """v ← beta v + (w − w̄), w ← w − v, with w̄ the clients' average (FedAvgM; Hsu et al. 2019)."""

    beta: float

    def init(self, parameters: Tensors, num_clients: int) -> Tensors:
        return {name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in parameters.items()}

    def apply(self, parameters: Tensors, results: Iterable[LocalResult], state: Tensors) -> tuple[Tensors, Tensors]:
        mean = average(results)
        velocity = {n: self.beta * state[n] + (w.double() - mean[n].double()) for n, w in parameters.items()}
        return {n: (w.double() - velocity[n]).to(w.dtype) for n, w in parameters.items()}, velocity
