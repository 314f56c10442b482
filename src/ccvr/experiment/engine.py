"""What a run needs from its clients, and the engine that has them all in this process."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ccvr.data.batches import TrainingImages, in_order
from ccvr.data.images import Dataset
from ccvr.data.partition import Partition
from ccvr.experiment.spec import Spec
from ccvr.models.scoring import ClassCounts, score
from ccvr.models.split import SplitModel
from ccvr.statistics.collect import Request, collect, read_features
from ccvr.statistics.moments import ClassStatistics
from ccvr.training.local import Client
from ccvr.training.memories import Memories
from ccvr.training.rounds import RoundState, federate


class Engine(Protocol):
    """Clients at work, wherever they are."""

    def rounds(self, model: SplitModel, *, memories: Memories, resume: RoundState | None) -> Iterator[RoundState]:
        """Train; the state after each round."""

    def statistics(self, model: SplitModel, request: Request) -> Iterator[ClassStatistics]:
        """Each client's class statistics under the global model."""

    def features(self, model: SplitModel) -> tuple[Tensor, Tensor]:
        """All clients' features and labels: raw data, for the oracles of a simulation."""

    def score(self, model: SplitModel) -> Iterator[ClassCounts]:
        """Each client's counts on its held-out part."""


@dataclass(frozen=True)
class LocalEngine:
    """All clients in this process, one after the other."""

    spec: Spec
    dataset: Dataset
    partition: Partition
    held_out: Partition

    def rounds(self, model: SplitModel, *, memories: Memories, resume: RoundState | None) -> Iterator[RoundState]:
        chosen = self.spec.data.augment
        augment = self.dataset.augment if chosen is None else chosen
        images = TrainingImages.prepare(self.dataset.train, augment=augment)
        clients = [Client(number, images, shard) for number, shard in enumerate(self.partition.shards)]
        return federate(model, clients, self.spec.training, seed=self.spec.seed, memories=memories, resume=resume)

    def statistics(self, model: SplitModel, request: Request) -> Iterator[ClassStatistics]:
        for shard in self.partition.shards:
            yield collect(
                model,
                in_order(self.dataset.train, shard),
                num_classes=self.dataset.num_classes,
                kind=request.kind,
                transform=request.transform,
                head="head",
                taps=request.taps,
                min_count=request.min_count,
                projection=request.projection,
            )

    def features(self, model: SplitModel) -> tuple[Tensor, Tensor]:
        parts = [
            part
            for shard in self.partition.shards
            for part in read_features(model, in_order(self.dataset.train, shard), "head")
        ]
        return torch.cat([z for z, _ in parts]), torch.cat([y for _, y in parts])

    def score(self, model: SplitModel) -> Iterator[ClassCounts]:
        for shard in self.held_out.shards:
            yield score(model, in_order(self.dataset.train, shard), self.dataset.num_classes)
