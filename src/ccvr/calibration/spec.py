"""What a spec says about calibration: options, and a list of methods that may each change them."""

from dataclasses import dataclass
from typing import Literal

from ccvr.calibration.shrinkage import Shrinkage
from ccvr.core.errors import SpecError
from ccvr.models.transform import FeatureTransform

UNCALIBRATED = "uncalibrated"


@dataclass(frozen=True)
class CalibrationOptions:
    """How a new head is fitted. A method reads some of these; what it does not read cannot be given behind its name."""

    num_virtual: int = 2000
    """ccvr, ccvr-converged: virtual features per class (the paper's M_c)."""
    matched: bool | None = None
    """Whether draws have the very mean and covariance of their class: without it ccvr-converged does, ccvr does not."""
    priors: Literal["uniform", "counts"] = "uniform"
    """How frequent the classes are: all the same, or as in the clients' counts (num_virtual is the mean then)."""
    shrinkage: str = "none"
    """Of covariances: none, fixed:0.1, oas, or pooled:0.5 (towards the covariance that all classes share)."""
    transform: str = "none"
    """Feature transform of the new head: none, tukey or signed-tukey, with a power as in tukey:0.5."""
    transform_at: Literal["statistics", "draws"] = "statistics"
    """ccvr: statistics of transformed features, or draw raw features and transform the draws (the paper's order)."""
    kind: str = ""
    """Kind of the statistics: full, pooled, diagonal, means, kernel; without it the best that the method can use."""
    taps: str | None = None
    """Layers that are read beside the last: module paths joined by +, auto, or empty for none."""
    min_count: int = 0
    """Clients withhold classes of which they have fewer samples."""
    start: Literal["trained", "zero"] = "trained"
    """Weights that re-training starts from."""
    epochs: int = 10
    batch_size: int = 64
    lr: float = 0.001
    momentum: float = 0.9
    weight_decay: float = 1e-5
    l2: float = 1e-3
    """ccvr-converged: weight of half the sum of squares of weights and biases, for standardised features."""
    iterations: int = 300
    """ccvr-converged: most steps of L-BFGS."""
    ridge: float = 1e-3
    """ridge, kernel, cof: what is added to the diagonal, where the mean of the diagonal is 1."""
    num_features: int = 2000
    """kernel: number of random features."""
    bandwidth: float = 0.5
    """kernel: scale of the random directions, for standardised layers."""
    per_class: int = 100
    """oracle-partial: real features per class."""
    seed: int | None = None
    """Seed of the draws; without it the run's."""

    def __post_init__(self) -> None:
        least = {"num_virtual": 1, "epochs": 1, "batch_size": 1, "per_class": 1, "num_features": 1, "iterations": 1}
        for name, low in {**least, "momentum": 0, "weight_decay": 0, "l2": 0, "ridge": 0, "min_count": 0}.items():
            if not getattr(self, name) >= low:
                raise SpecError(f"calibration.{name} is {getattr(self, name)}; give at least {low}.")
        for name in ("lr", "bandwidth"):
            if not getattr(self, name) > 0:
                raise SpecError(f"calibration.{name} is {getattr(self, name)}; give a number above 0.")
        FeatureTransform.parse(self.transform)
        Shrinkage.parse(self.shrinkage)


@dataclass(frozen=True)
class CalibrationSpec(CalibrationOptions):
    """Which calibrations run on the trained model."""

    methods: tuple[str, ...] = ("ccvr", "oracle,epochs=50")
    """ccvr, ccvr-converged, lda, ridge, kernel, cof, cof-means, ncm, oracle, oracle-partial, or your own; each with its
    options behind commas: ccvr "ccvr,num_virtual=50,label=few" "oracle,epochs=50"."""
    deploy: str = ""
    """Label of the calibration that is saved as the model; "uncalibrated"; or "select": the one that wins on the
    clients' held-out parts (data.validation), if any does. Without it the first. No oracles."""


@dataclass(frozen=True)
class Calibration:
    """One calibration: a method, its options, and the label under which its head and figures are kept."""

    method: str
    label: str
    options: CalibrationOptions
