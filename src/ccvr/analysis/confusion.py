"""Which class is taken for which."""

import torch
from torch import Tensor

from ccvr.core.errors import AnalysisError
from ccvr.models.scoring import ClassCounts


def confusion(predicted: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """[C, C] int64: how many samples of class row were taken for class column; matrices of parts add up.

    ``predicted`` are classes [N], or scores [N, C] whose largest counts.
    """
    found = predicted.argmax(1) if predicted.dim() == 2 else predicted
    if found.shape != labels.shape or labels.dim() != 1:
        shapes = f"{list(predicted.shape)} and {list(labels.shape)}"
        raise AnalysisError(f"predictions and labels have the shapes {shapes}; give [N] or [N, C], and [N].")
    for what, values in (("predictions", found), ("labels", labels)):
        if len(values) and not 0 <= int(values.min()) <= int(values.max()) < num_classes:
            low, high = int(values.min()), int(values.max())
            raise AnalysisError(f"the {what} run from {low} to {high}; give classes from 0 to {num_classes - 1}.")
    return torch.bincount(labels * num_classes + found, minlength=num_classes**2).view(num_classes, num_classes).cpu()


def recall(matrix: Tensor) -> list[float | None]:
    """Percent of each class that was found; None for a class without samples."""
    return ClassCounts(matrix.diagonal(), matrix.sum(1)).recall
