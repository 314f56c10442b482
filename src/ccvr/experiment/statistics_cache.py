"""What calibrators ask for, served by an engine and kept in the run."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ccvr.calibration.calibrator import Calibrator
from ccvr.core.errors import StatisticsError
from ccvr.core.run import write_atomically
from ccvr.experiment.absent_clients import keep_absent
from ccvr.experiment.engine import OpenRun
from ccvr.experiment.setup import Setup
from ccvr.models.tensor_file import read_tensor_file
from ccvr.statistics.merge import merge
from ccvr.statistics.moments import ClassStatistics
from ccvr.statistics.request import Request
from ccvr.statistics.wire import payload_bytes


@dataclass(frozen=True)
class StatisticsCache:
    """The merged statistics of a run's clients, collected once for each request and read from the run ever after."""

    run: OpenRun

    def of(self, method: Calibrator, *, seed: int) -> ClassStatistics | tuple[Tensor, Tensor]:
        """What a calibrator takes: merged statistics, or all clients' raw features."""
        return self.run.engine.features(self.run.model) if method.raw else method.gather(self.merged, seed=seed)

    def merged(self, request: Request) -> ClassStatistics:
        """All clients' statistics of a request."""
        path = self.run.folder.statistics(_name(request))
        stored = self._stored(path, request.kind)
        if stored is None:
            total = merge(self.run.engine.statistics(self.run.model, request))
            keep_absent(self.run)  # first: the file is read ever after, and nobody is asked again
            write_atomically(path, total.to_bytes(dtype=torch.float64))
            stored = (
                self._stored(path, request.kind) or total
            )  # a client at the very edge of what is read may take the sum over it
        return stored

    def _stored(self, path: Path, kind: str) -> ClassStatistics | None:
        """The file's statistics if they are this model's; damaged or foreign ones are collected again."""
        try:
            found = ClassStatistics.from_bytes(read_tensor_file(path), kind=kind) if path.is_file() else None
        except (StatisticsError, OSError, ValueError):
            return None
        return found if found is not None and found.source.model == self.run.model.digest() else None


def _name(request: Request) -> str:
    """A file name that tells requests apart."""
    name = re.sub(r"[^\w.+-]", "-", "_".join([request.kind, *request.details]))
    return name if len(name) <= 100 else hashlib.sha256(name.encode()).hexdigest()


def statistics_bytes(setup: Setup, given: ClassStatistics | tuple[Tensor, Tensor], *, min_count: int) -> int:
    """What all clients together would send: their features, or statistics of the classes not withheld."""
    if not isinstance(given, ClassStatistics):
        z, _ = given
        return len(z) * (4 * z.shape[1] + 8)
    owned = torch.from_numpy(setup.label_counts)
    counts = torch.where(owned >= max(min_count, 1), owned, 0)
    sent = sum(payload_bytes(given.kind, client, given.num_features) for client in counts)
    if given.projection is not None:  # the first exchange
        sent += sum(payload_bytes("diagonal", client, len(given.projection.mean)) for client in counts)
    return sent
