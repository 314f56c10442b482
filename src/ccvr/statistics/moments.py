"""Class statistics: count, Σ z and Σ z zᵀ per class. Merging is addition."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ccvr.core.errors import StatisticsError


@dataclass(frozen=True)
class ClassStatistics:
    """count [C] int64, total [C, d] = Σ z and outer [C, d, d] = Σ z zᵀ in float64, of features t(z).

    ``zeros`` is the identity of ``+``, which commutes; a class with 0 or 1 samples is no special case. ``digest`` names
    the backbone that made the features; statistics of different backbones or transforms do not add up.
    """

    transform: str
    digest: str
    count: Tensor
    total: Tensor
    outer: Tensor

    @classmethod
    def zeros(
        cls, num_classes: int, num_features: int, *, transform: str = "none", digest: str = ""
    ) -> "ClassStatistics":
        return cls(
            transform,
            digest,
            torch.zeros(num_classes, dtype=torch.int64),
            torch.zeros(num_classes, num_features, dtype=torch.float64),
            torch.zeros(num_classes, num_features, num_features, dtype=torch.float64),
        )

    @property
    def num_classes(self) -> int:
        return self.total.shape[0]

    @property
    def num_features(self) -> int:
        return self.total.shape[1]

    def __add__(self, other: "ClassStatistics") -> "ClassStatistics":
        self._require_same_kind(other)
        return ClassStatistics(
            self.transform, self.digest, self.count + other.count, self.total + other.total, self.outer + other.outer
        )

    def update(self, z: Tensor, y: Tensor) -> None:
        """Add features z [B, d] with labels y [B], in place."""
        z = z.to(torch.float64)
        labels = y.unique().tolist()
        self._require_usable(z, labels)
        for label in labels:
            rows = z[y == label]
            self.count[label] += len(rows)
            self.total[label] += rows.sum(0)
            self.outer[label].addmm_(rows.T, rows)

    def add_(self, other: "ClassStatistics") -> None:
        """``self + other``, in place: the server folds one client after the other in constant memory."""
        self._require_same_kind(other)
        self.count.add_(other.count)
        self.total.add_(other.total)
        self.outer.add_(other.outer)

    def _require_usable(self, z: Tensor, labels: list[int]) -> None:
        # Indexing would take label -1 for the last class, and one NaN would spoil the merged statistics of everybody.
        outside = [label for label in labels if not 0 <= label < self.num_classes]
        if outside:
            raise StatisticsError(
                f"label {outside[0]} is not one of {self.num_classes} classes (0 to {self.num_classes - 1}). "
                "Check the labels, or collect with more classes."
            )
        if not z.isfinite().all():
            raise StatisticsError("some features are not finite. Check the model: its training may have diverged.")

    def _require_same_kind(self, other: "ClassStatistics") -> None:
        for name in ("transform", "digest", "num_classes", "num_features"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                raise StatisticsError(
                    f"statistics with {name} {mine!r} and {theirs!r} do not add up. Collect both from the same model."
                )


def statistics_of(
    z: Tensor, y: Tensor, num_classes: int, *, transform: str = "none", digest: str = ""
) -> ClassStatistics:
    """The statistics of features z [N, d], transformed already, with labels y [N]."""
    statistics = ClassStatistics.zeros(num_classes, z.shape[1], transform=transform, digest=digest)
    statistics.update(z, y)
    return statistics
