"""Kinds of class statistics: how much of the second moments a client keeps.

Each is a row: the shape of what is kept beside count [C] and total [C, d] = Σ z, how features enter it, and the part
that is left when the class means are taken out (what travels) and put back.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ccvr.core.errors import StatisticsError
from ccvr.core.tables import Table, suggestion


@dataclass(frozen=True)
class Kind:
    """One kind. ``square``: the last two axes of ``second`` are a symmetric matrix, of which a triangle travels."""

    description: str
    shape: Callable[[int, int], tuple[int, ...]]
    """(C, d) → shape of ``second``."""
    add: Callable[[Tensor, int, Tensor], None]
    """Add features [n, d] of one class to ``second``, in place."""
    of_means: Callable[[Tensor, Tensor], Tensor]
    """(count [C], total [C, d]) → what ``second`` would be if every feature were its class mean."""
    square: bool = True
    by_class: bool = True
    """Whether the first axis of ``second`` is the class."""


def _outer_of_means(count: Tensor, total: Tensor) -> Tensor:
    """n_c mu_c mu_cᵀ."""
    scaled = total / count.clamp(min=1).double().sqrt().unsqueeze(1)
    return scaled.unsqueeze(2) * scaled.unsqueeze(1)


def _add_outer(second: Tensor, label: int, z: Tensor) -> None:
    second[label].addmm_(z.T, z)


def _add_pooled(second: Tensor, label: int, z: Tensor) -> None:
    second.addmm_(z.T, z)


def _pooled_of_means(count: Tensor, total: Tensor) -> Tensor:
    scaled = total / count.clamp(min=1).double().sqrt().unsqueeze(1)
    return scaled.T @ scaled


def _add_squares(second: Tensor, label: int, z: Tensor) -> None:
    second[label] += z.square().sum(0)


def _add_nothing(second: Tensor, label: int, z: Tensor) -> None:
    """Means alone: ``second`` is made of them when the client is done."""


FULL = Kind("Σ z zᵀ of each class: one covariance per class.", lambda c, d: (c, d, d), _add_outer, _outer_of_means)
POOLED = Kind(
    "Σ z zᵀ over all classes: one covariance that they share.",
    lambda c, d: (d, d),
    _add_pooled,
    _pooled_of_means,
    by_class=False,
)
DIAGONAL = Kind(
    "Σ z² of each class: variances of the features.",
    lambda c, d: (c, d),
    _add_squares,
    lambda n, s: s.square() / n.clamp(min=1).unsqueeze(1),
    square=False,
)
MEANS = Kind(
    "Means of each class alone; the server makes Σ_k n_kc mu_kc mu_kcᵀ of them.",
    lambda c, d: (0,),
    _add_nothing,
    _outer_of_means,
)
KERNEL = replace(POOLED, description="Pooled statistics of random features of several layers.")

KINDS: Table[Kind] = Table(
    "kind of statistics",
    {"full": FULL, "pooled": POOLED, "diagonal": DIAGONAL, "means": MEANS, "kernel": KERNEL},
    closed=True,
)


def reduce(second: Tensor, kind: str, to: str) -> Tensor | None:
    """``second`` of a smaller kind; None where it cannot be had."""
    if kind == to:
        return second
    if kind == "full" and to == "pooled":
        return second.sum(0)
    if kind == "full" and to == "diagonal":
        return torch.diagonal(second, dim1=1, dim2=2).contiguous()
    return None


def require_kind(kind: str) -> None:
    if kind not in KINDS:
        raise StatisticsError(f'no kind of statistics "{kind}".{suggestion(kind, KINDS)}')
