"""What calibration will bring, from statistics alone."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ccvr.calibration.calibrate import fit
from ccvr.calibration.sampling import draw
from ccvr.core.arguments import require_whole
from ccvr.core.errors import CalibrationError
from ccvr.core.seeds import derive_seed
from ccvr.models.scoring import ClassCounts, count
from ccvr.models.settings import settled
from ccvr.statistics.moments import ClassStatistics

MAX_DRAWS = 10**6


@dataclass(frozen=True)
class Forecast:
    """Accuracies in percent on features drawn from the class Gaussians; None for a class that nobody has."""

    separability: float
    """Mean over pairs of classes of the sliced Wasserstein distance between their Gaussians."""
    before: float
    after: float
    recall_before: tuple[float | None, ...]
    recall_after: tuple[float | None, ...]
    method: str
    condition: float
    """Largest over smallest positive eigenvalue of the pooled covariance."""
    rank: int
    samples_per_dimension: float

    @property
    def gain(self) -> float:
        return self.after - self.before

    @property
    def advice(self) -> str:
        """A sentence to act on."""
        if self.samples_per_dimension < 1:
            return (
                f"Fewer samples than features ({self.samples_per_dimension:.2f} per dimension): shrink the covariances "
                'or collect kind="pooled", and choose by ccvr.select.'
            )
        if self.gain < -1:
            return f"The head is {-self.gain:.1f} points better than what {self.method} would make: keep it."
        if self.gain < 1:
            return (
                f"The head is nearly as good as the features allow ({self.gain:+.1f} points): calibration may not pay."
            )
        return (
            f"Calibrate with {self.method}: expect about {self.gain:+.1f} points, less where features are not Gaussian."
        )

    def __str__(self) -> str:
        return (
            f"forecast on Gaussian features: {self.before:.1f} % before, {self.after:.1f} % after {self.method}; "
            f"separability {self.separability:.3g}, rank {self.rank}, condition {self.condition:.2g}, "
            f"{self.samples_per_dimension:.1f} samples per dimension. {self.advice}"
        )


@settled
def forecast(
    model: nn.Module, statistics: ClassStatistics, method: str | None = None, *, num_draws: int = 1000, seed: int = 0
) -> Forecast:
    """Score the model's head and a calibrated one on ``num_draws`` virtual features a class, new to both."""
    require_whole("num_draws", num_draws, 1, MAX_DRAWS)
    head, fitted, chosen = fit(model, statistics, method, seed=seed)
    if str(head.transform) != statistics.source.transform:
        raise CalibrationError(
            f'the head reads "{head.transform}" features; the statistics are of "{statistics.source.transform}" ones. '
            f'Collect with transform="{head.transform}" for a forecast.'
        )
    rng = torch.Generator().manual_seed(derive_seed(seed, "forecast"))
    z, y = draw(statistics, (statistics.count > 0).long().mul(num_draws).tolist(), rng=rng)
    with torch.no_grad():
        before = count(head.score(z[:, -head.weight.shape[1] :]), y)  # behind taps stands what the head reads
        drawn_for = str(fitted.transform) == statistics.source.transform
        after = count(fitted.score(z) if drawn_for else fitted(z), y)
    values = torch.linalg.eigvalsh(statistics.pooled_covariance())
    kept = values[values > 1e-10 * values.max()]
    smallest = int(statistics.count[statistics.count > 0].min())
    return Forecast(
        separability=mean_sliced_distance(statistics, rng=rng),
        before=before.accuracy,
        after=after.accuracy,
        recall_before=_recall(before),
        recall_after=_recall(after),
        method=chosen.name,
        condition=(kept.max() / kept.min()).item() if len(kept) else 1.0,
        rank=len(kept),
        samples_per_dimension=smallest / statistics.num_features,
    )


def _recall(counts: ClassCounts) -> tuple[float | None, ...]:
    return tuple(counts.recall)


def mean_sliced_distance(statistics: ClassStatistics, *, num_projections: int = 200, rng: torch.Generator) -> float:
    """The mean over all pairs of classes that are there; 0 for a single one."""
    present = statistics.count.nonzero().flatten().tolist()
    means, stds = project(statistics, present, num_projections=num_projections, rng=rng)
    squares = (means.unsqueeze(0) - means.unsqueeze(1)) ** 2 + (stds.unsqueeze(0) - stds.unsqueeze(1)) ** 2
    distances = squares.mean(2).sqrt()
    number = len(present)
    return (distances.sum() / max(number * (number - 1), 1)).item()


def project(
    statistics: ClassStatistics, classes: list[int], *, num_projections: int, rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation [C₊, L] of each class Gaussian along L random directions.

    Along a direction two Gaussians are (m₁ − m₂)² + (s₁ − s₂)² apart, the squared Wasserstein-2 distance.
    """
    directions = torch.randn(statistics.num_features, num_projections, dtype=torch.float64, generator=rng)
    directions /= directions.norm(dim=0)
    mean = statistics.mean
    stds = [((statistics.covariance(label) @ directions) * directions).sum(0).clamp(min=0).sqrt() for label in classes]
    return mean[classes] @ directions, torch.stack(stds)
