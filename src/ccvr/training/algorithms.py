"""The algorithm table: a local objective, a server update, or both."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ccvr.core.errors import SpecError
from ccvr.core.tables import Table
from ccvr.training.objectives import Contrastive, ObjectiveFactory, Proximal
from ccvr.training.server import ServerMomentum, ServerUpdate
from ccvr.training.spec import TrainingSpec


def _nothing(spec: TrainingSpec) -> Sequence[ObjectiveFactory]:
    return ()


def _average(spec: TrainingSpec) -> ServerUpdate:
    return ServerUpdate()


OPTIONS = frozenset({"mu", "temperature", "server_momentum"})
"""Fields of the spec that not every algorithm reads."""


@dataclass(frozen=True)
class Algorithm:
    """How clients train and how the server merges, both made from the spec."""

    objectives: Callable[[TrainingSpec], Sequence[ObjectiveFactory]] = _nothing
    server: Callable[[TrainingSpec], ServerUpdate] = _average
    reads: frozenset[str] = OPTIONS
    """Which of the options it reads."""


ALGORITHMS: Table[Algorithm] = Table(
    "algorithm",
    {
        "fedavg": Algorithm(reads=frozenset()),
        "fedprox": Algorithm(
            objectives=lambda spec: [partial(Proximal, mu=spec.mu_or(0.001))],
            reads=frozenset({"mu"}),
        ),
        "fedavgm": Algorithm(
            server=lambda spec: ServerMomentum(spec.server_momentum),
            reads=frozenset({"server_momentum"}),
        ),
        "moon": Algorithm(
            objectives=lambda spec: [partial(Contrastive, mu=spec.mu_or(1.0), temperature=spec.temperature)],
            reads=frozenset({"mu", "temperature"}),
        ),
    },
)


def find_algorithm(name: str) -> Algorithm:
    """The row of an algorithm; a user's own must be an ``Algorithm`` as well."""
    row = ALGORITHMS[name]
    if not isinstance(row, Algorithm):
        raise SpecError(f'"{name}" is no Algorithm. Wrap it: Algorithm(objectives=…, server=…).')
    return row


def local_objectives(spec: TrainingSpec) -> list[ObjectiveFactory]:
    """What a client adds to its cross-entropy: the algorithm's objectives, and clsprox where it is on."""
    clsprox = [partial(Proximal, mu=spec.clsprox, scope="head.")] if spec.clsprox else []
    return [*find_algorithm(spec.algorithm).objectives(spec), *clsprox]


def server_update(spec: TrainingSpec) -> ServerUpdate:
    update = find_algorithm(spec.algorithm).server(spec)
    if not isinstance(update, ServerUpdate):
        raise SpecError(f'the server of "{spec.algorithm}" is a {type(update).__name__}; it must be a ServerUpdate.')
    return update
