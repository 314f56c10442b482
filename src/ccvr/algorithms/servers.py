"""Server optimisers: a step of the global model along the clients' mean change."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ccvr.algorithms.algorithm import Algorithm, ServerContext, require_above, step_towards
from ccvr.algorithms.messages import LocalResult, ModelState, group_of, joined
from ccvr.core.errors import SpecError
from ccvr.models.state import Tensors


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


# --- adaptive ---------------------------------------------------------------------------------------------------------

MEAN, SQUARE = "mean", "square"


@dataclass(frozen=True)
class Adaptive(Algorithm):
    """m ← beta1 m + (1 − beta1) d, v by the kind, w ← w + lr m / (√v + tau), d the clients' mean change.

    Reddi et al. 2021. m begins at 0 and v at tau²; the paper corrects neither for its beginning.
    """

    is_server = True

    lr: float = 0.01
    """Learning rate of the server."""
    beta1: float = 0.9
    """Decay of the mean change."""
    tau: float = 0.001
    """Added to the root of the mean square: larger is less adaptive."""

    def __post_init__(self) -> None:
        for name in ("lr", "tau"):
            require_above(name, getattr(self, name), 0)
        require_decay("beta1", self.beta1)

    def square(self, v: Tensor, d: Tensor) -> Tensor:
        """The new v, of the old one and of the clients' mean change."""
        raise NotImplementedError

    def init(self, model: ModelState, num_clients: int) -> Tensors:
        zeros = {n: torch.zeros_like(w, dtype=torch.float64) for n, w in model.parameters.items()}
        return joined({MEAN: zeros, SQUARE: {n: zero + self.tau**2 for n, zero in zeros.items()}})

    def aggregate(
        self, before: ModelState, results: Iterable[LocalResult], state: Tensors, server: ServerContext
    ) -> tuple[ModelState, Tensors]:
        mean, old = server.average(results), before.parameters
        m, v = group_of(state, MEAN), group_of(state, SQUARE)
        change = {n: mean.parameters[n].double() - w.double() for n, w in old.items()}
        m = {n: self.beta1 * m[n] + (1 - self.beta1) * d for n, d in change.items()}
        v = {n: self.square(v[n], d) for n, d in change.items()}
        made = {n: (w.double() + self.lr * m[n] / (v[n].sqrt() + self.tau)).to(w.dtype) for n, w in old.items()}
        return ModelState(made, mean.buffers), joined({MEAN: m, SQUARE: v})


@dataclass(frozen=True)
class FedAdagrad(Adaptive):
    """FedAvg with Adagrad on the server: v ← v + d² (Reddi et al. 2021).

    Its first step moves every weight by about lr. The 0.1 that the paper found best on CIFAR-10 diverges from a fresh
    network in the second round (CIFAR-10, alpha 0.1, the presets' settings), so the default is that of the others.
    """

    beta1: float = 0.0
    """Decay of the mean change."""

    def square(self, v: Tensor, d: Tensor) -> Tensor:
        return v + d**2


@dataclass(frozen=True)
class FedAdam(Adaptive):
    """FedAvg with Adam on the server: v ← beta2 v + (1 − beta2) d², without bias correction (Reddi et al. 2021)."""

    beta2: float = 0.99
    """Decay of the mean square."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_decay("beta2", self.beta2)

    def square(self, v: Tensor, d: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * d**2


@dataclass(frozen=True)
class FedYogi(FedAdam):
    """FedAvg with Yogi on the server: v ← v − (1 − beta2) d² sign(v − d²) (Reddi et al. 2021)."""

    def square(self, v: Tensor, d: Tensor) -> Tensor:
        return v - (1 - self.beta2) * d**2 * (v - d**2).sign()


def require_decay(name: str, value: float) -> None:
    """Refuse a decay that forgets nothing or more than everything."""
    if not 0 <= value < 1:
        raise SpecError(f"{name} is {value}; give a number from 0 to below 1.")


# --- FedExP -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FedExp(Algorithm):
    """FedAvg with a longer step where clients disagree (Jhunjhunwala et al. 2023).

    w ← w + max(1, Σ p_k ‖d_k‖² / (2 (‖d‖² + eps))) d, d_k a client's change, d their mean. p_k is the client's part of
    the round's samples; where all have as many, it is the paper's 1/|S|.
    """

    is_server = True
    needs_sample_mean = True

    eps: float = 0.001
    """Added to the squared norm of the mean change."""

    def __post_init__(self) -> None:
        require_above("fedexp: eps", self.eps, 0)

    def aggregate(
        self, before: ModelState, results: Iterable[LocalResult], state: Tensors, server: ServerContext
    ) -> tuple[ModelState, Tensors]:
        total, samples = 0.0, 0

        def noted() -> Iterator[LocalResult]:
            nonlocal total, samples
            for result in results:
                total += result.num_examples * _distance(before, result.parameters)
                samples += result.num_examples
                yield result

        mean = server.average(noted())
        rate = max(1.0, total / samples / (2 * (_distance(before, mean.parameters) + self.eps)))
        return step_towards(before, mean, rate), state


def _distance(before: ModelState, ends: Mapping[str, Tensor]) -> float:
    """The squared norm of the change of the parameters, in float64."""
    return sum(((ends[n].double() - w.double()) ** 2).sum().item() for n, w in before.parameters.items())
