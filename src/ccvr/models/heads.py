"""Heads: feature → score per class. The feature transform lives here, so no stage can disagree about it."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional

from ccvr.core.tables import Table
from ccvr.models.random_features import RandomFeatures
from ccvr.models.transform import FeatureTransform

Transform = FeatureTransform | RandomFeatures


class Head(nn.Module, ABC):
    """Scores [B, C] of features z [B, d]: score(transform(z)), with one weight row a class.

    ``taps`` are the layers of the backbone whose outputs stand before its own in z.
    """

    kind: str
    weight: nn.Parameter
    transform: Transform

    def __init__(self, transform: Transform | None = None, *, taps: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.transform = transform or FeatureTransform()
        self.taps = taps

    @property
    def rows(self) -> Tensor:
        """The weights by which features are multiplied, [C, d]."""
        return self.weight

    @abstractmethod
    def score(self, t: Tensor) -> Tensor:
        """Scores of features that are transformed already."""

    def forward(self, z: Tensor) -> Tensor:
        return self.score(self.transform(z))


class LinearHead(Head):
    """w_cᵀ t + b_c."""

    kind = "linear"

    def __init__(
        self, weight: Tensor, bias: Tensor | None, transform: Transform | None = None, *, taps: tuple[str, ...] = ()
    ) -> None:
        super().__init__(transform, taps=taps)
        self.weight = nn.Parameter(weight.detach().clone(memory_format=torch.contiguous_format))
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone())

    def score(self, t: Tensor) -> Tensor:
        return functional.linear(t, self.weight, self.bias)


class NormedHead(Head):
    """w_cᵀ t / ‖w_c‖, at training and at inference, without a bias (clsnorm; Luo et al. 2021, 3.3)."""

    kind = "normed"

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        transform: Transform | None = None,
        *,
        taps: tuple[str, ...] = (),
    ) -> None:
        super().__init__(transform, taps=taps)
        self.weight = nn.Parameter(weight.detach().clone(memory_format=torch.contiguous_format))

    @property
    def rows(self) -> Tensor:
        return functional.normalize(self.weight, dim=1)

    def score(self, t: Tensor) -> Tensor:
        return functional.linear(t, self.rows)


HEAD_KINDS: Table[type[LinearHead] | type[NormedHead]] = Table(
    "head", {"linear": LinearHead, "normed": NormedHead}, closed=True
)


def copy_head(head: Head, *, transform: Transform | None = None, start: str = "trained") -> Head:
    """A new head of the same kind: ``trained`` keeps the weights, ``zero`` forgets them; another transform if given."""
    weight: Tensor = head.weight
    bias: Tensor | None = getattr(head, "bias", None)
    if start == "zero":
        # A normed row of exact zeros has no direction and no gradient towards one.
        weight = torch.full_like(weight, 1e-3) if head.kind == "normed" else torch.zeros_like(weight)
        bias = None if bias is None else torch.zeros_like(bias)
    return HEAD_KINDS[head.kind](weight, bias, head.transform if transform is None else transform, taps=head.taps)


def shifted_head(head: Head, shift: Tensor) -> LinearHead:
    """A linear head with the scores of another one plus ``shift`` [C]."""
    bias: Tensor | None = getattr(head, "bias", None)
    total = shift if bias is None else bias.detach().double().cpu() + shift
    return LinearHead(head.rows, total.to(head.weight), head.transform, taps=head.taps)
