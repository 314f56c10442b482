"""What an algorithm of federated learning is: how clients train, and what the server makes of their models."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from torch import Tensor, nn

from ccvr.algorithms.messages import LocalResult, ModelState, group_of, joined
from ccvr.algorithms.objectives import LocalContext, LocalObjective
from ccvr.algorithms.spec import TrainingSpec
from ccvr.core.errors import SpecError
from ccvr.kernels.inputs import Inputs
from ccvr.models.split import SplitModel
from ccvr.models.state import Tensors, WeightedMean, copied

Average = Callable[[Iterable[LocalResult]], ModelState]


class Fold:
    """Σ n_k w_k / Σ n_k of clients' parameters, folded in float64; buffers by the policy."""

    def __init__(self, buffers: str) -> None:
        self._policy, self._parameters, self._buffers = buffers, WeightedMean(), WeightedMean()
        self._most = -1
        self._largest: Mapping[str, Tensor] = {}

    def add(self, result: LocalResult) -> None:
        """The result is not kept."""
        self._parameters.add(result.parameters, result.num_examples)
        self._buffers.add(result.buffers, result.num_examples)
        if result.num_examples > self._most:
            self._most, self._largest = result.num_examples, result.buffers

    def result(self) -> ModelState:
        buffers = copied(self._largest) if self._policy == "largest" else self._buffers.result()
        return ModelState(self._parameters.result(), buffers)


@dataclass(frozen=True)
class ServerContext:
    """What a server has at hand in one round."""

    round: int
    rng: np.random.Generator
    """A stream of this run and round."""
    build: Callable[[], SplitModel]
    """Makes a model of the run's shape."""
    buffers: str = "average"
    """What becomes of buffers (training.buffers): those of the round's ``largest`` client, or else the average."""
    unlabelled: Inputs | None = None
    """Samples without labels, where the spec gives any (data.unlabelled), as a data set has them."""
    averaging: Average | None = None
    """What stands for the average of the results: the clients' algorithm, under a server optimiser."""

    def average(self, results: Iterable[LocalResult]) -> ModelState:
        """Σ n_k w_k / Σ n_k of the clients' parameters, folded in float64; buffers by the policy.

        Results are read once, in their order, and are not kept. Under a server optimiser (training.server) this is what
        the clients' algorithm makes of the results.
        """
        if self.averaging is not None:
            return self.averaging(results)
        fold = Fold(self.buffers)
        for result in results:
            fold.add(result)
        return fold.result()


@dataclass(frozen=True)
class Algorithm:
    """How clients train and how the server merges what they send; as it stands, FedAvg.

    A subclass is a frozen dataclass. Its fields are its options. It overrides what it does differently.
    """

    needs_unlabelled: ClassVar[bool] = False
    """Whether the server cannot do without unlabelled samples."""
    is_server: ClassVar[bool] = False
    """Whether it changes ``init`` and ``aggregate`` alone: then ``training.server`` may name it."""
    averages: ClassVar[bool] = True
    """Whether ``aggregate`` gives an average of models, of which a server optimiser can make a step."""
    needs_sample_mean: ClassVar[bool] = False
    """Whether it rests, as a server optimiser, on an average that is Σ n_k w_k / Σ n_k of the clients' models."""
    trains_head: ClassVar[bool] = True
    """Whether clients train the head."""
    one_model: ClassVar[bool] = True
    """Whether all clients train the same global model."""
    sends: ClassVar[str] = ""
    """What passes between server and clients beside the model, in words."""
    note: ClassVar[str] = ""
    """What a reader of its runs should know, in one line: a run says it at its start."""

    @property
    def is_sample_mean(self) -> bool:
        """Whether the average that ``aggregate`` gives is Σ n_k w_k / Σ n_k of the clients' models."""
        return self.averages

    def require(self, spec: TrainingSpec) -> None:
        """Refuse a training section under which the algorithm has no meaning; called before a run begins."""

    def require_model(self, model: SplitModel) -> None:
        """Refuse a model that the algorithm cannot train; called before a run begins."""

    def init(self, model: ModelState, num_clients: int) -> Tensors:
        """The server's state before the first round."""
        return {}

    def broadcast(self, state: Tensors) -> Tensors:
        """What is sent to the clients beside the model."""
        return {}

    def is_private(self, name: str) -> bool:
        """Whether the tensor of that name stays with each client: it is neither sent nor averaged."""
        return False

    def private_names(self, model: nn.Module) -> frozenset[str]:
        """The tensors of a model that stay with each client; override it where names alone do not tell."""
        return frozenset(filter(self.is_private, model.state_dict()))

    def objective(self, context: LocalContext) -> LocalObjective:
        """What a client minimises in one round."""
        return LocalObjective(context)

    def aggregate(
        self, before: ModelState, results: Iterable[LocalResult], state: Tensors, server: ServerContext
    ) -> tuple[ModelState, Tensors]:
        """The new global model and the server's new state. Tensors that stay with clients are in neither."""
        return server.average(results), state

    def personalise(self, context: LocalContext) -> None:
        """Turn the final model, in ``context.model`` with the tensors that stayed there, into the client's own."""

    def adapts(self) -> bool:
        """Whether ``personalise`` changes a model."""
        return type(self).personalise is not Algorithm.personalise

    def report(self, state: Tensors) -> dict[str, Any]:
        """What a user should know of the server's state, by name; kept in rounds.jsonl after each round."""
        return {}


