"""Feature transforms that make features more Gaussian before the head reads them."""

import math
from dataclasses import dataclass

from torch import Tensor

from ccvr.core.errors import SpecError
from ccvr.core.fields import name_and_number
from ccvr.core.tables import suggestion

KINDS = ("none", "tukey", "signed-tukey")


@dataclass(frozen=True)
class FeatureTransform:
    """t(z): ``none`` z · ``tukey`` max(z, 0)^p, ReLU then Tukey's power · ``signed-tukey`` sign(z)|z|^p.

    The text form is ``kind`` or ``kind:power``; the paper uses ``tukey:0.5``.
    """

    kind: str = "none"
    power: float = 0.5

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise SpecError(f'no feature transform "{self.kind}".{suggestion(self.kind, KINDS)}')
        if not 0 < self.power <= 1:
            raise SpecError(f"the power of a feature transform is {self.power}; give a number above 0, at most 1.")

    @property
    def is_steep(self) -> bool:
        """Whether the slope at 0 is infinite."""
        return self.kind != "none" and self.power < 1

    @property
    def lowest(self) -> float:
        """What no transformed feature is below."""
        return 0.0 if self.kind == "tukey" else -math.inf

    def __call__(self, z: Tensor) -> Tensor:
        if self.kind == "none":
            return z
        if self.kind == "tukey":
            return z.clamp(min=0) ** self.power
        return z.sign() * z.abs() ** self.power

    def __str__(self) -> str:
        return "none" if self.kind == "none" else f"{self.kind}:{self.power}"

    @classmethod
    def parse(cls, text: str) -> "FeatureTransform":
        kind, power = name_and_number(text, "feature transform", "power", "tukey:0.5")
        return cls(kind) if power is None else cls(kind, power)
