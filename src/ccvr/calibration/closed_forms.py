"""Heads that need no training: linear algebra on merged statistics."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ccvr.calibration.calibrator import Ask, Calibrator, FromStatistics, seed_of
from ccvr.calibration.shrinkage import Shrinkage
from ccvr.core.errors import CalibrationError
from ccvr.core.seeds import derive_seed
from ccvr.models.heads import Head, LinearHead, Transform
from ccvr.models.random_features import RandomFeatures
from ccvr.models.transform import FeatureTransform
from ccvr.statistics.collect import random_features
from ccvr.statistics.moments import ClassStatistics
from ccvr.statistics.request import Request

EXCLUDED = -1e9
"""Bias of a class that nobody has: it is never predicted."""


NOISE = 1e-6
"""Eigenvalues below this part of the largest are rounding: statistics travel in float32, and heads are float32."""


@dataclass(frozen=True, kw_only=True)
class ClosedForm(FromStatistics):
    """What heads without training have in common."""

    kinds: ClassVar[tuple[str, ...]] = ("pooled", "full")
    gives: ClassVar[str] = "linear"

    taps: str = ""
    """Layers that are read beside the last: module paths joined by +, auto, or empty for none."""

    @property
    def layers(self) -> str:
        return self.taps


@dataclass(frozen=True, kw_only=True)
class Lda(ClosedForm):
    """w_c = S⁻¹ mu_c, b_c = −½ mu_cᵀ S⁻¹ mu_c + log pi_c, S the shrunk pooled covariance of standardised features."""

    priors: Literal["uniform", "counts"] = "uniform"
    """How frequent the classes are: all the same, or as in the clients' counts."""
    shrinkage: str = "none"
    """Of the covariance: none, fixed:0.1, oas, or pooled:0.5."""

    def fit(self, head: Head, statistics: ClassStatistics, *, rng: torch.Generator) -> Head:
        require_samples(statistics)
        pooled = statistics.pooled_covariance()
        if not pooled.any():
            raise CalibrationError("no class has two different samples, so there is no covariance. Use ncm.")
        scale = _scale(pooled)
        cov = pooled / (scale.unsqueeze(1) * scale)
        freedom = int(statistics.count.sum()) - int((statistics.count > 0).sum())
        cov = Shrinkage.parse(self.shrinkage)(cov, freedom=freedom, pooled=cov)
        centre = statistics.total.sum(0) / statistics.count.sum()
        mean = (statistics.mean - centre) / scale
        weight = solve(cov, mean.T).T
        prior = statistics.count / statistics.count.sum() if self.priors == "counts" else torch.ones(len(weight))
        bias = -0.5 * (weight * mean).sum(1) + prior.double().clamp(min=1e-300).log()
        weight = weight / scale
        return linear_head(statistics, weight, bias - weight @ centre)


@dataclass(frozen=True, kw_only=True)
class Ridge(ClosedForm):
    """W = (G + λ N I)⁻¹ B on centred and standardised features, G = Σ z zᵀ, B = [Σ_c z] (Fed3R, AFL)."""

    ridge: float = 1e-3
    """What is added to the diagonal, where the mean of the diagonal is 1."""

    @property
    def label_prior(self) -> str:
        return ""

    def fit(self, head: Head, statistics: ClassStatistics, *, rng: torch.Generator) -> Head:
        return ridge_head(statistics, self.ridge)


@dataclass(frozen=True, kw_only=True)
class Kernel(Calibrator):
    """ridge on random features of several layers, in two exchanges with the clients."""

    kinds: ClassVar[tuple[str, ...]] = ("kernel",)
    gives: ClassVar[str] = "linear"

    min_count: int = 0
    """Clients withhold classes of which they have fewer samples."""
    taps: str = "auto"
    """Layers that are read beside the last: module paths joined by +, auto, or empty for none."""
    ridge: float = 1e-3
    """What is added to the diagonal, where the mean of the diagonal is 1."""
    num_features: int = 2000
    """Number of random features."""
    bandwidth: float = 0.5
    """Scale of the random directions, for standardised layers."""

    @property
    def label_prior(self) -> str:
        return ""

    def fit(self, head: Head, statistics: ClassStatistics, *, rng: torch.Generator) -> Head:
        return ridge_head(statistics, self.ridge)

    def request(self) -> Request:
        """The first exchange: means and variances, which standardise the layers."""
        return Request("diagonal", "none", self.taps, self.min_count)

    def exchanges(self, width: int) -> list[tuple[Request, int]]:
        return [(self.request(), width), (replace(self.request(), kind="kernel"), self.num_features)]

    def gather(self, ask: Ask, *, seed: int) -> ClassStatistics:
        projection = random_features(
            ask(self.request()),
            num_features=self.num_features,
            bandwidth=self.bandwidth,
            seed=derive_seed(seed_of(self, seed), "projection"),
        )
        return ask(replace(self.request(), kind="kernel", projection=projection))


