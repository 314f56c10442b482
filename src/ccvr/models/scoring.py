"""How good a model is, as sums that add up."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from ccvr.core.errors import DataError, ModelError
from ccvr.kernels.inputs import Inputs, described, on
from ccvr.models.modes import buffers_kept, evaluating
from ccvr.models.passes import device_of, outputs_of, pair_of, require_batches, require_classes, require_model
from ccvr.models.settings import eager, standard_settings


@dataclass(frozen=True)
class ClassCounts:
    """correct [C], total [C] and the summed cross-entropy; ``zeros`` is the identity of ``+``."""

    correct: Tensor
    total: Tensor
    loss: float = 0.0

    @classmethod
    def zeros(cls, num_classes: int) -> "ClassCounts":
        zeros = torch.zeros(num_classes, dtype=torch.int64, device="cpu")
        return cls(zeros, zeros.clone())

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
    """The counts of one batch of scores [B, C] with labels [B]. Scores that are not numbers are wrong.

    Raises:
        DataError: labels that are not whole numbers, one for each sample, of these classes.
    """
    num_classes = scores.shape[1]
    if labels.shape != scores.shape[:1] or labels.is_floating_point() or labels.is_complex():
        raise DataError(f"the labels of {len(scores)} samples are {described(labels)}; give whole numbers [B].")
    labels = labels.long()
    outside = labels[(labels < 0) | (labels >= num_classes)]
    if len(outside):
        raise DataError(f"label {int(outside[0])} is not one of {num_classes} classes (0 to {num_classes - 1}).")
    hits = labels[(scores.argmax(1) == labels) & ~scores.isnan().any(1)]
    return ClassCounts(
        torch.bincount(hits, minlength=num_classes).cpu(),
        torch.bincount(labels, minlength=num_classes).cpu(),
        functional.cross_entropy(scores, labels, reduction="sum").item(),
    )


@eager
def score(model: nn.Module, batches: Iterable[tuple[Inputs, Tensor]], num_classes: int) -> ClassCounts:
    """The counts of a model in eval mode over all batches of inputs and labels [B].

    Raises:
        ModelError: the model fails, does not score ``num_classes`` classes, or gives NaN.
        DataError: a batch is no such pair, or has other labels than those of the classes.
        UsageError: an argument is none that can be.
    """
    counts = class_counts(model, batches, num_classes)
    if math.isnan(counts.loss):
        raise ModelError("some of the model's scores are not finite. Check the model: its training may have diverged.")
    return counts


def class_counts(model: nn.Module, batches: Iterable[tuple[Inputs, Tensor]], num_classes: int) -> ClassCounts:
    """``score``, also of a model that diverged: scores that are not numbers are wrong, and the loss says so."""
    require_model(model)
    require_batches(batches)
    require_classes(num_classes)
    device, counts = device_of(model), ClassCounts.zeros(num_classes)
    with evaluating(model), buffers_kept(model):
        for inputs, labels in map(pair_of, batches):
            with standard_settings(device):
                scores = outputs_of(model, on(device, inputs))
                if (
                    not isinstance(scores, Tensor)
                    or scores.shape[1:] != (num_classes,)
                    or not scores.is_floating_point()
                ):
                    got = described(scores) if isinstance(scores, Tensor) else type(scores).__name__
                    raise ModelError(f"the model returns {got}; score needs scores [B, {num_classes}].")
                counts = counts + count(scores, labels.to(device))
    return counts
