"""Kinds of class statistics: how much of the second moments a client keeps.

A kind says what is kept beside count [C] and total [C, d] = Σ z, how features enter it, and the part that is left when
the class means are taken out (what travels) and put back.
"""

from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from ccvr.core.errors import StatisticsError
from ccvr.core.tables import Table, suggestion

if TYPE_CHECKING:
    from ccvr.statistics.moments import ClassStatistics


class Kind:
    """Σ z zᵀ of each class: one covariance per class. Other kinds override what they do differently."""

    description = "Σ z zᵀ of each class: one covariance per class."
    square = True
    """Whether the last two axes of ``second`` are a symmetric matrix."""
    by_class = True
    """Whether the first axis of ``second`` is the class."""
    made_of_means = False
    """Whether the server makes ``second`` of each client's means, so that a client has and sends none."""
    projected = False
    """Whether features are random ones, which a projection makes."""
    has_covariances = True
    """Whether the covariance of a class can be had."""
    exact = True
    """Whether these are sums of samples. Noisy ones may have any count, and matrices that are no covariances."""
    stands_for = ""
    """The kind of ours that it takes the place of, for calibrators; nothing for ours."""

    @property
    def factored(self) -> bool:
        """Whether samples are kept as rows, and the scatter travels as a factor. It must be that of plain samples."""
        changed = any(getattr(type(self), name).__module__ != __name__ for name in ("shape", "add", "finish"))
        return self.square and (self.made_of_means or (self.exact and not changed))

    @property
    def has_matrices(self) -> bool:
        """Whether there is Σ z zᵀ of each class, of which pooled and diagonal statistics are parts."""
        return self.square and self.by_class and not self.made_of_means

    def shape(self, num_classes: int, num_features: int) -> tuple[int, ...]:
        """The shape of ``second``, of one client."""
        return num_classes, num_features, num_features

    def prepare(self, z: Tensor) -> Tensor:
        """What enters the sums of features z [B, d]; a kind with noise bounds their norm here."""
        return z

    def add(self, second: Tensor, label: int, z: Tensor) -> None:
        """Add features [n, d] of one class to ``second``, in place."""
        second[label].addmm_(z.T, z)

    def finish(self, statistics: "ClassStatistics", *, rng: np.random.Generator) -> "ClassStatistics":
        """What a client gives away of its sums; a kind with noise draws it from ``rng`` and adds it here."""
        return statistics

    def of_means(self, count: Tensor, total: Tensor) -> Tensor:
        """What ``second`` would be if every feature were its class mean: n_c mu_c mu_cᵀ, of count [C], total [C, d]."""
        scaled = _root_scaled(count, total)
        return scaled.unsqueeze(2) * scaled.unsqueeze(1)

    def spread_over(self, count: Tensor, clients: Tensor) -> Tensor:
        """How many things the scatter of each class is of; of a single one it is zero."""
        return count


def _root_scaled(count: Tensor, total: Tensor) -> Tensor:
    return total / count.clamp(min=1).double().sqrt().unsqueeze(1)


class Pooled(Kind):
    description = "Σ z zᵀ over all classes: one covariance that they share."
    by_class = False

    def shape(self, num_classes: int, num_features: int) -> tuple[int, ...]:
        return num_features, num_features

    def add(self, second: Tensor, label: int, z: Tensor) -> None:
        second.addmm_(z.T, z)

    def of_means(self, count: Tensor, total: Tensor) -> Tensor:
        scaled = _root_scaled(count, total)
        return scaled.T @ scaled


class Diagonal(Kind):
    description = "Σ z² of each class: variances of the features."
    square = False

    def shape(self, num_classes: int, num_features: int) -> tuple[int, ...]:
        return num_classes, num_features

    def add(self, second: Tensor, label: int, z: Tensor) -> None:
        second[label] += z.square().sum(0)

    def of_means(self, count: Tensor, total: Tensor) -> Tensor:
        return total.square() / count.clamp(min=1).unsqueeze(1)


class Means(Kind):
    description = "Means of each class alone; the server makes Σ_k n_kc mu_kc mu_kcᵀ of them."
    made_of_means = True
    has_covariances = False

    def shape(self, num_classes: int, num_features: int) -> tuple[int, ...]:
        return (0,)

    def add(self, second: Tensor, label: int, z: Tensor) -> None:
        pass

    def spread_over(self, count: Tensor, clients: Tensor) -> Tensor:
        return clients


class RandomPooled(Pooled):
    description = "Pooled statistics of random features of several layers."
    projected = True
    has_covariances = False


KINDS: Table[Kind] = Table(
    "kind of statistics",
    {"full": Kind(), "pooled": Pooled(), "diagonal": Diagonal(), "means": Means(), "kernel": RandomPooled()},
)


def find_kind(name: str) -> Kind:
    """The kind of a name: ours, or an object of the user's own as ``package.module:name``.

    Raises:
        StatisticsError: there is none of that name.
    """
    if not isinstance(name, str):
        raise StatisticsError(
            f"the kind of statistics is a {type(name).__name__}; give its name, your own as package.module:name."
        )
    if name not in KINDS and ":" not in name:
        raise StatisticsError(f'no kind of statistics "{name}".{suggestion(name, KINDS)}')
    kind = KINDS[name]
    if not isinstance(kind, Kind):
        raise StatisticsError(f'"{name}" is no Kind of statistics. Give an object of a class that derives from Kind.')
    return kind


def stands_for(name: str) -> str:
    """The kind of ours that calibrators take a kind for."""
    return find_kind(name).stands_for or name
