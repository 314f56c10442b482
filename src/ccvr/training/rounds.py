"""The rounds of federated training, one state per round."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from torch import Tensor

from ccvr.algorithms.algorithm import ServerContext, shared
from ccvr.algorithms.messages import Client, GlobalState, LocalMetrics, LocalResult, ModelState
from ccvr.algorithms.spec import TrainingSpec
from ccvr.algorithms.table import algorithm_of, find_algorithm
from ccvr.core.arrays import IntArray
from ccvr.core.errors import SpecError, TrainingError
from ccvr.core.seeds import stream
from ccvr.kernels.inputs import Inputs
from ccvr.models.split import SplitModel
from ccvr.models.state import Tensors, buffers_of, parameters_of
from ccvr.training.client_state import ClientStates
from ccvr.training.trainer import OneByOne, Trainer, scratch_of


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
    client_rounds: Mapping[int, int]
    """The round in which each client last wrote its state."""
    clients: tuple[ClientReport, ...] = field(default=(), compare=False)
    revision_bytes: int = field(default=0, compare=False)
    """What passed, down and up, to revise the model after the round."""

    @property
    def model(self) -> ModelState:
        return ModelState(self.parameters, self.buffers)

    def load_into(self, model: SplitModel) -> SplitModel:
        model.load_state_dict(self.parameters | self.buffers)
        return model


Revise = Callable[[RoundState], RoundState]
"""Changes the state after a round, before anybody sees it."""


@dataclass(frozen=True)
class ServerPart:
    """What the server adds to the rounds beside its algorithm."""

    unlabelled: Inputs | None = None
    """Samples that algorithms may learn from."""
    revise: Revise | None = None


def draw_cohorts(num_clients: int, spec: TrainingSpec, *, seed: int) -> list[IntArray]:
    """The clients of each round, drawn up front: the same for every algorithm; more rounds keep the earlier ones."""
    rng = stream(seed, "cohorts")
    size = spec.cohort(num_clients)
    return [np.sort(rng.choice(num_clients, size, replace=False)) for _ in range(spec.rounds)]


def first_state(model: SplitModel, num_clients: int, spec: TrainingSpec) -> RoundState:
    """The state before the first round; a model that the algorithm cannot train is refused."""
    algorithm = algorithm_of(spec)
    algorithm.require_model(model)
    _require_shared_head(spec, model)
    first = ModelState(parameters_of(model), buffers_of(model))
    sent = _sent(first, spec, model)
    if not sent.parameters:
        raise SpecError(
            f'"{spec.algorithm}" keeps every parameter with its clients; then no model is learned together.'
        )
    server = algorithm.init(sent, num_clients)
    return RoundState(0, dict(first.parameters), dict(first.buffers), server, {})


def _require_shared_head(spec: TrainingSpec, model: SplitModel) -> None:
    """Refuse the proximal term on the head where there is no global head, or where nobody trains it."""
    is_private = "head.weight" in algorithm_of(spec).private_names(model)
    if spec.clsprox and (is_private or not find_algorithm(spec.algorithm).trains_head):
        why = "stays with the clients: there is no global one to stay near" if is_private else "is not trained"
        raise SpecError(
            f'training.clsprox is {spec.clsprox:g}, and with "{spec.algorithm}" the head {why}. Leave it out.'
        )


def sent_state(state: RoundState, spec: TrainingSpec, model: SplitModel) -> GlobalState:
    """What clients receive in the round after a state; ``model`` is any of the run's shape."""
    sent = _sent(state.model, spec, model)
    return GlobalState(sent.parameters, sent.buffers, algorithm_of(spec).broadcast(state.server))


def _sent(state: ModelState, spec: TrainingSpec, model: SplitModel) -> ModelState:
    """The tensors of a state without those that stay with the clients."""
    private = algorithm_of(spec).private_names(model)
    return ModelState(shared(state.parameters, private), shared(state.buffers, private))


def federate(
    model: SplitModel,
    clients: Sequence[Client],
    spec: TrainingSpec,
    *,
    seed: int,
    states: ClientStates,
    resume: RoundState | None = None,
    trainer: Trainer | None = None,
    server: ServerPart = ServerPart(),  # noqa: B008 - frozen
) -> Iterator[RoundState]:
    """Yield the state after each round, from the first or from the one after ``resume``. ``model`` is scratch space.

    Clients train and are folded largest first, ties by id: in this process, or by another ``trainer``.
    """
    algorithm = algorithm_of(spec)
    trainer = trainer or OneByOne(scratch_of(model, spec), spec, seed, states)
    state = resume or first_state(model, len(clients), spec)
    built = copy.deepcopy(model)  # a server must not see what a client trained, in buffers that no state keeps either
    cohorts = draw_cohorts(len(clients), spec, seed=seed)
    for number in range(state.round + 1, spec.rounds + 1):
        sent = sent_state(state, spec, model)
        cohort = sorted((clients[k] for k in cohorts[number - 1]), key=lambda client: (-len(client.indices), client.id))
        reports: list[ClientReport] = []
        client_rounds: dict[int, int] = {}
        results = _noted(trainer.train(cohort, sent, state.client_rounds, round=number), reports, client_rounds, number)
        rng = stream(seed, "server", round=number)
        context = ServerContext(number, rng, partial(copy.deepcopy, built), spec.buffers, server.unlabelled)
        made, server_state = _aggregated(algorithm.aggregate(sent, results, state.server, context), sent, spec)
        state = RoundState(
            number,
            _with(state.parameters, made.parameters),
            _with(state.buffers, made.buffers),
            server_state,
            {**state.client_rounds, **client_rounds},
            tuple(reports),
        )
        state = server.revise(state) if server.revise else state
        yield state


def _aggregated(found: object, sent: ModelState, spec: TrainingSpec) -> tuple[ModelState, Tensors]:
    """What an algorithm's server gave, which may be a user's own: the tensors that were sent, and its state."""
    match found:
        case (ModelState() as made, dict() as state):
            shapes, expected = ({name: t.shape for name, t in each.tensors.items()} for each in (made, sent))
            wrong = [name for name in {**expected, **shapes} if shapes.get(name) != expected.get(name)]
            if wrong:
                raise TrainingError(
                    f'aggregate of "{spec.algorithm}" gave {wrong[0]} as {shapes.get(wrong[0])}; sent was '
                    f"{expected.get(wrong[0])}. Return the tensors that were sent, in their shapes."
                )
            return made, state
    raise TrainingError(
        f'aggregate of "{spec.algorithm}" gave a {type(found).__name__}; return a ModelState and a dict of tensors.'
    )


def _with(before: Tensors, made: Mapping[str, Tensor]) -> Tensors:
    """The new tensors, and the old ones of those that stay with clients."""
    return dict(made) if made.keys() == before.keys() else {**before, **made}


def _noted(
    results: Iterable[LocalResult], reports: list[ClientReport], client_rounds: dict[int, int], round: int
) -> Iterator[LocalResult]:
    """Yield the same results; add each client's report and the round of its new state."""
    for result in results:
        reports.append(ClientReport(result.client, result.num_examples, result.num_steps, result.metrics))
        if result.has_state:
            client_rounds[result.client] = round
        yield result
