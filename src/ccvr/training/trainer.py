"""Trains a cohort in this process, client after client; workers.py does the same in several processes."""

import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from ccvr.algorithms.messages import Client, GlobalState, LocalResult
from ccvr.algorithms.spec import TrainingSpec
from ccvr.algorithms.table import algorithm_of
from ccvr.core.errors import CcvrError, TrainingError, users_line
from ccvr.kernels.machine import is_installed
from ccvr.models.split import SplitModel
from ccvr.models.state import Scratch, Tensors
from ccvr.training.client_state import ClientStates
from ccvr.training.local import own_model, train_client


class Trainer(Protocol):
    """Trains the clients of one round."""

    def train(
        self, cohort: Sequence[Client], sent: GlobalState, client_rounds: Mapping[int, int], *, round: int
    ) -> Iterator[LocalResult]:
        """The result of each client, in the cohort's order; ``client_rounds`` are the rounds of their states."""


def scratch_of(model: SplitModel, spec: TrainingSpec) -> Scratch[SplitModel]:
    """A model to train clients with; it remembers, as built, the tensors that stay with clients."""
    return Scratch(model, algorithm_of(spec).private_names(model))


@dataclass(frozen=True)
class OneByOne:
    """All clients in this process."""

    scratch: Scratch[SplitModel]
    spec: TrainingSpec
    seed: int
    states: ClientStates

    def __post_init__(self) -> None:
        if self.spec.step == "halide" and not is_installed():
            raise TrainingError(
                'training.step is "halide", and the extra "fast" is not installed here: pip install "ccvr[fast]".'
            )

    def train(
        self, cohort: Sequence[Client], sent: GlobalState, client_rounds: Mapping[int, int], *, round: int
    ) -> Iterator[LocalResult]:
        for client in cohort:
            yield self.train_one(client, sent, client_rounds.get(client.id), round=round).copied()

    def train_one(self, client: Client, sent: GlobalState, last: int | None, *, round: int) -> LocalResult:
        """Train one client. Its state is on disk before its result is returned; the tensors are the model's."""
        with _naming(client, round), one_thread():
            state, algorithm = self._state(client, last), algorithm_of(self.spec)
            result = train_client(self.scratch, sent, client, state, algorithm, self.spec, round=round, seed=self.seed)
            if result.state:
                self.states.write(client.id, round, result.state)
        return replace(result, state={}, has_state=bool(result.state))

    def own_model(self, client: Client, sent: GlobalState, last: int | None, *, round: int) -> SplitModel:
        """The final model as one client has it; it is the scratch model, until that is used again."""
        with _naming(client, round), one_thread():
            state, algorithm = self._state(client, last), algorithm_of(self.spec)
            return own_model(self.scratch, sent, client, state, algorithm, self.spec, round=round, seed=self.seed)

    def _state(self, client: Client, last: int | None) -> Tensors:
        return {} if last is None else self.states.read(client.id, last)


@contextmanager
def _naming(client: Client, round: int) -> Iterator[None]:
    """Turn an exception of a user's model or algorithm into one line: client, round, place, reason."""
    try:
        yield
    except CcvrError:
        raise
    except Exception as error:
        *_, last = traceback.extract_tb(error.__traceback__)
        where = users_line(error) or f"{last.filename}:{last.lineno}"
        reason = str(error).strip().partition("\n")[0]
        raise TrainingError(
            f"client {client.id} failed in round {round} ({type(error).__name__} in {where}: {reason}). "
            "The run can be resumed."
        ) from error


@contextmanager
def one_thread() -> Iterator[None]:
    """Train with one thread, as a worker does: more threads may round differently."""
    before = torch.get_num_threads()
    if before != 1:  # in a worker it is: each call of set_num_threads costs time
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if before != 1:
            torch.set_num_threads(before)
