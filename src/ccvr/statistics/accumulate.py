"""One client's sums, filled batch by batch."""

import numpy as np
import torch
from torch import Tensor

from ccvr.core.errors import StatisticsError
from ccvr.statistics.kinds import find_kind
from ccvr.statistics.moments import ClassStatistics
from ccvr.statistics.request import Request
from ccvr.statistics.source import Source
from ccvr.statistics.squares import BLOCK, Rows, Squares


class Accumulator:
    """Takes features as they come; ``finish`` gives the statistics. What a class has is added in blocks of rows."""

    def __init__(
        self,
        num_classes: int,
        request: Request = Request(),  # noqa: B008 - frozen
        source: Source | None = None,
    ) -> None:
        self.num_classes, self.request, self.source = num_classes, request, source
        self.min_count, self._kind = request.min_count, find_kind(request.kind)
        self._sums: ClassStatistics | None = None
        self._waiting: list[list[Tensor]] = [[] for _ in range(num_classes)]
        self._number = [0] * num_classes

    def update(self, z: Tensor, y: Tensor) -> None:
        """Add features z [B, d] with labels y [B]."""
        y = self._usable_labels(z, y)
        sums = self._of_width(z.shape[1])
        if z.shape[1] != sums.num_features:
            raise StatisticsError(
                f"a batch has {z.shape[1]} features, those before had {sums.num_features}. Give all the same width."
            )
        order = torch.argsort(y, stable=True)
        counts = torch.bincount(y, minlength=self.num_classes)
        numbers = counts.tolist()
        for label, rows in enumerate(z.index_select(0, order).split(numbers)):
            if numbers[label]:
                self._waiting[label].append(rows.clone())  # a view would keep the whole batch
                self._number[label] += numbers[label]
        sums.count.add_(counts)
        for label, number in enumerate(numbers):
            if number and self._number[label] >= max(BLOCK, self.min_count):
                self._add(sums, label)

    def finish(self, *, rng: np.random.Generator | None = None) -> ClassStatistics:
        """All that came, but for classes of fewer than ``min_count`` samples, which never entered a sum.

        ``rng`` draws what a kind adds. Without one nobody can predict it: the operating system seeds a new generator.
        """
        sums = self._of_width(0)
        small = sums.count < self.min_count
        for label in (~small).nonzero().flatten().tolist():
            self._add(sums, label)
        sums.withheld.add_(sums.count[small].sum())
        sums.count[small] = 0
        sums.clients.copy_(sums.count > 0)
        statistics = self._kind.finish(sums, rng=np.random.default_rng() if rng is None else rng)
        return statistics.with_rows_of_means() if self._kind.made_of_means else statistics

    def _of_width(self, num_features: int) -> ClassStatistics:
        if self._sums is None:
            kind, source, projection = self.request.kind, self.source, self.request.projection
            zeros = ClassStatistics.zeros(
                self.num_classes, num_features, kind=kind, source=source, projection=projection
            )
            self._sums = zeros.with_room()
        return self._sums

    def _add(self, sums: ClassStatistics, label: int) -> None:
        if not self._waiting[label]:
            return
        rows = self._kind.prepare(torch.cat(self._waiting[label]).to(torch.float64))
        self._waiting[label].clear()
        self._number[label] = 0
        sums.total[label] += rows.sum(0)
        if not isinstance(sums.seconds, Squares):
            self._kind.add(sums.second, label, rows)
        elif not self._kind.made_of_means:
            sums.seconds.block(label if self._kind.by_class else 0).add_rows(Rows.of_samples(rows, label))

    def _usable_labels(self, z: Tensor, y: Tensor) -> Tensor:
        # Indexing would take label -1 for the last class, and one NaN would spoil the merged statistics of everybody.
        if z.dim() != 2 or y.shape != z.shape[:1] or y.is_floating_point():
            raise StatisticsError(
                f"features of shape {list(z.shape)} and {y.dtype} labels of shape {list(y.shape)}; give [B, d], [B]."
            )
        y = y.long()
        outside = y[(y < 0) | (y >= self.num_classes)]
        if len(outside):
            raise StatisticsError(
                f"label {int(outside[0])} is not one of {self.num_classes} classes (0 to {self.num_classes - 1}). "
                "Check the labels, or collect with more classes."
            )
        if not z.isfinite().all():
            raise StatisticsError("some features are not finite. Check the model: its training may have diverged.")
        return y
