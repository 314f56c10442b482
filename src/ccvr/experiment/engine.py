"""What a run needs from its clients, and the engine that has them all in this process."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from ccvr.algorithms.messages import Client
from ccvr.core.machine import keep_freed_memory
from ccvr.core.run import RunFolder
from ccvr.core.seeds import stream
from ccvr.data.batches import TrainingSamples, epoch, in_order
from ccvr.experiment.feature_store import FeatureStore
from ccvr.experiment.setup import Setup
from ccvr.models.heads import Head
from ccvr.models.scoring import ClassCounts, class_counts
from ccvr.models.split import SplitModel
from ccvr.models.state import Tensors
from ccvr.statistics.collect import fold, source_of
from ccvr.statistics.moments import ClassStatistics
from ccvr.statistics.request import Request
from ccvr.training.client_state import ClientStates
from ccvr.training.local import private_part
from ccvr.training.moments import moment_sums
from ccvr.training.rounds import Revise, RoundState, ServerPart, federate, sent_state
from ccvr.training.trainer import OneByOne, Trainer, scratch_of
from ccvr.training.workers import Workers


def client_moments(model: SplitModel, setup: Setup, client: int, *, round: int) -> Tensors:
    """One client's sums for batch normalisation, from its training samples as they are, in random batches."""
    rng = stream(setup.spec.seed, "moments", client=client, round=round)
    samples, own = TrainingSamples(setup.dataset.train), setup.kept.shards[client]
    return moment_sums(model, epoch(samples, own, setup.spec.training.batch_size, rng=rng))


class Engine(Protocol):
    """Clients at work, wherever they are."""

    def rounds(
        self, model: SplitModel, *, states: ClientStates, resume: RoundState | None, revise: Revise | None = None
    ) -> Iterator[RoundState]:
        """Train; the state after each round, as ``revise`` leaves it."""

    def statistics(self, model: SplitModel, request: Request) -> Iterator[ClassStatistics]:
        """Each client's class statistics under the global model."""

    def moments(self, model: SplitModel, clients: Sequence[int], *, round: int) -> Iterator[Tensors]:
        """Some clients' sums of what enters batch normalisation in the global model, in their order."""

    def features(self, model: SplitModel) -> tuple[Tensor, Tensor]:
        """All clients' features and labels: raw data, for the oracles of a simulation."""

    def score(self, model: SplitModel, heads: Mapping[str, Head]) -> Iterator[dict[str, ClassCounts]]:
        """Each client's counts of every head on its held-out part.

        All heads at once: who answers, and in which order, may differ from one question to the next.
        """

    def personal_scores(self, state: RoundState, *, states: ClientStates) -> Iterator[tuple[int, ClassCounts]]:
        """Each client, and the counts on the test set of its own model: what the algorithm makes of a state there."""

    def absent(self) -> dict[str, dict[int, str]]:
        """By what was asked, the clients that did not answer, and why; empty where all did."""


