"""How far apart the classes' Gaussians are: what calibration can gain goes with it (Luo et al. 2021, 4.4)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ccvr.core.errors import AnalysisError
from ccvr.statistics.gaussians import ClassGaussians

NUM_DIRECTIONS = 500


@dataclass(frozen=True)
class Separability:
    """Sliced Wasserstein-2 distances [P, P] in float64 between the P ``classes`` [P] that have samples."""

    classes: Tensor
    distances: Tensor

    @property
    def mean(self) -> float:
        """The mean over pairs of different classes."""
        i, j = torch.triu_indices(len(self.classes), len(self.classes), offset=1)
        return self.distances[i, j].mean().item()


def separability(
    gaussians: ClassGaussians, *, rng: torch.Generator, num_directions: int = NUM_DIRECTIONS
) -> Separability:
    """SW² = E_θ [(θᵀ(mu_i − mu_j))² + (σ_i(θ) − σ_j(θ))²], σ²(θ) = θᵀ Sigma θ, over unit vectors θ.

    That is the distance of the two Gaussians along θ. The first term's expectation is ‖mu_i − mu_j‖² / d; the
    second's is a mean over random directions, the same for all pairs.
    """
    classes = gaussians.count.nonzero().flatten()
    if len(classes) < 2:
        raise AnalysisError(f"{len(classes)} classes have samples; a distance needs two. Collect more statistics.")
    mean = gaussians.mean[classes].double()
    d = mean.shape[1]
    directions = torch.randn(d, num_directions, dtype=torch.float64, generator=rng)
    directions /= directions.norm(dim=0)
    sigma = torch.stack([_projected(gaussians.cov[label].double(), directions) for label in classes.tolist()])
    apart = (mean.unsqueeze(1) - mean.unsqueeze(0)).square().sum(2) / d
    shape = torch.stack([(sigma - row).square().mean(1) for row in sigma])
    return Separability(classes, (apart + shape).sqrt())


def _projected(cov: Tensor, directions: Tensor) -> Tensor:
    """σ(θ) [L] of each direction [d, L]; rounding below 0 is 0."""
    return (directions * (cov @ directions)).sum(0).clamp(min=0).sqrt()
