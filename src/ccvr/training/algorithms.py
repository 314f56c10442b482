"""Algorithms of federated learning: what clients add to their loss, and what the server makes of their models."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ccvr.core.errors import SpecError
from ccvr.core.methods import make, text_of
from ccvr.core.tables import Table
from ccvr.kernels.inputs import Inputs
from ccvr.models.split import SplitModel
from ccvr.models.state import Tensors, WeightedMean, copied
from ccvr.training.messages import LocalResult, ModelState
from ccvr.training.objectives import Contrastive, LocalContext, LocalObjective, Proximal


@dataclass(frozen=True)
class ServerContext:
    """What a server has at hand in one round."""

    round: int
    rng: np.random.Generator
    """A stream of this run and round."""
    build: Callable[[], SplitModel]
    """Makes a model of the run's shape."""
    buffers: str = "average"
    """What becomes of buffers: ``average``, or those of the round's ``largest`` client (training.buffers)."""
    unlabelled: Inputs | None = None
    """Samples without labels, where the spec gives any (data.unlabelled), as a data set has them."""

    def average(self, results: Iterable[LocalResult]) -> ModelState:
        """Σ n_k w_k / Σ n_k of the clients' parameters, folded in float64; buffers by the policy.

        Results are read once, in their order, and are not kept.
        """
        parameters, buffers = WeightedMean(), WeightedMean()
        most: int = -1
        largest: Mapping[str, Tensor] = {}
        for result in results:
            parameters.add(result.parameters, result.num_examples)
            buffers.add(result.buffers, result.num_examples)
            if result.num_examples > most:
                most, largest = result.num_examples, result.buffers
        return ModelState(parameters.result(), buffers.result() if self.buffers == "average" else copied(largest))


@dataclass(frozen=True)
class Algorithm:
    """How clients train and how the server merges what they send; as it stands, FedAvg.

    A subclass is a frozen dataclass. Its fields are its options. It overrides what it does differently.
    """

    needs_unlabelled: ClassVar[bool] = False
    """Whether the server cannot do without unlabelled samples."""

    def init(self, model: ModelState, num_clients: int) -> Tensors:
        """The server's state before the first round."""
        return {}

    def broadcast(self, state: Tensors) -> Tensors:
        """What is sent to the clients beside the model."""
        return {}

    def is_private(self, name: str) -> bool:
        """Whether the tensor of that name stays with each client: it is neither sent nor averaged."""
        return False

    def objective(self, context: LocalContext) -> LocalObjective:
        """What a client adds to its cross-entropy in one round."""
        return LocalObjective(context)

    def aggregate(
        self, before: ModelState, results: Iterable[LocalResult], state: Tensors, server: ServerContext
    ) -> tuple[ModelState, Tensors]:
        """The new global model and the server's new state. Tensors that stay with clients are in neither."""
        return server.average(results), state


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """The average of the clients' models, weighted by their samples (McMahan et al. 2017)."""


@dataclass(frozen=True)
class FedProx(Algorithm):
    """FedAvg whose clients stay near the global model: mu/2 ‖w − w_global‖² (Li et al. 2018)."""

    mu: float = 0.001
    """Weight of the proximal term."""

    def __post_init__(self) -> None:
        require_at_least("mu", self.mu, 0)

    def objective(self, context: LocalContext) -> LocalObjective:
        return Proximal(context, mu=self.mu)


@dataclass(frozen=True)
class FedAvgM(Algorithm):
    """FedAvg with momentum on the server: v ← momentum v + (w − w̄), w ← w − v (Hsu et al. 2019)."""

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


@dataclass(frozen=True)
class Moon(Algorithm):
    """FedAvg whose clients' features stay near the global model's and leave their own former ones (Li et al. 2021)."""

    mu: float = 1.0
    """Weight of the contrastive term."""
    temperature: float = 0.5
    """Temperature of the contrastive term."""

    def __post_init__(self) -> None:
        require_at_least("mu", self.mu, 0)
        if not self.temperature > 0:
            raise SpecError(f"moon: temperature is {self.temperature}; give a number above 0.")

    def objective(self, context: LocalContext) -> LocalObjective:
        return Contrastive(context, mu=self.mu, temperature=self.temperature)


def require_at_least(name: str, value: float, low: float) -> None:
    """Refuse an option below its least value."""
    if not value >= low:
        raise SpecError(f"{name} is {value}; give at least {low}.")


ALGORITHMS: Table[type[Algorithm]] = Table(
    "algorithm", {"fedavg": FedAvg, "fedprox": FedProx, "fedavgm": FedAvgM, "moon": Moon}
)


@cache
def find_algorithm(text: str) -> Algorithm:
    """The algorithm of ``name[,option=value…]``.

    Example:
    >>> find_algorithm("fedprox,mu=0.01")
    FedProx(mu=0.01)
    """
    return make(ALGORITHMS, Algorithm, text)


def has_private(algorithm: Algorithm, model: ModelState) -> bool:
    """Whether any tensor of a model stays with its clients."""
    return any(map(algorithm.is_private, model.tensors))


def shared(algorithm: Algorithm, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The tensors that clients send and receive; the same object if none is private."""
    private = [name for name in tensors if algorithm.is_private(name)]
    return {name: tensor for name, tensor in tensors.items() if name not in private} if private else tensors


# --- how an algorithm was written before it had options of its own ----------------------------------------------------

OLD_OPTIONS = {
    "fedprox": {"mu": "mu"},
    "moon": {"mu": "mu", "temperature": "temperature"},
    "fedavgm": {"server_momentum": "momentum"},
}
"""By algorithm, fields of a training section that became its options, and their names now."""
OLD_DEFAULTS = {"mu": None, "temperature": 0.5, "server_momentum": 0.1}


def canonical(text: str) -> str:
    """An algorithm of ours without options that have their default; one of the user's own as it is."""
    name = text.partition(",")[0]
    if ":" in name or name not in ALGORITHMS:
        return text
    algorithm = find_algorithm(text)
    changed = {each.name: getattr(algorithm, each.name) for each in fields(algorithm)}
    return text_of(name, {key: value for key, value in changed.items() if value != getattr(type(algorithm)(), key)})


def upgraded(training: Mapping[str, Any]) -> dict[str, Any]:
    """A training section with its algorithm as text, also if it is a table or has the flat fields of older versions."""
    section = dict(training)
    given = section.get("algorithm", "fedavg")
    old = {key: section.pop(key) for key in OLD_DEFAULTS if key in section}
    if isinstance(given, Mapping):
        options = {key: value for key, value in given.items() if key != "name"}
        section["algorithm"] = given = text_of(str(given.get("name", "fedavg")), options)
    if not old or not isinstance(given, str):
        return section
    is_ours = ":" not in given and given in ALGORITHMS
    renamed = OLD_OPTIONS.get(given) if is_ours else {key: key for key in OLD_DEFAULTS}
    options = {new: old[key] for key, new in (renamed or {}).items() if old.get(key) not in (None, OLD_DEFAULTS[key])}
    return {**section, "algorithm": canonical(text_of(given, options))}
