"""Algorithms that give each client a model of its own."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from ccvr.algorithms.algorithm import Algorithm
from ccvr.algorithms.objectives import LocalContext, LocalObjective
from ccvr.algorithms.spec import TrainingSpec
from ccvr.core.errors import SpecError
from ccvr.data.batches import Batch

NORMALISATIONS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
"""Layers that normalise; batch and instance normalisation derive from the first."""


@dataclass(frozen=True)
class FedPer(Algorithm):
    """Each client keeps a head of its own; the backbone is averaged (Arivazhagan et al. 2019)."""

    def is_private(self, name: str) -> bool:
        return name.startswith("head.")


@dataclass(frozen=True)
class LgFedAvg(Algorithm):
    """Each client keeps a backbone of its own; the head is averaged (Liang et al. 2020)."""

    def is_private(self, name: str) -> bool:
        return name.startswith("backbone.")


@dataclass(frozen=True)
class FedBn(Algorithm):
    """Each client keeps its normalisation layers, with their moments; all else is averaged (Li et al. 2021)."""

    def private_names(self, model: nn.Module) -> frozenset[str]:
        layers = [
            path for path, each in model.named_modules(remove_duplicate=False) if isinstance(each, NORMALISATIONS)
        ]
        found = frozenset(f"{path}.{name}" for path in layers for name in model.get_submodule(path).state_dict())
        if not found:
            raise SpecError(
                "fedbn keeps normalisation layers with the clients, and the model has none. "
                "Choose a model with BatchNorm, LayerNorm or GroupNorm, such as mobilenet-v2, or another algorithm."
            )
        return found


class HeadFirst(LocalObjective):
    """The head alone in the first epochs, the body alone in the others; the part that rests gets no gradients."""

    def __init__(self, context: LocalContext, *, head_epochs: int) -> None:
        super().__init__(context)
        self.head_epochs = head_epochs
        named = list(context.model.named_parameters())
        self.parts = [[p for name, p in named if name.startswith("head.") == is_head] for is_head in (True, False)]
        self.resting = self.parts[1]

    def start_epoch(self, epoch: int) -> None:
        self.resting = self.parts[1] if epoch < self.head_epochs else self.parts[0]

    def correct_gradients(self) -> None:
        for parameter in self.resting:
            parameter.grad = None


@dataclass(frozen=True)
class FedRep(FedPer):
    """FedPer whose clients train the head first and the body, which is averaged, after it (Collins et al. 2021)."""

    head_epochs: int | None = None
    """How many of the local epochs, the first ones, train the head alone; without it all but the last."""

    def require(self, spec: TrainingSpec) -> None:
        if not 1 <= self._head_epochs(spec) < spec.local_epochs:
            raise SpecError(
                f"fedrep trains the head for {self._head_epochs(spec)} of {spec.local_epochs} local epochs; "
                "head and body need at least one each. Raise training.local_epochs, or change head_epochs."
            )

    def objective(self, context: LocalContext) -> LocalObjective:
        return HeadFirst(context, head_epochs=self._head_epochs(context.spec))

    def _head_epochs(self, spec: TrainingSpec) -> int:
        return spec.local_epochs - 1 if self.head_epochs is None else self.head_epochs


class MetaGradient(LocalObjective):
    """v = ∇f(w′; D2) at w′ = w − alpha ∇f(w; D1), where D1 and D2 are the halves of a batch.

    With ``delta`` above 0 it is v − alpha ∇²f(w; D1) v, the product by central differences: ∇²f(w) v is
    (∇f(w + h v) − ∇f(w − h v)) / (2 h) with h = delta / ‖v‖ (Fallah et al. 2020). A batch of fewer than four samples is
    both halves: batch normalisation cannot learn from one.
    """

    def __init__(self, context: LocalContext, *, alpha: float, delta: float) -> None:
        super().__init__(context)
        self.alpha, self.delta = alpha, delta
        self.parameters: list[Tensor] = [each for each in context.model.parameters() if each.requires_grad]

    def backward(self, batch: Batch, loss_of: Callable[[Batch], Tensor]) -> Tensor:
        half = len(batch.labels) // 2
        first, second = (batch.rows(slice(half)), batch.rows(slice(half, None))) if half > 1 else (batch, batch)
        start = [each.detach().clone() for each in self.parameters]
        _, inner = self._gradients(loss_of(first))
        self._move(start, inner, -self.alpha)
        loss, outer = self._gradients(loss_of(second))
        length = sum(float(each.double().square().sum()) for each in outer) ** 0.5
        if self.delta and length:
            step, result = self.delta / length, [each.clone() for each in outer]
            for sign in (1, -1):
                self._move(start, outer, sign * step)
                _, beside = self._gradients(loss_of(first))
                torch._foreach_add_(result, beside, alpha=-sign * self.alpha / (2 * step))
            outer = result
        self._move(start, outer, 0.0)
        for parameter, gradient in zip(self.parameters, outer, strict=True):
            parameter.grad = gradient
        return loss

    def _gradients(self, loss: Tensor) -> tuple[Tensor, list[Tensor]]:
        found = torch.autograd.grad(loss, self.parameters, materialize_grads=True)
        return loss.detach(), list(found)

    def _move(self, start: list[Tensor], direction: list[Tensor], step: float) -> None:
        """Put the parameters at start + step · direction."""
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, torch._foreach_add(start, direction, alpha=step))


@dataclass(frozen=True)
class PerFedAvg(Algorithm):
    """A model that one step on a client's data makes the client's own (Per-FedAvg; Fallah et al. 2020)."""

    alpha: float = 0.01
    """Rate of that step: w′ = w − alpha ∇f(w)."""
    hessian: bool = False
    """Whether gradients have the term −alpha ∇²f(w) ∇f(w′), by a difference of gradients (HF)."""
    delta: float = 0.01
    """How far from w, in both directions, that difference is taken."""

    def __post_init__(self) -> None:
        for name in ("alpha", "delta"):
            if not getattr(self, name) > 0:
                raise SpecError(f"per-fedavg: {name} is {getattr(self, name)}; give a number above 0.")

    def objective(self, context: LocalContext) -> LocalObjective:
        return MetaGradient(context, alpha=self.alpha, delta=self.delta if self.hessian else 0.0)

    def personalise(self, context: LocalContext) -> None:
        """One step along the mean gradient over the client's samples, in eval mode."""
        model, number = context.model.eval(), 0
        model.zero_grad(set_to_none=True)
        for loss, size in context.losses():
            (size * loss).backward()
            number += size
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=self.alpha / number)
        model.zero_grad(set_to_none=True)
