"""Events of a run, as values for progress bars and logs."""

from collections.abc import Generator
from dataclasses import dataclass

from ccvr.core.results import Results


@dataclass(frozen=True)
class Noted:
    """One line that a user should know."""

    text: str


@dataclass(frozen=True)
class Started:
    """Training begins, after ``round`` rounds that a checkpoint already has."""

    round: int
    rounds: int
    label_counts: list[list[int]]
    class_names: tuple[str, ...]


@dataclass(frozen=True)
class RoundDone:
    """One round is trained, scored (``accuracy`` in percent) and safe; ``loss`` is the clients' mean in training."""

    round: int
    rounds: int
    accuracy: float | None
    test_loss: float | None
    loss: float
    samples: int
    seconds: float


@dataclass(frozen=True)
class HeadScored:
    """One head is fitted, kept and scored."""

    label: str
    accuracy: float
    seconds: float
    absent: tuple[str, ...] = ()
    """Classes of which no client has samples."""


@dataclass(frozen=True)
class ClientScored:
    """One more client has a model of its own, and that is scored: ``done`` of so many."""

    label: str
    done: int
    clients: int


@dataclass(frozen=True)
class ClientsAbsent:
    """Some clients did not answer what they were asked, and the others are enough."""

    question: str
    clients: dict[str, str]
    """Why, by number."""


@dataclass(frozen=True)
class Finished:
    results: Results


Event = Noted | Started | RoundDone | HeadScored | ClientScored | ClientsAbsent | Finished
Events = Generator[Event, None, None]
"""A reader that stops early closes them; that ends the run."""
