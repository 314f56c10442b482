"""What a spec says about calibration: options, and a list of methods that may each change them."""

import dataclasses
import re
from dataclasses import dataclass
from typing import Literal, get_type_hints

from ccvr.core.errors import SpecError
from ccvr.core.fields import parse, require_finite
from ccvr.core.tables import suggestion
from ccvr.models.transform import FeatureTransform


@dataclass(frozen=True)
class CalibrationOptions:
    """How a new head is fitted."""

    num_virtual: int = 2000
    """ccvr: virtual features per class (the paper's M_c)."""
    allocation: Literal["equal", "proportional"] = "equal"
    """ccvr: as many for each class, or in proportion to its samples with num_virtual as the mean."""
    transform: str = "none"
    """Feature transform of the new head: none, tukey or signed-tukey, with a power as in tukey:0.5."""
    transform_at: Literal["statistics", "draws"] = "statistics"
    """ccvr: statistics of transformed features, or draw raw features and transform the draws (the paper's order)."""
    start: Literal["trained", "zero"] = "trained"
    """Weights that re-training starts from."""
    epochs: int = 10
    batch_size: int = 64
    lr: float = 0.001
    momentum: float = 0.9
    weight_decay: float = 1e-5
    per_class: int = 100
    """oracle-partial: real features per class."""
    seed: int | None = None
    """Seed of the draws; without it the run's."""

    def __post_init__(self) -> None:
        least = {"num_virtual": 1, "epochs": 1, "batch_size": 1, "per_class": 1, "momentum": 0, "weight_decay": 0}
        for name, low in least.items():
            if not getattr(self, name) >= low:
                raise SpecError(f"calibration.{name} is {getattr(self, name)}; give at least {low}.")
        if not self.lr > 0:
            raise SpecError(f"calibration.lr is {self.lr}; give a number above 0.")
        FeatureTransform.parse(self.transform)


@dataclass(frozen=True)
class CalibrationSpec(CalibrationOptions):
    """Which calibrations run on the trained model."""

    methods: tuple[str, ...] = ("ccvr", "oracle,epochs=50")
    """Methods, each with its own options behind commas: ccvr "ccvr,num_virtual=50,label=few" "oracle,epochs=50"."""
    deploy: str = ""
    """Label of the calibration that is saved as the model, or "uncalibrated"; without it the first. No oracles."""


@dataclass(frozen=True)
class Calibration:
    """One calibration: a method, its options, and the label under which its head and figures are kept."""

    method: str
    label: str
    options: CalibrationOptions


UNCALIBRATED = "uncalibrated"


def parse_calibration(text: str, base: CalibrationOptions) -> Calibration:
    """``method[,option=value…][,label=…]`` on top of the section's options."""
    method, *pairs = text.split(",")
    hints = get_type_hints(CalibrationOptions)
    changes: dict[str, str] = {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        if key not in hints and key != "label":
            raise SpecError(f'no option "{key}" in calibration "{text}".{suggestion(key, [*hints, "label"])}')
        if key in changes:
            raise SpecError(f'calibration "{text}" gives {key} twice. Leave one out.')
        changes[key] = value
    label = changes.pop("label", method.rpartition(":")[2])
    if not re.fullmatch(r"[\w+-][\w.+-]{0,99}", label) or label == UNCALIBRATED:
        raise SpecError(
            f'calibration label "{label}" is not usable; use at most 100 letters, digits and . _ + -, '
            f"not a dot first, not {UNCALIBRATED}."
        )
    options = {field.name: getattr(base, field.name) for field in dataclasses.fields(CalibrationOptions)}
    options |= {key: parse(hints[key], value, f"calibration.{key}") for key, value in changes.items()}
    parsed = CalibrationOptions(**options)
    require_finite(parsed, "calibration.")
    return Calibration(method, label, parsed)
