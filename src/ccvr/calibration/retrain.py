"""Re-train a head on features, virtual or real, with cross-entropy: by SGD, or to convergence."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import functional

from ccvr.calibration.spec import CalibrationOptions
from ccvr.core.errors import CalibrationError
from ccvr.models.heads import Head

DIVERGED = 1e4
"""A mean cross-entropy that no head reaches by learning; a guess over a million classes costs 14."""


def retrain(head: Head, t: Tensor, y: Tensor, options: CalibrationOptions, *, rng: torch.Generator) -> Head:
    """Train ``head`` in place on transformed features t [M, d] with labels y [M] by SGD, and return it.

    A class without features keeps its row, and its score stays out of the softmax.
    """
    with torch.enable_grad(), _present_classes(head, y) as silence:
        optimiser = torch.optim.SGD(
            head.parameters(), lr=options.lr, momentum=options.momentum, weight_decay=options.weight_decay, fused=True
        )
        for _ in range(options.epochs):
            for batch in torch.randperm(len(t), generator=rng).split(options.batch_size):
                optimiser.zero_grad()
                scores = head.score(t.index_select(0, batch)) + silence
                functional.cross_entropy(scores, y.index_select(0, batch)).backward()
                optimiser.step()
    _require_learned(head, t, y, silence, options)
    return head


def converge(head: Head, t: Tensor, y: Tensor, options: CalibrationOptions) -> Head:
    """Minimise mean cross-entropy + l2/2 (‖w‖² + ‖b‖²) over the whole of t [M, d] by L-BFGS, in place."""
    with torch.enable_grad(), _present_classes(head, y) as silence:
        parameters = list(head.parameters())
        optimiser = torch.optim.LBFGS(
            parameters, max_iter=options.iterations, history_size=20, tolerance_grad=1e-6, line_search_fn="strong_wolfe"
        )

        def loss() -> Tensor:
            optimiser.zero_grad()
            penalty = options.l2 / 2 * sum(parameter.square().sum() for parameter in parameters)
            value: Tensor = functional.cross_entropy(head.score(t) + silence, y) + penalty
            value.backward()
            return value

        optimiser.step(loss)
    _require_learned(head, t, y, silence, options)
    return head


@contextmanager
def _present_classes(head: Head, y: Tensor) -> Iterator[Tensor]:
    """What to add to scores [B, C] to leave absent classes out; afterwards their rows are what they were."""
    if not len(y):
        raise CalibrationError("there are no features to re-train a head on. Take them from clients that have images.")
    absent = torch.bincount(y, minlength=head.weight.shape[0]) == 0
    kept = {name: tensor.detach()[absent].clone() for name, tensor in head.named_parameters()}
    yield torch.zeros(len(absent)).masked_fill(absent, float("-inf"))
    with torch.no_grad():
        for name, tensor in head.named_parameters():
            tensor[absent] = kept[name]


def _require_learned(head: Head, t: Tensor, y: Tensor, silence: Tensor, options: CalibrationOptions) -> None:
    with torch.no_grad():
        after = functional.cross_entropy(head.score(t) + silence, y)
    if not after < DIVERGED:
        raise CalibrationError(f"re-training diverged: the loss is {after:.3g}. Lower calibration.lr ({options.lr:g}).")
