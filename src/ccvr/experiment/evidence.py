"""What calibrators ask for, served by an engine and kept in the run."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ccvr.core.errors import StatisticsError
from ccvr.core.run import RunFolder, write_atomically
from ccvr.experiment.engine import Engine
from ccvr.models.split import SplitModel
from ccvr.models.transform import FeatureTransform
from ccvr.statistics.moments import ClassStatistics
from ccvr.statistics.wire import from_bytes, to_bytes


@dataclass(frozen=True)
class RunEvidence:
    """The merged statistics of a run's clients, collected once per transform and read from the run ever after."""

    engine: Engine
    model: SplitModel
    folder: RunFolder

    def statistics(self, transform: FeatureTransform) -> ClassStatistics:
        path = self.folder.statistics(str(transform).replace(":", "-"))
        if not self._is_stored(path):
            write_atomically(path, to_bytes(self._merge(transform), dtype=torch.float64))
        return from_bytes(path.read_bytes())

    def _is_stored(self, path: Path) -> bool:
        """Whether the file holds this model's statistics; damaged or foreign ones are collected again."""
        try:
            return path.is_file() and from_bytes(path.read_bytes()).digest == self.model.digest()
        except StatisticsError:
            return False

    def features(self) -> tuple[Tensor, Tensor]:
        return self.engine.features(self.model)

    def _merge(self, transform: FeatureTransform) -> ClassStatistics:
        """Fold client after client."""
        clients = self.engine.statistics(self.model, transform)
        total = next(clients)
        for statistics in clients:
            total.add_(statistics)
        return total
