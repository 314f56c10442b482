"""How good a model is, as sums that add up."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from ccvr.kernels.inputs import Inputs, call, on
from ccvr.models.modes import evaluating


@dataclass(frozen=True)
class ClassCounts:
    """correct [C], total [C] and the summed cross-entropy; ``zeros`` is the identity of ``+``."""

    correct: Tensor
    total: Tensor
    loss: float = 0.0

    @classmethod
    def zeros(cls, num_classes: int) -> "ClassCounts":
        return cls(torch.zeros(num_classes, dtype=torch.int64), torch.zeros(num_classes, dtype=torch.int64))

    def __add__(self, other: "ClassCounts") -> "ClassCounts":
        return ClassCounts(self.correct + other.correct, self.total + other.total, self.loss + other.loss)

    @property
    def accuracy(self) -> float:
        """Percent of all."""
        return 100 * self.correct.sum().item() / max(self.total.sum().item(), 1)

    @property
    def mean_loss(self) -> float:
        return self.loss / max(self.total.sum().item(), 1)

    @property
    def recall(self) -> list[float | None]:
        """Percent of each class; None for a class without samples."""
        pairs = zip(self.correct.tolist(), self.total.tolist(), strict=True)
        return [100 * right / total if total else None for right, total in pairs]


def count(scores: Tensor, labels: Tensor) -> ClassCounts:
    """The counts of one batch of scores [B, C] with labels [B]."""
    num_classes = scores.shape[1]
    labels = labels if labels.is_floating_point() else labels.long()  # the former are refused below
    hits = labels[scores.argmax(1) == labels]
    return ClassCounts(
        torch.bincount(hits, minlength=num_classes).cpu(),
        torch.bincount(labels, minlength=num_classes).cpu(),
        functional.cross_entropy(scores, labels, reduction="sum").item(),
    )


def score(model: nn.Module, batches: Iterable[tuple[Inputs, Tensor]], num_classes: int) -> ClassCounts:
    """The counts of a model in eval mode over all batches."""
    device = next(model.parameters()).device
    counts = ClassCounts.zeros(num_classes)
    with evaluating(model):
        for inputs, labels in batches:
            counts = counts + count(call(model, on(device, inputs)), labels.to(device))
    return counts
