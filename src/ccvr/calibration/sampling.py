"""Virtual features: drawn from one Gaussian per class, class after class."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ccvr.calibration.shrinkage import Shrinkage
from ccvr.core.errors import CalibrationError
from ccvr.core.machine import require_memory
from ccvr.statistics.moments import ClassStatistics

NO_SHRINKAGE = Shrinkage()


def draw(
    statistics: ClassStatistics,
    numbers: Sequence[int],
    *,
    rng: torch.Generator,
    shrinkage: Shrinkage = NO_SHRINKAGE,
    matched: bool = False,
) -> tuple[Tensor, Tensor]:
    """``numbers[c]`` virtual features of each class c that has samples: z [M, d] float32 and labels [M].

    mu_c + noise V √max(Λ, 0) Vᵀ: the symmetric root is exact for singular covariances, and continuous in them.
    ``matched`` draws of more features than the covariance has directions have its very mean and covariance.
    """
    d = statistics.num_features
    require_memory(4 * sum(numbers) * d, "virtual features", "Lower the option num_virtual")
    mean, draws, labels = statistics.mean, [], []
    for label, (vectors, scales) in _roots(statistics, shrinkage):
        noise = torch.randn(numbers[label], d, dtype=torch.float64, generator=rng)
        along = noise @ vectors
        spread = (_matched(along, scales) if matched else along).mul_(scales) @ vectors.T
        draws.append(spread.add_(mean[label]).to(torch.float32))
        labels.append(torch.full((numbers[label],), label))
    if not draws:
        raise CalibrationError("the statistics hold no samples. Collect them from clients that have some.")
    return torch.cat(draws), torch.cat(labels)


def allocate(count: Tensor, num_virtual: int, priors: str) -> list[int]:
    """Virtual features of each class: as many for each, or in proportion to ``count``; none of an absent one."""
    present = count > 0
    if priors == "uniform":
        return (present * num_virtual).tolist()
    total = num_virtual * int(present.sum())
    return [max(1, round(total * n / int(count.sum()))) if n else 0 for n in count.tolist()]


def _matched(noise: Tensor, scales: Tensor) -> Tensor:
    """Noise [M, r] with mean 0 and covariance I in the directions that have a spread, if M is enough for that."""
    spread = scales > 1e-6 * scales.max()
    inner = noise[:, spread] - noise[:, spread].mean(0)
    if len(inner) - 1 <= inner.shape[1]:
        return noise
    factor = torch.linalg.cholesky(inner.T @ inner / (len(inner) - 1))
    white = torch.zeros_like(noise)
    white[:, spread] = torch.linalg.solve_triangular(factor, inner.T, upper=False).T
    return white


Root = tuple[Tensor, Tensor]
"""V [d, r] and √Λ [r] of a symmetric root V √Λ Vᵀ."""


def _roots(statistics: ClassStatistics, shrinkage: Shrinkage) -> Iterator[tuple[int, Root]]:
    """The root of each class's shrunk covariance; one for all where the covariance is pooled."""
    present = statistics.count.nonzero().flatten().tolist()
    pooled = statistics.pooled_covariance() if "pooled" in (statistics.kind, shrinkage.kind) else None
    if statistics.kind == "pooled" and pooled is not None:
        freedom = int(statistics.count.sum()) - len(present)
        shared = symmetric_root(shrinkage(pooled, freedom=freedom, pooled=pooled))
        yield from ((label, shared) for label in present)
        return
    for label in present:
        freedom = int(statistics.count[label]) - 1
        cov = shrinkage(statistics.covariance(label), freedom=freedom, pooled=pooled)
        is_low = statistics.kind == "full" and shrinkage.kind == "none"
        yield label, symmetric_root(cov, rank=freedom if is_low else None)


def symmetric_root(cov: Tensor, *, rank: int | None = None) -> Root:
    """V and √max(Λ, 0) of a symmetric matrix [d, d].

    A matrix that is known to be of low ``rank`` is first brought down to its range, which takes a few products with
    random vectors (Halko et al. 2011): n samples span n − 1 directions, often far fewer than d.
    """
    d = len(cov)
    if rank is None or rank + 10 > d // 2:
        values, vectors = torch.linalg.eigh(cov)
    else:
        probe = torch.randn(d, rank + 10, dtype=cov.dtype, generator=torch.Generator().manual_seed(0))
        basis = torch.linalg.qr(cov @ probe).Q
        values, within = torch.linalg.eigh(basis.T @ cov @ basis)
        vectors = basis @ within
    return vectors, values.clamp(min=0).sqrt()
