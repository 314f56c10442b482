"""Class statistics: count, Σ z and second moments per class. Merging is addition."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ccvr.core.errors import StatisticsError
from ccvr.models.random_features import Projection
from ccvr.models.settings import settled
from ccvr.statistics import wire
from ccvr.statistics.by_class import ByClass
from ccvr.statistics.factor import factor_of_matrix, factor_of_rows
from ccvr.statistics.gaussians import ClassGaussians
from ccvr.statistics.kinds import Kind, find_kind
from ccvr.statistics.limits import require_magnitudes, require_room
from ccvr.statistics.source import Source, identity, require_same
from ccvr.statistics.squares import Rows, Square, Squares, sum_of_products

ROUNDING_OF_SQUARES, ROUNDING_OF_ROWS = 1e-13, 1e-26
"""What rounding leaves of Σ |z|² when the means are taken away: from the sums of squares, from each row."""


@dataclass(frozen=True, eq=False)
class ClassStatistics:
    """count [C] int64, total [C, d] = Σ t(z) and ``second``, by kind, in float64.

    ``zeros`` is the identity of ``+``, which commutes; a class with 0 or 1 samples is no special case. Statistics of
    different kinds or sources do not add up. Memory is only for classes that are there, and for second moments no more
    than for the samples or the bytes that came.
    """

    kind: str
    source: Source
    count: Tensor
    clients: Tensor
    """[C] int64: how many clients gave samples of each class."""
    withheld: Tensor
    """[] int64: samples of classes that were too small to be sent."""
    totals: ByClass
    seconds: ByClass | Squares
    """Σ z zᵀ by block: a class, or 0 where all classes share it."""
    projection: Projection | None = None
    """What made the random features, where ``kind`` is kernel."""

    @classmethod
    def zeros(
        cls,
        num_classes: int,
        num_features: int,
        *,
        kind: str = "full",
        source: Source | None = None,
        projection: Projection | None = None,
    ) -> "ClassStatistics":
        nothing, none = torch.zeros(0, dtype=torch.int64), torch.zeros(num_classes, dtype=torch.int64)
        found = find_kind(kind)
        shape = found.shape(num_classes, num_features)
        return cls(
            kind,
            source or Source(),
            none,
            none.clone(),
            torch.zeros((), dtype=torch.int64),
            ByClass(nothing, torch.zeros(0, num_features, dtype=torch.float64)),
            Squares(num_features, _labels_of(found, num_classes))
            if found.factored
            else ByClass(nothing, torch.zeros(0, *shape[found.by_class :], dtype=torch.float64)),
            projection,
        )

    @classmethod
    def of_sums(
        cls,
        kind: str,
        source: Source,
        count: Tensor,
        total: Tensor,
        second: Tensor,
        clients: Tensor,
        withheld: Tensor,
        projection: Projection | None = None,
    ) -> "ClassStatistics":
        """Statistics of sums over all classes, which they keep as they are: total [C, d] and ``second``."""
        num_classes, found = len(count), find_kind(kind)
        totals = ByClass(torch.arange(num_classes), total)
        seconds = _seconds(found, second, num_classes)
        return cls(kind, source, count, clients, withheld, totals, seconds, projection)

    def with_room(self) -> "ClassStatistics":
        """The same with sums of all classes in memory, to be added to in place."""
        totals = ByClass(torch.arange(self.num_classes), self.total)
        if isinstance(self.seconds, Squares):
            return replace(self, totals=totals)
        second = torch.zeros(self._kind.shape(self.num_classes, self.num_features), dtype=torch.float64)
        return replace(self, totals=totals, seconds=_seconds(self._kind, second, self.num_classes))

    @property
    @settled
    def total(self) -> Tensor:
        """Σ t(z) [C, d]."""
        return self.totals.dense(self.num_classes)

    @property
    @settled
    def second(self) -> Tensor:
        """Σ z zᵀ or what the kind keeps of it, in its shape: of all classes, though nobody may have some."""
        if isinstance(self.seconds, ByClass):
            return self.seconds.dense(self.num_classes) if self._kind.by_class else self.seconds.values[0]
        d = self.num_features
        if self._kind.made_of_means and not self.seconds.blocks:
            return torch.zeros(0, dtype=torch.float64)
        second = torch.zeros(self.num_classes if self._kind.by_class else 1, d, d, dtype=torch.float64)
        for label, block in self.seconds.blocks.items():
            second[label] = block.copy().product()
        return second if self._kind.by_class else second[0]

    @property
    def num_classes(self) -> int:
        return len(self.count)

    @property
    def num_features(self) -> int:
        return self.totals.values.shape[1]

    @property
    def num_bytes(self) -> int:
        """What one client with these counts sends, but for a header of some hundred bytes."""
        return wire.payload_bytes(self.kind, self.count, self.num_features, clients=self.clients)

    def __str__(self) -> str:
        left_out = f", {int(self.withheld):,} more withheld" if self.withheld else ""
        return (
            f"{self.kind} statistics of {int(self.count.sum()):,} samples{left_out}: "
            f"{int((self.count > 0).sum())} of {self.num_classes} classes, {self.num_features:,} features, "
            f"{self.num_bytes:,} bytes"
        )

    # --- merging ----------------------------------------------------------------------------------------------------

    def __add__(self, other: "ClassStatistics") -> "ClassStatistics":
        total = self.copy()
        total.add_(other)
        return total

    def add_(self, other: "ClassStatistics") -> None:
        """``self + other``, in place: the server folds one client after the other in constant memory.

        Raises:
            StatisticsError: they do not add up, or their counts are more than can be counted.
        """
        self.require_alike(other)
        require_room(self.count, other.count, self.clients, other.clients, self.withheld, other.withheld)
        for mine, theirs in zip(self._counts(), other._counts(), strict=True):
            mine.add_(theirs)
        self.totals.add_(other.totals)
        self.seconds.add_(other.seconds)  # type: ignore[arg-type]  # of one kind

    def copy(self) -> "ClassStatistics":
        count, clients, withheld = (part.clone() for part in self._counts())
        return replace(
            self,
            count=count,
            clients=clients,
            withheld=withheld,
            totals=self.totals.copy(),
            seconds=self.seconds.copy(),
        )

    def _counts(self) -> tuple[Tensor, ...]:
        return self.count, self.clients, self.withheld

    def require_alike(self, other: "ClassStatistics") -> None:
        """Refuse statistics that do not add up with these, by the name of what differs."""
        require_same(self._identity(), other._identity())
        if self.projection is not None and other.projection is not None and self.projection != other.projection:
            raise StatisticsError(
                "statistics with different projections of the same name do not add up. One of them is forged."
            )

    def require_expected(self, other: "ClassStatistics") -> None:
        """Refuse statistics that do not add up with these, or whose means and spreads are far beyond these.

        Of no samples, or of features that are all zero, these say nothing about magnitudes.
        """
        self.require_alike(other)
        expected = self.second_moments()
        if len(expected) and expected.any() and other._kind.exact:
            norm, feature = expected.sum(1).max().sqrt(), expected.max().sqrt()
            require_magnitudes(other.means_of(other._present()), other.second_moments(), float(norm), float(feature))

    def second_moments(self) -> Tensor:
        """Σ z² / n of each block that is there, [B, d]."""
        blocks = self._blocks()
        counts = torch.stack([self.count[self._labels(block)].sum() for block in blocks]) if blocks else self.count[:0]
        if not blocks or not self.totals.values.numel():
            return self.totals.values[:0]
        return torch.stack([self._squares(block) for block in blocks]) / counts.unsqueeze(1)

    def _squares(self, block: int) -> Tensor:
        """Σ z² [d] of a block."""
        if isinstance(self.seconds, Squares):
            return self.seconds.block(block).diagonal()
        second = self.seconds.at(torch.tensor([block]))[0]
        return second.diagonal() if self._kind.square else second

    def _identity(self) -> dict[str, object]:
        return identity(self.kind, self.source, self.num_classes, self.num_features)

    def as_kind(self, kind: str) -> "ClassStatistics":
        """The same as a smaller kind: full statistics hold pooled and diagonal ones."""
        if kind == self.kind:
            return self
        if kind not in ("pooled", "diagonal") or not self._kind.has_matrices:
            raise StatisticsError(f'these are {self.kind} statistics, not {kind}. Collect them with kind="{kind}".')
        return replace(self.copy(), kind=kind, seconds=self._seconds_as(kind))

    def _seconds_as(self, kind: str) -> ByClass | Squares:
        if isinstance(self.seconds, Squares) and kind == "pooled":
            return self.seconds.pooled(self.num_classes)
        if isinstance(self.seconds, Squares):
            labels = sorted(self.seconds.blocks)
            diagonals = [self.seconds.blocks[label].diagonal() for label in labels]
            values = torch.stack(diagonals) if diagonals else self.totals.values[:0]
            return ByClass(torch.tensor(labels, dtype=torch.int64), values)
        second = self.second.sum(0) if kind == "pooled" else self.second.diagonal(dim1=1, dim2=2).contiguous()
        return _seconds(find_kind(kind), second, self.num_classes)

    # --- what they say ----------------------------------------------------------------------------------------------

    @property
    def mean(self) -> Tensor:
        """mu_c [C, d]; zeros where nobody has the class."""
        return self.total / self.count.clamp(min=1).unsqueeze(1)

    def scatter(self, label: int) -> Tensor:
        """W_c = Σ (z − mu_c)(z − mu_c)ᵀ of one class, or its diagonal; exactly 0 where n_c ≤ 1."""
        if not self._kind.by_class:
            return self._scatter(0)
        if self.count[label]:
            return self._scatter(label)
        return torch.zeros(self._kind.shape(1, self.num_features)[1:] or (self.num_features,) * 2, dtype=torch.float64)

    def pooled_scatter(self) -> Tensor:
        """Σ_c W_c [d, d], the scatter within classes."""
        total = torch.zeros(self.num_features, self.num_features, dtype=torch.float64)
        for block in self._blocks():
            scatter = self._scatter(block)
            total += scatter if self._kind.square else torch.diag(scatter)
        return total

    def _blocks(self) -> list[int]:
        """The blocks that are there: classes, or all of them together."""
        present = self._present().tolist()
        return present if self._kind.by_class else [0][: len(present)]

    def _present(self) -> Tensor:
        return self.count.nonzero().flatten()

    def _labels(self, block: int) -> Tensor:
        """The classes of a block."""
        return torch.tensor([block]) if self._kind.by_class else self._present()

    def means_of(self, classes: Tensor) -> Tensor:
        return self.totals.at(classes) / self.count[classes].clamp(min=1).unsqueeze(1)

    def _scatter(self, block: int) -> Tensor:
        """What is left of ``second`` when the means are taken out, [d, d] or [d]."""
        labels = self._labels(block)
        if isinstance(self.seconds, Squares):
            square = self.seconds.block(block)
            if square.matrix is None:
                rows = square.centred(labels, self.means_of(labels))
                left = sum_of_products(self.num_features, rows, square.factors)
                return self._without_rounding(left, labels, ROUNDING_OF_ROWS * square.trace())
            second = square.copy().product()
        else:
            second = self.seconds.at(torch.tensor([block]))[0]
        left = second - self._kind.of_means(self.count[labels], self.totals.at(labels)).reshape(second.shape)
        whole = float(second.trace() if self._kind.square else second.sum())
        return self._without_rounding(left, labels, ROUNDING_OF_SQUARES * whole)

    def _without_rounding(self, left: Tensor, labels: Tensor, rounding: float) -> Tensor:
        if not self._kind.exact:
            return left
        several = (self._kind.spread_over(self.count, self.clients)[labels] > 1).any()
        if not several or (left.trace() if self._kind.square else left.sum()) <= rounding:
            return torch.zeros_like(left)
        return left if self._kind.square else left.clamp(min=0)

    @cached_property
    def _kind(self) -> Kind:
        return find_kind(self.kind)

    def covariance(self, label: int) -> Tensor:
        """Sigma_c [d, d]: W_c / (n_c − 1), of the class itself; of pooled statistics the same for every class."""
        if not self._kind.has_covariances:
            raise StatisticsError(f'{self.kind} statistics hold no covariance of a class. Collect with kind="full".')
        if not self._kind.by_class:
            return self.pooled_covariance()
        cov = self.scatter(label) / max(int(self.count[label]) - 1, 1)
        return cov if self._kind.square else torch.diag(cov)

    def pooled_covariance(self) -> Tensor:
        """S_p = Σ W_c / (N − C₊), C₊ the number of classes that are there."""
        freedom = int(self.count.sum()) - int((self.count > 0).sum())
        return self.pooled_scatter() / max(freedom, 1)

    def gaussians(self) -> ClassGaussians:
        """One Gaussian per class, all covariances in memory."""
        cov = torch.stack([self.covariance(label) for label in range(self.num_classes)])
        return ClassGaussians(self.count.clone(), self.mean, cov)

    # --- bytes ------------------------------------------------------------------------------------------------------

    def to_bytes(self, *, dtype: torch.dtype | None = None) -> bytes:
        """What a client sends. ``dtype`` of the scatter: float32 where it loses nothing that matters, else float64."""
        classes = self._present()
        parts = wire.Parts(
            classes, self.count[classes], self.means_of(classes), self.clients[classes], int(self.withheld)
        )
        return wire.encode(
            self.kind, self.source, self.num_classes, parts, self._travelling(parts), self.projection, dtype=dtype
        )

    def _travelling(self, parts: wire.Parts) -> Iterable[Tensor]:
        """What travels of each block: the factor of its scatter, or the scatter."""
        if not isinstance(self.seconds, Squares):
            return map(self._scatter, self._blocks())
        ranks = wire.ranks(self._kind, parts.count, parts.clients, self.num_features)
        return map(self._factor, self._blocks(), ranks)

    def _factor(self, block: int, rank: int) -> Tensor:
        """R [rank, d] of the block's scatter."""
        if not rank:
            return torch.zeros(0, self.num_features, dtype=torch.float64)
        assert isinstance(self.seconds, Squares)
        square, labels = self.seconds.block(block), self._labels(block)
        squares = square.diagonal()
        if square.matrix is not None:
            return factor_of_matrix(self._scatter(block), rank, squares)
        rows = torch.cat([*square.centred(labels, self.means_of(labels)), *square.factors])
        return factor_of_rows(rows, rank, squares.sqrt())

    @classmethod
    def from_bytes(cls, blob: bytes, *, like: "ClassStatistics | None" = None, kind: str = "") -> "ClassStatistics":
        """The statistics in a blob of ``to_bytes``; bytes that were cut, altered or never ours are refused.

        With ``like``, so are statistics that do not add up with those, before memory for them is asked for. ``kind`` is
        one of the user's own that may be in the blob.
        """
        found = wire.decode(blob, kind=kind if like is None else like.kind)
        if like is not None:
            require_same(like._identity(), identity(found.kind, found.source, found.num_classes, found.num_features))
        try:
            statistics = cls._of(found)
        except (RuntimeError, MemoryError) as error:
            reason = str(error).partition("\n")[0]
            raise StatisticsError(f"these statistics do not fit into memory ({reason}).") from error
        if like is not None:
            like.require_expected(statistics)
        return statistics

    @classmethod
    def _of(cls, found: wire.Decoded) -> "ClassStatistics":
        parts, kind = found.parts, find_kind(found.kind)
        whole = cls.zeros(
            found.num_classes, found.num_features, kind=found.kind, source=found.source, projection=found.projection
        )
        whole.count[parts.classes] = parts.count
        whole.clients[parts.classes] = parts.clients
        whole.withheld.fill_(parts.withheld)
        totals = ByClass(parts.classes, parts.mean * parts.count.clamp(min=1).unsqueeze(1))
        whole = replace(whole, totals=totals)
        if isinstance(whole.seconds, Squares):
            whole._fill(whole.seconds, found)
            return whole
        blocks = torch.tensor(whole._blocks(), dtype=torch.int64)
        centres = kind.of_means(parts.count, totals.values).reshape(len(blocks), *whole.seconds.values.shape[1:])
        scatters = list(found.scatters)
        values = centres + torch.stack(scatters) if scatters else centres
        return replace(whole, seconds=ByClass(blocks, values))

    def _fill(self, squares: Squares, found: wire.Decoded) -> None:
        """Put the rows of each block in: its class means, and the factor or the matrix of its scatter."""
        for block, factor in zip(self._blocks(), found.factors, strict=False):
            squares.block(block).factors.extend([factor] if len(factor) else [])
        for block, scatter in zip(self._blocks(), found.scatters, strict=False):
            squares.block(block).matrix = scatter
        self._add_means(squares)

    def _add_means(self, squares: Squares) -> None:
        classes = self._present()
        if not len(classes):
            return
        rows = Rows.of_means(self.count[classes], self.totals.at(classes), classes)
        if self._kind.by_class:
            parts = zip(rows.z.split(1), rows.weights.split(1), rows.labels.split(1), strict=True)
            for label, part in zip(classes.tolist(), parts, strict=True):
                squares.block(label).rows.append(Rows(*part))
        else:
            squares.block(0).rows.append(rows)

    def with_rows_of_means(self) -> "ClassStatistics":
        """One client's statistics whose second moments are those of its class means."""
        squares = Squares(self.num_features, _labels_of(self._kind, self.num_classes))
        self._add_means(squares)
        return replace(self, seconds=squares)


def _labels_of(kind: Kind, num_classes: int) -> int:
    """How many classes a block may hold."""
    return 1 if kind.by_class else num_classes


def _seconds(kind: Kind, second: Tensor, num_classes: int) -> ByClass | Squares:
    """``second`` in the shape of the kind, by block; views of it, where samples are not kept as rows."""
    blocks = second if kind.by_class else second.unsqueeze(0)
    if not kind.factored:
        return ByClass(torch.arange(num_classes if kind.by_class else 1), blocks)
    width, num_labels = second.shape[-1], _labels_of(kind, num_classes)
    squares = Squares(width, num_labels)
    for label, block in enumerate(blocks):
        squares.blocks[label] = Square(width, num_labels, matrix=block)
    return squares
