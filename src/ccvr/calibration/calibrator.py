"""What a calibrator is: a frozen dataclass whose fields are its options, from merged statistics to a new head."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from ccvr.calibration.shrinkage import Shrinkage
from ccvr.core.errors import CalibrationError, SpecError
from ccvr.core.seeds import derive_seed
from ccvr.models.heads import Head
from ccvr.models.settings import standard_settings
from ccvr.models.transform import FeatureTransform
from ccvr.statistics.kinds import stands_for
from ccvr.statistics.moments import ClassStatistics
from ccvr.statistics.request import Request

Ask = Callable[[Request], ClassStatistics]
"""Asks all clients, and merges what they answer."""
AT_LEAST = {
    **dict.fromkeys(("num_virtual", "epochs", "batch_size", "per_class", "num_features", "iterations"), 1),
    **dict.fromkeys(("momentum", "weight_decay", "l2", "ridge", "min_count"), 0),
}
ABOVE_ZERO = ("lr", "bandwidth")
PARSED = {"transform": FeatureTransform.parse, "shrinkage": Shrinkage.parse}


@dataclass(frozen=True, kw_only=True)
class Calibrator:
    """A way to a new head. A subclass is a frozen dataclass; its fields are its options."""

    kinds: ClassVar[tuple[str, ...]] = ("full",)
    """Kinds of statistics that it can use, the best first."""
    raw: ClassVar[bool] = False
    """Whether it takes all clients' features and labels in place of statistics; its head cannot be deployed then."""
    gives: ClassVar[str] = ""
    """Kind of its heads, such as linear; empty where it is the trained head's."""

    seed: int | None = None
    """Seed of the draws; without it the run's."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _require_possible(field.name, getattr(self, field.name))

    def fit(self, head: Head, statistics: Any, *, rng: torch.Generator) -> Head:
        """A new head from the trained one, which is left as it is, and the clients' merged statistics."""
        raise NotImplementedError

    @property
    def label_prior(self) -> str:
        """Label frequencies that the head's scores assume: ``uniform``, or those of the clients' ``counts``.

        Empty where scores are not log-probabilities.
        """
        return str(getattr(self, "priors", "uniform"))

    def request(self) -> Request:
        """What is asked of every client."""
        return Request(self.kinds[0])

    def exchanges(self, width: int) -> list[tuple[Request, int]]:
        """What is asked in turn, and the number of features in each answer, where layers give ``width``."""
        return [(self.request(), width)]

    def gather(self, ask: Ask, *, seed: int) -> ClassStatistics:
        """The statistics that it needs."""
        return ask(self.request())


def _require_possible(name: str, value: Any) -> None:
    """Options that calibrators share mean the same, and have the same limits."""
    if name in AT_LEAST and not value >= AT_LEAST[name]:
        raise SpecError(f"{name} is {value}; give at least {AT_LEAST[name]}.")
    if name in ABOVE_ZERO and not value > 0:
        raise SpecError(f"{name} is {value}; give a number above 0.")
    if name in PARSED:
        PARSED[name](value)


@dataclass(frozen=True, kw_only=True)
class FromStatistics(Calibrator):
    """What calibrators from statistics of the head's input have in common."""

    transform: str = "none"
    """Feature transform of the new head: none, tukey or signed-tukey, with a power as in tukey:0.5."""
    kind: str = ""
    """Kind of the statistics; without it the best that the method can use."""
    min_count: int = 0
    """Clients withhold classes of which they have fewer samples."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind and stands_for(self.kind) not in self.kinds:
            raise SpecError(
                f'kind is "{self.kind}", which this method cannot use. It can use: {", ".join(self.kinds)}.'
            )

    @property
    def layers(self) -> str:
        """Layers that are read beside the last."""
        return ""

    @property
    def statistics_transform(self) -> str:
        """Of which features statistics are wanted."""
        return str(FeatureTransform.parse(self.transform))

    def request(self) -> Request:
        return Request(self.kind or self.kinds[0], self.statistics_transform, self.layers, self.min_count)


@dataclass(frozen=True, kw_only=True)
class Descent(Calibrator):
    """What calibrators that re-train the head by SGD have in common."""

    start: Literal["trained", "zero"] = "trained"
    """Weights that re-training starts from."""
    epochs: int = 10
    """Passes over the features."""
    batch_size: int = 64
    """Features in a step."""
    lr: float = 0.001
    """Learning rate."""
    momentum: float = 0.9
    """Momentum of SGD."""
    weight_decay: float = 1e-5
    """Weight decay of SGD."""


def fit_head(method: Calibrator, head: Head, given: Any, *, seed: int) -> Head:
    """The new head of a method.

    Args:
        method: the calibrator with its options.
        head: the trained head; it is left as it is.
        given: merged ``ClassStatistics``, or all clients' features and labels for a ``raw`` method.
        seed: seed of the draws, where the method has none of its own.

    Raises:
        CalibrationError: the statistics hold too little for the method, or the method gives no head.
    """
    rng = torch.Generator().manual_seed(derive_seed(seed_of(method, seed), "calibration"))
    usable = given if method.raw else as_usable(method, given)
    with standard_settings(), torch.enable_grad():
        fitted = method.fit(head, usable, rng=rng)
    if not isinstance(fitted, Head):
        raise CalibrationError(
            f"the calibrator {type(method).__name__} gave a {type(fitted).__name__}; it must be a Head."
        )
    for name, tensor in fitted.state_dict().items():
        if not tensor.isfinite().all():
            raise CalibrationError(
                f"the head that {type(method).__name__} gave has numbers in {name} that are not finite. "
                "Use other options, or another calibrator."
            )
    return fitted


def seed_of(method: Calibrator, seed: int) -> int:
    """The method's own seed, or the one of the run."""
    return seed if method.seed is None else method.seed


def as_usable(method: Calibrator, statistics: ClassStatistics) -> ClassStatistics:
    """The statistics as a kind that the method can use; an error where they hold too little."""
    wanted = getattr(method, "kind", "")
    if wanted not in ("", statistics.kind):
        return statistics.as_kind(wanted)
    if stands_for(statistics.kind) in method.kinds:
        return statistics
    if statistics.kind == "full" and "pooled" in method.kinds:
        return statistics.as_kind("pooled")
    needed = " or ".join(method.kinds)
    raise CalibrationError(
        f"{type(method).__name__} needs {needed} statistics; these are {statistics.kind}. Collect with that kind."
    )