LOCAL, SERVER = "algorithm", "server"
"""Groups of the server's state under a server optimiser."""


@dataclass(frozen=True)
class WithServer(Algorithm):
    """An algorithm of the clients under a server optimiser: what the first averages is the second's new point."""

    local: Algorithm
    server: Algorithm

    def require(self, spec: TrainingSpec) -> None:
        self.local.require(spec)
        self.server.require(spec)

    def require_model(self, model: SplitModel) -> None:
        self.local.require_model(model)
        self.server.require_model(model)

    def init(self, model: ModelState, num_clients: int) -> Tensors:
        return joined({LOCAL: self.local.init(model, num_clients), SERVER: self.server.init(model, num_clients)})

    def broadcast(self, state: Tensors) -> Tensors:
        return self.local.broadcast(group_of(state, LOCAL))

    def is_private(self, name: str) -> bool:
        return self.local.is_private(name)

    def private_names(self, model: nn.Module) -> frozenset[str]:
        return self.local.private_names(model)

    def objective(self, context: LocalContext) -> LocalObjective:
        return self.local.objective(context)

    def aggregate(
        self, before: ModelState, results: Iterable[LocalResult], state: Tensors, server: ServerContext
    ) -> tuple[ModelState, Tensors]:
        kept: Tensors = {}

        def average(results: Iterable[LocalResult]) -> ModelState:
            mean, new = self.local.aggregate(before, results, group_of(state, LOCAL), server)
            kept.update(new)
            return mean

        above = replace(server, averaging=average)
        model, own = self.server.aggregate(before, results, group_of(state, SERVER), above)
        return model, joined({LOCAL: kept, SERVER: own})

    def personalise(self, context: LocalContext) -> None:
        self.local.personalise(context)

    def adapts(self) -> bool:
        return self.local.adapts()

    def report(self, state: Tensors) -> dict[str, Any]:
        return self.local.report(group_of(state, LOCAL)) | self.server.report(group_of(state, SERVER))


def require_at_least(name: str, value: float, low: float) -> None:
    """Refuse an option below its least value."""
    if not value >= low:
        raise SpecError(f"{name} is {value}; give at least {low}.")


def require_above(name: str, value: float, low: float) -> None:
    """Refuse an option that is not above a value."""
    if not value > low:
        raise SpecError(f"{name} is {value}; give a number above {low}.")


def step_towards(before: ModelState, goal: ModelState, rate: float) -> ModelState:
    """W + rate (w_goal − w) of the parameters, in float64; the goal's buffers."""
    ends = goal.parameters
    made = {n: (w.double() + rate * (ends[n].double() - w.double())).to(w.dtype) for n, w in before.parameters.items()}
    return ModelState(made, goal.buffers)


def shared(tensors: Mapping[str, Tensor], private: Collection[str]) -> Mapping[str, Tensor]:
    """The tensors that clients send and receive; the same object if none is private."""
    return {name: tensor for name, tensor in tensors.items() if name not in private} if private else tensors
