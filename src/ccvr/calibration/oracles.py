"""Oracles: heads that are re-trained on the clients' real features, which no federation may collect."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ccvr.calibration.calibrator import Descent
from ccvr.calibration.retrain import retrain, starting_head
from ccvr.core.errors import CalibrationError
from ccvr.models.heads import Head
from ccvr.models.transform import FeatureTransform


@dataclass(frozen=True, kw_only=True)
class Oracle(Descent):
    """Re-train the head on every client's real features: the bound of what ccvr can reach."""

    kinds: ClassVar[tuple[str, ...]] = ()
    raw: ClassVar[bool] = True

    transform: str = "none"
    """Feature transform of the new head: none, tukey or signed-tukey, with a power as in tukey:0.5."""

    @property
    def label_prior(self) -> str:
        return "counts"

    def fit(self, head: Head, features: tuple[Tensor, Tensor], *, rng: torch.Generator) -> Head:
        z, y = features
        t = FeatureTransform.parse(self.transform)(z)
        return retrain(starting_head(head, t, self.transform, self.start), t, y, self, rng=rng)


@dataclass(frozen=True, kw_only=True)
class OraclePartial(Oracle):
    """oracle on some random real features of each class, or on all of a class that has fewer."""

    per_class: int = 100
    """Real features per class."""

    @property
    def label_prior(self) -> str:
        return "uniform"

    def fit(self, head: Head, features: tuple[Tensor, Tensor], *, rng: torch.Generator) -> Head:
        z, y = features
        most = int(y.bincount(minlength=1).max())
        if len(y) and self.per_class > most:
            raise CalibrationError(
                f"per_class is {self.per_class:,}, and no class has more than {most:,} samples. "
                "Give fewer, or use oracle, which takes all."
            )
        order = torch.randperm(len(y), generator=rng)
        chosen = torch.cat([order[y[order] == label][: self.per_class] for label in range(head.weight.shape[0])])
        return super().fit(head, (z[chosen], y[chosen]), rng=rng)
