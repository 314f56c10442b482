"""Re-train a head on features, virtual or real, by SGD with cross-entropy."""

import torch
from torch import Tensor
from torch.nn import functional

from ccvr.calibration.spec import CalibrationOptions
from ccvr.core.errors import CalibrationError
from ccvr.models.heads import Head

DIVERGED = 1e4
"""A mean cross-entropy that no head reaches by learning; a guess over a million classes costs 14."""


def retrain(head: Head, t: Tensor, y: Tensor, options: CalibrationOptions, *, rng: torch.Generator) -> Head:
    """Train ``head`` in place on transformed features t [M, d] with labels y [M], and return it.

    A class without features keeps its row, and its score stays out of the softmax.
    """
    if not len(y):
        raise CalibrationError("there are no features to re-train a head on. Take them from clients that have images.")
    absent = torch.bincount(y, minlength=head.weight.shape[0]) == 0
    kept = {name: tensor.detach()[absent].clone() for name, tensor in head.named_parameters()}
    optimiser = torch.optim.SGD(
        head.parameters(), lr=options.lr, momentum=options.momentum, weight_decay=options.weight_decay, fused=True
    )
    silence = torch.zeros(len(absent)).masked_fill(absent, float("-inf"))
    for _ in range(options.epochs):
        for batch in torch.randperm(len(t), generator=rng).split(options.batch_size):
            optimiser.zero_grad()
            scores = head.score(t.index_select(0, batch)) + silence
            functional.cross_entropy(scores, y.index_select(0, batch)).backward()
            optimiser.step()
    with torch.no_grad():
        for name, tensor in head.named_parameters():
            tensor[absent] = kept[name]
        after = functional.cross_entropy(head.score(t) + silence, y)
    if not after < DIVERGED:
        raise CalibrationError(f"re-training diverged: the loss is {after:.3g}. Lower calibration.lr ({options.lr:g}).")
    return head
