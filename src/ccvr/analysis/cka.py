"""Linear centred kernel alignment: how alike several models' features of the same samples are (Kornblith et al. 2019).

cka(X, Y) = ‖XᵀY‖²_F / (‖XᵀX‖_F ‖YᵀY‖_F) on centred columns; Luo et al. 2021 print squares in the denominator, which
would not be 1 for Y = X. It does not change with shifts, rotations and scales of the features.
"""

from collections.abc import Iterable, Sequence
from itertools import combinations_with_replacement

import torch
from torch import Tensor

from ccvr.core.errors import AnalysisError

MAX_FEATURES = 5000
"""Wider features are compared by their Gram matrices."""
MAX_GRAM_SAMPLES = 4000
ROWS = 1024

Pair = tuple[int, int]
Squares = dict[Pair, float]
"""‖X_iᵀ X_j‖²_F of pairs of models."""


def cka(x: Tensor, y: Tensor) -> float:
    """The alignment of x [N, d₁] and y [N, d₂], 0 to 1; nan where features are constant and say nothing."""
    return pairwise_cka([x, y])[0, 1].item()


def pairwise_cka(features: Sequence[Tensor]) -> Tensor:
    """[K, K] float64 of K matrices [N, d_k]. In memory is one pair's product at a time, or K Gram matrices."""
    _require_same_samples(features)
    if max(x.shape[1] for x in features) > MAX_FEATURES:
        return gram_cka(features)
    squares = {(i, j): cross_square(features[i], features[j]) for i, j in all_pairs(len(features))}
    return alignments(squares, len(features))


def cross_square(x: Tensor, y: Tensor) -> float:
    """‖XᵀY‖²_F on centred columns. In memory is d₁ d₂ numbers in float64, whatever N is."""
    sums = CrossSums([(0, 1)])
    for start in range(0, len(x), ROWS):
        sums.update([x[start : start + ROWS], y[start : start + ROWS]])
    return sums.squares()[0, 1]


def all_pairs(num_models: int) -> list[Pair]:
    """All (i, j) with i ≤ j, each model with itself among them."""
    return list(combinations_with_replacement(range(num_models), 2))


class CrossSums:
    """Σ x_i x_jᵀ of pairs of models, in float64: takes their features batch by batch, d_i d_j numbers a pair.

    Sums are of x − x₀ with the first sample x₀, so that features far from 0 do not cancel.
    """

    def __init__(self, pairs: Iterable[Pair]) -> None:
        self.pairs = list(pairs)
        self._count = 0
        self._first: dict[int, Tensor] = {}
        self._total: dict[int, Tensor] = {}
        self._products: dict[Pair, Tensor] = {}

    def update(self, features: Sequence[Tensor] | dict[int, Tensor]) -> None:
        """One batch: features [B, d_k] of the same samples by each model k that is in a pair."""
        models = sorted({k for pair in self.pairs for k in pair})
        _require_same_samples([features[k] for k in models])
        if not len(features[models[0]]):
            return
        centred = {k: self._shifted(k, features[k].double()) for k in models}
        self._count += len(centred[models[0]])
        for k, x in centred.items():
            self._total[k] = self._total.get(k, 0) + x.sum(0)
        for i, j in self.pairs:
            if (i, j) not in self._products:
                self._products[i, j] = x.new_zeros(centred[i].shape[1], centred[j].shape[1])
            self._products[i, j].addmm_(centred[i].T, centred[j])

    def _shifted(self, k: int, x: Tensor) -> Tensor:
        return x - self._first.setdefault(k, x[0].clone())

    def squares(self) -> Squares:
        """‖X_iᵀ X_j‖²_F on centred columns. The sums are left as they are."""
        found = {}
        for (i, j), product in self._products.items():
            means = self._total[i] / self._count
            found[i, j] = product.addr(means, self._total[j], alpha=-1).square_().sum().item()
        return found


def gram_cka(features: Sequence[Tensor]) -> Tensor:
    """The same [K, K] from the Gram matrices X Xᵀ [N, N], for at most 4,000 samples of any width."""
    _require_same_samples(features)
    if len(features[0]) > MAX_GRAM_SAMPLES:
        raise AnalysisError(
            f"{len(features[0]):,} samples have {max(x.shape[1] for x in features):,} features, more than "
            f"{MAX_FEATURES:,}. Give at most {MAX_GRAM_SAMPLES:,} samples of them."
        )
    grams = [centred_gram(x) for x in features]
    squares = {(i, j): torch.vdot(grams[i].view(-1), grams[j].view(-1)).item() for i, j in all_pairs(len(grams))}
    return alignments(squares, len(grams))


def centred_gram(x: Tensor) -> Tensor:
    """X Xᵀ [N, N] in float64 with centred columns, summed over blocks of columns."""
    gram = torch.zeros(len(x), len(x), dtype=torch.float64)
    for block in x.split(ROWS, dim=1):
        columns = block.double() - block[:1].double()  # exact where they are constant
        columns -= columns.mean(0)
        gram.addmm_(columns, columns.T)
    return gram


def alignments(squares: Squares, num_models: int) -> Tensor:
    """The matrix [K, K] of all pairs' squares."""
    found = torch.zeros(num_models, num_models, dtype=torch.float64)
    for (i, j), square in squares.items():
        found[i, j] = found[j, i] = square
    own = found.diagonal().sqrt()
    return found / own.outer(own)  # 0 / 0 is nan


def _require_same_samples(features: Sequence[Tensor]) -> None:
    shapes = [list(x.shape) for x in features]
    if not shapes or any(len(shape) != 2 or shape[0] != shapes[0][0] for shape in shapes):
        raise AnalysisError(f"features have the shapes {shapes}; give matrices [N, d] of the same N samples.")
