"""CCVR: virtual features from the class Gaussians, and a head that is re-trained on them."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ccvr.calibration.calibrator import Descent, FromStatistics
from ccvr.calibration.retrain import converge, retrain, starting_head
from ccvr.calibration.sampling import allocate, draw
from ccvr.calibration.shrinkage import Shrinkage
from ccvr.models.heads import Head
from ccvr.models.transform import FeatureTransform
from ccvr.statistics.moments import ClassStatistics


@dataclass(frozen=True, kw_only=True)
class Virtual(FromStatistics):
    """What both ways to re-train on virtual features have in common."""

    kinds: ClassVar[tuple[str, ...]] = ("full", "pooled", "diagonal")

    num_virtual: int = 2000
    """Virtual features per class (the paper's M_c)."""
    priors: Literal["uniform", "counts"] = "uniform"
    """How frequent the classes are: all the same, or as in the clients' counts (num_virtual is the mean then)."""
    shrinkage: str = "none"
    """Of covariances: none, fixed:0.1, oas, or pooled:0.5 (towards the covariance that all classes share)."""
    transform_at: Literal["statistics", "draws"] = "statistics"
    """Statistics of transformed features, or draw raw features and transform the draws (the paper's order)."""
    matched: bool = False
    """Whether draws have the very mean and covariance of their class."""

    @property
    def statistics_transform(self) -> str:
        return str(FeatureTransform()) if self.transform_at == "draws" else super().statistics_transform

    def virtual(self, statistics: ClassStatistics, *, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Virtual features as the new head will see them, and their labels."""
        numbers = allocate(statistics.count, self.num_virtual, self.priors)
        shrinkage = Shrinkage.parse(self.shrinkage)
        z, y = draw(statistics, numbers, rng=rng, shrinkage=shrinkage, matched=self.matched)
        transform = FeatureTransform.parse(self.transform)
        return z if str(transform) == statistics.source.transform else transform(z), y


@dataclass(frozen=True, kw_only=True)
class Ccvr(Virtual, Descent):
    """Re-train the head on features that are drawn from the merged class Gaussians (Luo et al. 2021, 4)."""

    def fit(self, head: Head, statistics: ClassStatistics, *, rng: torch.Generator) -> Head:
        t, y = self.virtual(statistics, rng=rng)
        return retrain(starting_head(head, t, self.transform, self.start), t, y, self, rng=rng)


@dataclass(frozen=True, kw_only=True)
class CcvrConverged(Virtual):
    """ccvr with its objective solved: draws of the very moments, L-BFGS with an L2 penalty until nothing moves."""

    matched: bool = True
    """Whether draws have the very mean and covariance of their class."""
    start: Literal["trained", "zero"] = "trained"
    """Weights that the solver starts from."""
    l2: float = 1e-3
    """Weight of half the sum of squares of weights and biases, for standardised features."""
    iterations: int = 300
    """Most steps of L-BFGS."""

    def fit(self, head: Head, statistics: ClassStatistics, *, rng: torch.Generator) -> Head:
        t, y = self.virtual(statistics, rng=rng)
        start = starting_head(head, t, self.transform, self.start)
        return converge(start, t, y, l2=self.l2, iterations=self.iterations)
