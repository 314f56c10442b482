"""Shrinkage of covariances, from merged statistics alone."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ccvr.core.errors import SpecError
from ccvr.core.fields import name_and_number
from ccvr.core.tables import suggestion

KINDS = ("none", "fixed", "oas", "pooled")


@dataclass(frozen=True)
class Shrinkage:
    """``none`` S · ``fixed:a`` (1 − a) S + a tr(S)/d I · ``oas`` with a from S · ``pooled:a`` (1 − a) S + a S_p."""

    kind: str = "none"
    amount: float = 0.1

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise SpecError(f'no shrinkage "{self.kind}".{suggestion(self.kind, KINDS)}')
        if not 0 <= self.amount <= 1:
            raise SpecError(f"the amount of shrinkage is {self.amount}; give a number from 0 to 1.")

    @classmethod
    def parse(cls, text: str) -> "Shrinkage":
        kind, amount = name_and_number(text, "shrinkage", "amount", "fixed:0.1")
        return cls(kind) if amount is None else cls(kind, amount)

    def __call__(self, cov: Tensor, *, freedom: int, pooled: Tensor | None = None) -> Tensor:
        """The shrunk covariance [d, d]; ``freedom`` is the number of samples behind it less the number of means."""
        if self.kind == "none":
            return cov
        if self.kind == "pooled":
            assert pooled is not None
            return (1 - self.amount) * cov + self.amount * pooled
        amount = self.amount if self.kind == "fixed" else oas(cov, freedom)
        d = len(cov)
        return (1 - amount) * cov + amount * cov.trace() / d * torch.eye(d, dtype=cov.dtype)


def oas(cov: Tensor, freedom: int) -> float:
    """Oracle approximating shrinkage (Chen et al. 2010, Eq. 23).

    rho = min(1, [(1 − 2/d) tr S² + tr² S] / [(n + 1 − 2/d) (tr S² − tr² S / d)]), 1 where the denominator is 0.
    """
    d = len(cov)
    trace, squares = cov.trace().item(), cov.square().sum().item()
    below = (freedom + 1 - 2 / d) * (squares - trace**2 / d)
    return min(1.0, ((1 - 2 / d) * squares + trace**2) / below) if below > 0 else 1.0
