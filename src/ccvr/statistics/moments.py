"""Class statistics: count, Σ z and second moments per class. Merging is addition."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ccvr.core.errors import StatisticsError
from ccvr.models.random_features import Projection
from ccvr.statistics import wire
from ccvr.statistics.gaussians import ClassGaussians
from ccvr.statistics.kinds import Kind, find_kind
from ccvr.statistics.source import Source, identity, require_same


@dataclass(frozen=True)
class ClassStatistics:
    """count [C] int64, total [C, d] = Σ t(z) and ``second``, by kind, in float64.

    ``zeros`` is the identity of ``+``, which commutes; a class with 0 or 1 samples is no special case. Statistics of
    different kinds or sources do not add up.
    """

    kind: str
    source: Source
    count: Tensor
    total: Tensor
    second: Tensor
    clients: Tensor
    """[C] int64: how many clients gave samples of each class."""
    withheld: Tensor
    """[] int64: samples of classes that were too small to be sent."""
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
        return cls(
            kind,
            source or Source(),
            torch.zeros(num_classes, dtype=torch.int64),
            torch.zeros(num_classes, num_features, dtype=torch.float64),
            torch.zeros(find_kind(kind).shape(num_classes, num_features), dtype=torch.float64),
            torch.zeros(num_classes, dtype=torch.int64),
            torch.zeros((), dtype=torch.int64),
            projection,
        )

    @property
    def num_classes(self) -> int:
        return self.total.shape[0]

    @property
    def num_features(self) -> int:
        return self.total.shape[1]

    @property
    def num_bytes(self) -> int:
        """What one client with these classes sends, but for a header of some hundred bytes."""
        return wire.payload_bytes(self.kind, int((self.count > 0).sum()), self.num_features)

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
        """``self + other``, in place: the server folds one client after the other in constant memory."""
        self.require_alike(other)
        if not self.second.numel():
            own = self._second()
            self.second.resize_(own.shape).copy_(own)
        self.second.add_(other._second())
        for mine, theirs in zip(self._sums(), other._sums(), strict=True):
            if mine is not self.second:
                mine.add_(theirs)

    def _second(self) -> Tensor:
        """``second``; one client's means leave it empty, because it is made of them."""
        return self.second if self.second.numel() else self._kind.of_means(self.count, self.total)

    def copy(self) -> "ClassStatistics":
        count, total, second, clients, withheld = (part.clone() for part in self._sums())
        return ClassStatistics(self.kind, self.source, count, total, second, clients, withheld, self.projection)

    def _sums(self) -> tuple[Tensor, ...]:
        return self.count, self.total, self.second, self.clients, self.withheld

    def require_alike(self, other: "ClassStatistics") -> None:
        """Refuse statistics that do not add up with these, by the name of what differs."""
        require_same(self._identity(), other._identity())
        if self.projection is not None and other.projection is not None and self.projection != other.projection:
            raise StatisticsError(
                "statistics with different projections of the same name do not add up. One of them is forged."
            )

    def _identity(self) -> dict[str, object]:
        return identity(self.kind, self.source, self.num_classes, self.num_features)

    def as_kind(self, kind: str) -> "ClassStatistics":
        """The same as a smaller kind: full statistics hold pooled and diagonal ones."""
        second = self.second if kind == self.kind else self._kind.reduced(self.second, kind)
        if second is None:
            raise StatisticsError(f'these are {self.kind} statistics, not {kind}. Collect them with kind="{kind}".')
        return ClassStatistics(
            kind, self.source, self.count, self.total, second, self.clients, self.withheld, self.projection
        )

    # --- what they say ----------------------------------------------------------------------------------------------

    @property
    def mean(self) -> Tensor:
        """mu_c [C, d]; zeros where nobody has the class."""
        return self.total / self.count.clamp(min=1).unsqueeze(1)

    def scatter(self, label: int) -> Tensor:
        """W_c = Σ (z − mu_c)(z − mu_c)ᵀ of one class, or its diagonal; exactly 0 where n_c ≤ 1."""
        return self._scatter(slice(label, label + 1))

    def pooled_scatter(self) -> Tensor:
        """Σ_c W_c [d, d], the scatter within classes."""
        total = torch.zeros(self.num_features, self.num_features, dtype=torch.float64)
        for block in self._blocks():
            scatter = self._scatter(block)
            total += scatter if self._kind.square else torch.diag(scatter)
        return total

    def _blocks(self) -> list[slice]:
        """The classes behind each matrix of ``second``: one that is there, or all together."""
        present = self.count.nonzero().flatten().tolist()
        return [slice(label, label + 1) for label in present] if self._kind.by_class else [slice(None)][: len(present)]

    def _scatter(self, block: slice) -> Tensor:
        """What is left of ``second`` when the means are taken out, [d, d] or [d]."""
        if not self.second.numel():
            return torch.zeros(self.num_features, self.num_features, dtype=torch.float64)
        second = self.second[block]
        scatter = second - self._kind.of_means(self.count[block], self.total[block])
        axes = 2 if self._kind.square else 1
        scatter, second = (t.reshape(t.shape[-axes:]) for t in (scatter, second))
        if not self._kind.exact:
            return scatter
        samples = self._kind.spread_over(self.count, self.clients)
        left, whole = (t.trace() if self._kind.square else t.sum() for t in (scatter, second))
        if not (samples[block] > 1).any() or left <= 1e-13 * whole:  # rounding of the sums and no more
            return torch.zeros_like(scatter)
        return scatter if self._kind.square else scatter.clamp(min=0)

    @property
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
        classes = self.count.nonzero().flatten()
        from_one_client = not (self.clients > 1).any()
        blocks = [] if self._kind.made_of_means and from_one_client else self._blocks()
        return wire.encode(
            self.kind,
            self.source,
            self.num_classes,
            wire.Parts(classes, self.count[classes], self.mean[classes], self.clients[classes], int(self.withheld)),
            map(self._scatter, blocks),
            self.projection,
            dtype=dtype,
        )

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
            return cls._of(found)
        except (RuntimeError, MemoryError) as error:
            reason = str(error).partition("\n")[0]
            raise StatisticsError(f"these statistics do not fit into memory ({reason}).") from error

    @classmethod
    def _of(cls, found: wire.Decoded) -> "ClassStatistics":
        parts, classes = found.parts, found.parts.classes
        whole = cls.zeros(
            found.num_classes, found.num_features, kind=found.kind, source=found.source, projection=found.projection
        )
        whole.count[classes] = parts.count
        whole.total[classes] = parts.mean * parts.count.clamp(min=1).unsqueeze(1)
        whole.clients[classes] = parts.clients
        whole.withheld.fill_(parts.withheld)
        if whole._kind.made_of_means:
            if found.packed is None:
                return whole
            shape = whole._kind.merged_shape(found.num_classes, found.num_features)
            whole = replace(whole, second=torch.zeros(shape, dtype=torch.float64))
        blocks = whole._blocks()
        for block, scatter in zip(blocks if found.packed is not None else [], found.scatters(), strict=True):
            whole.second[block] = scatter
        for block in blocks:
            whole.second[block] += whole._kind.of_means(whole.count[block], whole.total[block])
        return whole
