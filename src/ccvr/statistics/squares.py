"""Σ z zᵀ of one block of samples, as rows while they are fewer than features and as a matrix afterwards.

A block Q = Σ z zᵀ [d, d] is AᵀA of rows A [m, d]. A sample is a row of weight 1. The scatter W = RᵀR of a client is the
rows R of weight 0, and its class means are one row √n mu of weight √n each. Every class has n = Σ w² and Σ z = wᵀA, so

    W = FᵀF, where F = A − w mu_c takes the mean of each row's class away.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

BLOCK = 256
"""Rows that wait until they are added to a matrix: a product of few rows is slow."""
COLUMNS = 128
"""Columns of a product that are made at once: what is below the diagonal is not computed."""


@dataclass(frozen=True)
class Rows:
    """Rows z [m, d] of weights [m] and labels [m]: samples, or class means."""

    z: Tensor
    weights: Tensor
    labels: Tensor

    @classmethod
    def of_samples(cls, z: Tensor, label: int) -> "Rows":
        return cls(z, torch.ones(len(z), dtype=torch.float64), torch.full((len(z),), label))

    @classmethod
    def of_means(cls, count: Tensor, total: Tensor, labels: Tensor) -> "Rows":
        """√n mu of each class, from its count [P] and total [P, d]."""
        weights = count.clamp(min=1).double().sqrt()
        return cls(total / weights.unsqueeze(1), weights, labels)

    def centred(self, labels: Tensor, mean: Tensor) -> Tensor:
        """Z − w mu_c [m, d], where mean [P, d] belongs to sorted labels [P]."""
        return self.z - self.weights.unsqueeze(1) * mean[torch.searchsorted(labels, self.labels)]


@dataclass
class Square:
    """Σ z zᵀ [d, d] of one block.

    Equal rows give equal bits in any order, as long as all are kept: sums run over sorted parts.
    """

    width: int
    num_labels: int
    """Classes that a block may hold. So many rows more than features are kept as rows, because means take them away."""
    rows: list[Rows] = field(default_factory=list)
    factors: list[Tensor] = field(default_factory=list)
    """Upper-trapezoidal R [r, d] of weight 0."""
    matrix: Tensor | None = None
    """Σ z zᵀ [d, d] of what is no longer kept as rows."""

    def copy(self) -> "Square":
        matrix = None if self.matrix is None else self.matrix.clone()
        return Square(self.width, self.num_labels, [*self.rows], [*self.factors], matrix)

    def add_(self, other: "Square") -> None:
        self.rows += other.rows
        self.factors += other.factors
        if other.matrix is not None:
            self.matrix = other.matrix.clone() if self.matrix is None else self.matrix.add_(other.matrix)
        self._settle()

    def add_rows(self, rows: Rows) -> None:
        self.rows.append(rows)
        self._settle()

    def _settle(self) -> None:
        """Add what waits to the matrix, once it is enough."""
        enough = self.width + self.num_labels if self.matrix is None else min(self.width, BLOCK)
        if sum(len(rows.z) for rows in self.rows) + sum(map(len, self.factors)) >= enough:
            self.matrix = self.product()
            self.rows, self.factors = [], []

    def product(self) -> Tensor:
        """Q = Σ z zᵀ [d, d]; the matrix itself takes what waits."""
        return sum_of_products(self.width, [rows.z for rows in self.rows], self.factors, self.matrix)

    def trace(self) -> float:
        """Tr Q."""
        return float(self.diagonal().sum())

    def diagonal(self) -> Tensor:
        """Σ z² [d]."""
        squares = (
            torch.zeros(self.width, dtype=torch.float64) if self.matrix is None else self.matrix.diagonal().clone()
        )
        for part in in_order([*(rows.z for rows in self.rows), *self.factors]):
            squares += part.square().sum(0)
        return squares

    def centred(self, labels: Tensor, mean: Tensor) -> list[Tensor]:
        """The rows F [m, d] of W, of a block without matrix; mean [P, d] belongs to sorted labels [P]."""
        return [rows.centred(labels, mean) for rows in self.rows]


def in_order(parts: Iterable[Tensor]) -> list[Tensor]:
    """Tensors in an order that their numbers alone decide."""
    several = list(parts)
    return several if len(several) < 2 else sorted(several, key=lambda part: (part.shape, part.numpy().tobytes()))


def sum_of_products(
    width: int, rows: Iterable[Tensor], factors: Iterable[Tensor], matrix: Tensor | None = None
) -> Tensor:
    """``matrix`` + Σ AᵀA of rows A and upper-trapezoidal factors A, in place where there is a matrix."""
    total = torch.zeros(width, width, dtype=torch.float64) if matrix is None else matrix
    plain = in_order(rows)
    if plain:
        _add_product(total, plain[0] if len(plain) == 1 else torch.cat(plain), trapezoidal=False)
    for factor in in_order(factors):
        _add_product(total, factor, trapezoidal=True)
    return total


def _add_product(total: Tensor, rows: Tensor, *, trapezoidal: bool) -> None:
    """Total += AᵀA of rows A [m, d], exactly symmetric. Of a trapezoid only what is not zero is read."""
    d = len(total)
    for start in range(0, d, COLUMNS):
        end = min(start + COLUMNS, d)
        part = rows[:end] if trapezoidal else rows
        total[start:end, start:].addmm_(part[:, start:end].T, part[:, start:])
        square = total[start:end, start:end]
        square.copy_(square.triu() + square.triu(1).T)
        total[end:, start:end] = total[start:end, end:].T


@dataclass
class Squares:
    """The blocks that are there, by label; block 0 of kinds that have one for all classes."""

    width: int
    num_labels: int
    blocks: dict[int, Square] = field(default_factory=dict)

    def copy(self) -> "Squares":
        return Squares(self.width, self.num_labels, {label: block.copy() for label, block in self.blocks.items()})

    def block(self, label: int) -> Square:
        """The block of a label, a new one where there is none."""
        return self.blocks.setdefault(label, Square(self.width, self.num_labels))

    def add_(self, other: "Squares") -> None:
        for label, block in other.blocks.items():
            self.block(label).add_(block)

    def pooled(self, num_labels: int) -> "Squares":
        """All blocks as one."""
        total = Squares(self.width, num_labels)
        for label in sorted(self.blocks):
            total.block(0).add_(self.blocks[label])
        return total