@dataclass(frozen=True)
class LocalEngine:
    """All clients on this machine."""

    setup: Setup

    def rounds(
        self, model: SplitModel, *, states: ClientStates, resume: RoundState | None, revise: Revise | None = None
    ) -> Iterator[RoundState]:
        clients, spec = self.clients(), self.setup.spec
        with self._trainer(clients, states) as trainer:
            yield from federate(
                model,
                clients,
                spec.training,
                seed=spec.seed,
                states=states,
                resume=resume,
                trainer=trainer,
                server=ServerPart(self.setup.unlabelled, revise),
            )

    def personal_scores(self, state: RoundState, *, states: ClientStates) -> Iterator[tuple[int, ClassCounts]]:
        dataset = self.setup.dataset
        for client, model in self.own_models(state, states=states):
            yield client, class_counts(model, in_order(dataset.test), dataset.num_classes)

    def own_models(self, state: RoundState, *, states: ClientStates) -> Iterator[tuple[int, SplitModel]]:
        """Each client and its own model, which is valid until the next one is asked for."""
        spec, model = self.setup.spec, self.setup.fresh_model()
        sent = sent_state(state, spec.training, model)
        trainer = OneByOne(scratch_of(model, spec.training), spec.training, spec.seed, states)
        for client in self.clients():
            last = state.client_rounds.get(client.id)
            yield client.id, trainer.own_model(client, sent, last, round=state.round + 1)

    def local_models(self, state: RoundState, numbers: Sequence[int], *, states: ClientStates) -> Iterator[Tensors]:
        """What some clients would make of a state in one more round, each by itself; the run is left as it is."""
        clients, spec = self.clients(), self.setup.spec
        training, model = spec.training, self.setup.builder()
        sent = sent_state(state, training, model)
        remembered = {k: state.client_rounds[k] for k in numbers if k in state.client_rounds}
        with tempfile.TemporaryDirectory(prefix="ccvr-") as folder:
            copies = ClientStates(Path(folder))
            for client, last in remembered.items():
                copies.write(client, last, states.read(client, last))
            with self._trainer(clients, copies) as pool:
                trainer = pool or OneByOne(scratch_of(model, training), training, spec.seed, copies)
                for result in trainer.train([clients[k] for k in numbers], sent, remembered, round=state.round + 1):
                    kept = copies.read(result.client, state.round + 1) if result.has_state else {}
                    yield {**result.parameters, **result.buffers, **private_part(kept)}

    def clients(self) -> list[Client]:
        dataset = self.setup.dataset
        data = TrainingSamples.prepare(dataset.train, dataset.augmentation(self.setup.spec.data.augment))
        return [Client(number, data, shard) for number, shard in enumerate(self.setup.trained_on)]

    def _trainer(self, clients: list[Client], states: ClientStates) -> AbstractContextManager[Trainer | None]:
        """A pool of workers, or None for this process alone."""
        spec = self.setup.spec
        number = spec.processes(spec.training.cohort(len(clients)))
        keep_freed_memory()
        if number == 1:
            return nullcontext()
        return Workers(number, clients, self.setup.builder, spec.training, seed=spec.seed, states=states)

    def statistics(self, model: SplitModel, request: Request) -> Iterator[ClassStatistics]:
        request.validate()
        source = source_of(model, self.setup.dataset.train.first(1), request, head="head")
        purpose = "/".join(["statistics", request.kind, *request.details])  # noise that two requests share would cancel
        for client, features in enumerate(self._store.read(model, source.taps)):
            rng = stream(self.setup.spec.seed, purpose, client=client)
            yield fold(features, self.setup.dataset.num_classes, request, source, rng=rng)

    def moments(self, model: SplitModel, clients: Sequence[int], *, round: int) -> Iterator[Tensors]:
        for client in clients:
            yield client_moments(model, self.setup, client, round=round)

    def features(self, model: SplitModel) -> tuple[Tensor, Tensor]:
        parts = [batch for features in self._store.read(model, ()) for batch in features]
        return torch.cat([z for z, _ in parts]), torch.cat([y for _, y in parts])

    @cached_property
    def _store(self) -> FeatureStore:
        return FeatureStore(self.setup.dataset.train, self.setup.kept.shards)

    def score(self, model: SplitModel, heads: Mapping[str, Head]) -> Iterator[dict[str, ClassCounts]]:
        dataset, device = self.setup.dataset, model.head.weight.device
        candidates = {name: model.with_head(head.to(device)) for name, head in heads.items()}
        for shard in self.setup.held_out.shards:
            yield {
                name: class_counts(candidate, in_order(dataset.train, shard), dataset.num_classes)
                for name, candidate in candidates.items()
            }

    def absent(self) -> dict[str, dict[int, str]]:
        return {}  # a client that fails here ends the run


@dataclass(frozen=True)
class OpenRun:
    """A run at work: its folder, its data, its clients, and the model that they train."""

    folder: RunFolder
    setup: Setup
    engine: Engine
    model: SplitModel