def ridge_head(statistics: ClassStatistics, ridge: float) -> Head:
    """Least squares on one-hot labels with a penalty."""
    require_samples(statistics)
    count, n = statistics.count.double(), int(statistics.count.sum())
    mean = statistics.total.sum(0) / n
    between = statistics.mean - mean
    covariance = (statistics.pooled_scatter() + (between.T * count) @ between) / n
    scale = _scale(covariance)
    correlation = covariance / (scale.unsqueeze(1) * scale)
    d = len(scale)
    right = (between * count.unsqueeze(1) / n / scale).T
    weight = solve(correlation + ridge * torch.eye(d, dtype=torch.float64), right).T / scale
    return linear_head(statistics, weight, count / n - weight @ mean)


@dataclass(frozen=True, kw_only=True)
class Cof(ClosedForm):
    """W = (Σ_c W_c + N m mᵀ + γ I)⁻¹ B with columns of length 1: ridge without the scatter between classes.

    FedCOF's head (Goswami et al. 2025), on true covariances; γ is ``ridge`` times the mean eigenvalue.
    """

    ridge: float = 1e-3
    """What is added to the diagonal, where the mean of the diagonal is 1."""

    @property
    def label_prior(self) -> str:
        return ""

    def fit(self, head: Head, statistics: ClassStatistics, *, rng: torch.Generator) -> Head:
        require_samples(statistics)
        total = statistics.total.sum(0)
        gram = self.scatter(statistics) + torch.outer(total, total) / int(statistics.count.sum())
        d = len(gram)
        gram = gram + self.ridge * gram.trace() / d * torch.eye(d, dtype=torch.float64)
        weight = solve(gram, statistics.total.T).T
        weight = weight / weight.norm(dim=1, keepdim=True).clamp(min=1e-300)
        return linear_head(statistics, weight, torch.zeros(len(weight), dtype=torch.float64))

    def scatter(self, statistics: ClassStatistics) -> Tensor:
        """Σ_c W_c."""
        return statistics.pooled_scatter()


@dataclass(frozen=True, kw_only=True)
class CofMeans(Cof):
    """cof with each class's covariance from the clients' means alone (Goswami et al. 2025).

    S_c = Σ_k n_kc (mu_kc − mu_c)(mu_kc − mu_c)ᵀ / (K_c − 1), of rank K_c − 1 at most.
    """

    kinds: ClassVar[tuple[str, ...]] = ("means",)

    def scatter(self, statistics: ClassStatistics) -> Tensor:
        scatter = torch.zeros(statistics.num_features, statistics.num_features, dtype=torch.float64)
        for label in (statistics.clients > 1).nonzero().flatten().tolist():
            among_clients = statistics.scatter(label) / (int(statistics.clients[label]) - 1)
            scatter += (int(statistics.count[label]) - 1) * among_clients
        return scatter


@dataclass(frozen=True, kw_only=True)
class Ncm(ClosedForm):
    """The nearest class mean: w_c = mu_c, b_c = −½ ‖mu_c‖²."""

    kinds: ClassVar[tuple[str, ...]] = ("means", "diagonal", "pooled", "full")

    def fit(self, head: Head, statistics: ClassStatistics, *, rng: torch.Generator) -> Head:
        return linear_head(statistics, statistics.mean, -0.5 * statistics.mean.square().sum(1))


def linear_head(statistics: ClassStatistics, weight: Tensor, bias: Tensor) -> Head:
    """The head of a closed form: reads what the statistics are of; a class that nobody has is never predicted."""
    require_samples(statistics)
    present = statistics.count > 0
    bias = torch.where(present, bias, EXCLUDED)
    weight = torch.where(present.unsqueeze(1), weight, 0.0)
    return LinearHead(weight.float(), bias.float(), transform_of(statistics), taps=statistics.source.taps)


def require_samples(statistics: ClassStatistics) -> None:
    if not statistics.count.any():
        raise CalibrationError("the statistics hold no samples. Collect them from clients that have some.")


def transform_of(statistics: ClassStatistics) -> Transform:
    """What turns raw features into those of the statistics."""
    if statistics.projection is None:
        return FeatureTransform.parse(statistics.source.transform)
    if statistics.projection.digest != statistics.source.projection:
        raise CalibrationError("the projection in these statistics does not make their random features.")
    return RandomFeatures.of(statistics.projection)


def _scale(cov: Tensor) -> Tensor:
    """Standard deviations; 1 for a feature that never changes."""
    std = cov.diagonal().clamp(min=0).sqrt()
    return torch.where(std > 1e-6 * std.max(), std, 1.0)


def solve(matrix: Tensor, right: Tensor) -> Tensor:
    """M⁻¹ R of a positive definite M, or M⁺ R of a singular one: fewer samples than features is no error."""
    factor, info = torch.linalg.cholesky_ex(matrix)
    if int(info) == 0 and factor.diagonal().min() ** 2 > NOISE * factor.diagonal().max() ** 2:
        return torch.cholesky_solve(right, factor)
    values, vectors = torch.linalg.eigh(matrix)
    kept = values > NOISE * values.max()
    solution: Tensor = (vectors[:, kept] / values[kept]) @ (vectors[:, kept].T @ right)
    return solution
