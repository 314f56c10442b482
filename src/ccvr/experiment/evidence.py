"""What calibrators ask for, served by an engine and kept in the run."""

from dataclasses import dataclass

import torch
from torch import Tensor

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
        if path.is_file():
            stored = from_bytes(path.read_bytes())
            if stored.digest == self.model.digest():
                return stored
        write_atomically(path, to_bytes(self._merge(transform), dtype=torch.float64))
        return from_bytes(path.read_bytes())

    def features(self) -> tuple[Tensor, Tensor]:
        return self.engine.features(self.model)

    def _merge(self, transform: FeatureTransform) -> ClassStatistics:
        """Fold client after client."""
        clients = self.engine.statistics(self.model, transform)
        total = next(clients)
        for statistics in clients:
            total.add_(statistics)
        return total
