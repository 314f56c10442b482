"""The rounds of federated training, one state per round."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from ccvr.core.seeds import stream
from ccvr.data.images import IntArray
from ccvr.models.split import SplitModel
from ccvr.models.state import Scratch, Tensors, WeightedMean, buffers_of, copied, parameters_of
from ccvr.training.algorithms import server_update
from ccvr.training.client_state import ClientStates
from ccvr.training.local import Client, GlobalState, LocalMetrics, LocalResult
from ccvr.training.spec import TrainingSpec
from ccvr.training.trainer import OneByOne, Trainer


@dataclass(frozen=True)
class ClientReport:
    """One client's part of one round, without its tensors."""

    client: int
    num_examples: int
    num_steps: int
    metrics: LocalMetrics


@dataclass(frozen=True)
class RoundState:
    """All that the next round depends on."""

    round: int
    parameters: Tensors
    buffers: Tensors
    server: Tensors
    memories: Mapping[int, int]
    """The round in which each client last wrote its memory."""
    clients: tuple[ClientReport, ...] = field(default=(), compare=False)

    def load_into(self, model: SplitModel) -> SplitModel:
        model.load_state_dict(self.parameters | self.buffers)
        return model


def draw_cohorts(num_clients: int, spec: TrainingSpec, *, seed: int) -> list[IntArray]:
    """Who trains in each round, drawn up front: the same for every algorithm; more rounds keep the earlier ones."""
    rng = stream(seed, "cohorts")
    size = spec.cohort(num_clients)
    return [np.sort(rng.choice(num_clients, size, replace=False)) for _ in range(spec.rounds)]


def first_state(model: SplitModel, num_clients: int, spec: TrainingSpec) -> RoundState:
    """The state before the first round."""
    parameters = parameters_of(model)
    return RoundState(0, parameters, buffers_of(model), server_update(spec).init(parameters, num_clients), {})


def federate(
    model: SplitModel,
    clients: Sequence[Client],
    spec: TrainingSpec,
    *,
    seed: int,
    memories: ClientStates,
    resume: RoundState | None = None,
    trainer: Trainer | None = None,
) -> Iterator[RoundState]:
    """Yield the state after each round, from the first or from the one after ``resume``. ``model`` is scratch space.

    Clients train and are folded largest first, ties by id: in this process, or by another ``trainer``.
    """
    server = server_update(spec)
    trainer = trainer or OneByOne(Scratch(model), spec, seed, memories)
    state = resume or first_state(model, len(clients), spec)
    cohorts = draw_cohorts(len(clients), spec, seed=seed)
    for number in range(state.round + 1, spec.rounds + 1):
        sent = GlobalState(state.parameters, state.buffers, server.broadcast(state.server))
        cohort = sorted((clients[k] for k in cohorts[number - 1]), key=lambda client: (-len(client.indices), client.id))
        fold = _Fold(spec.buffers)
        results = trainer.train(cohort, sent, state.memories, round=number)
        parameters, server_state = server.apply(state.parameters, fold.passing(results), state.server)
        remembered = dict.fromkeys(fold.remembering, number)
        state = RoundState(
            number, parameters, fold.buffers(), server_state, {**state.memories, **remembered}, tuple(fold.reports)
        )
        yield state


class _Fold:
    """Takes from passing results what the server update leaves alone: buffers by policy, reports, who remembers."""

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self.reports: list[ClientReport] = []
        self.remembering: list[int] = []
        self._mean = WeightedMean()
        self._largest: tuple[int, Mapping[str, Tensor]] = (-1, {})

    def passing(self, results: Iterable[LocalResult]) -> Iterator[LocalResult]:
        for result in results:
            self._mean.add(result.buffers, result.num_examples)
            if result.num_examples > self._largest[0]:
                self._largest = (result.num_examples, result.buffers)
            if result.remembers:
                self.remembering.append(result.client)
            self.reports.append(ClientReport(result.client, result.num_examples, result.num_steps, result.metrics))
            yield result

    def buffers(self) -> Tensors:
        return self._mean.result() if self.policy == "average" else copied(self._largest[1])
