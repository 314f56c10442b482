"""Re-train a head on features, virtual or real, with cross-entropy: by SGD, or to convergence."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import functional

from ccvr.calibration.calibrator import Descent
from ccvr.core.errors import CalibrationError
from ccvr.models.heads import Head, LinearHead, copy_head
from ccvr.models.transform import FeatureTransform

DIVERGED = 1e4
"""A mean cross-entropy that no head reaches by learning; a guess over a million classes costs 14."""


def starting_head(head: Head, t: Tensor, transform: str, start: str) -> Head:
    """A copy of the head that re-training on features t [M, d] starts from: ``trained``, or ``zero``."""
    if head.weight.shape[1] != t.shape[1]:
        raise CalibrationError(
            f"re-training starts from a head of {head.weight.shape[1]} features; these statistics have {t.shape[1]}. "
            "With taps use lda, ridge or kernel."
        )
    return copy_head(head, transform=FeatureTransform.parse(transform), start=start)


def retrain(head: Head, t: Tensor, y: Tensor, options: Descent, *, rng: torch.Generator) -> Head:
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
    _require_learned(head, t, y, silence, f"Lower the option lr ({options.lr:g})")
    return head


def converge(head: Head, t: Tensor, y: Tensor, *, l2: float, iterations: int) -> Head:
    """Minimise mean cross-entropy + l2/2 (‖w‖² + ‖b‖²) over the whole of t [M, d] by L-BFGS, in place.

    A linear head is solved for standardised features, so that their scale and offset do not matter.
    """
    with torch.enable_grad(), _present_classes(head, y) as silence, _standardised(head, t) as s:
        parameters = list(head.parameters())
        optimiser = torch.optim.LBFGS(
            parameters, max_iter=iterations, history_size=20, tolerance_grad=1e-6, line_search_fn="strong_wolfe"
        )

        def loss() -> Tensor:
            optimiser.zero_grad()
            penalty = l2 / 2 * sum(parameter.square().sum() for parameter in parameters)
            value: Tensor = functional.cross_entropy(head.score(s) + silence, y) + penalty
            value.backward()
            return value

        before = [parameter.detach().clone() for parameter in parameters]
        optimiser.step(loss)
        _keep_place(head, before, silence)
    _require_learned(head, t, y, silence, "Raise the option l2")
    return head


def _keep_place(head: Head, before: Sequence[Tensor], silence: Tensor) -> None:
    """Put the rows of the classes that are there back to where they lay together, beside those that are frozen.

    The penalty draws them to zero; their softmax is the same wherever they lie together.
    """
    present = silence == 0
    if isinstance(head, LinearHead) and not present.all():
        with torch.no_grad():
            for parameter, old in zip(head.parameters(), before, strict=True):
                parameter[present] += old[present].mean(0) - parameter[present].mean(0)


@contextmanager
def _standardised(head: Head, t: Tensor) -> Iterator[Tensor]:
    """Features with mean 0 and deviation 1, and the head as for those; afterwards the head is one for t again."""
    if not isinstance(head, LinearHead) or head.bias is None:
        yield t
        return
    mean, std = t.double().mean(0), t.double().std(0, correction=0)
    # What is left of a constant is rounding, of itself or of the eigenvectors that it was drawn with.
    std = torch.where(std > 1e-6 * torch.maximum(std.max(), t.abs().amax(0).double()), std, 1.0)
    weight, bias = head.weight, head.bias
    with torch.no_grad():
        bias.add_((weight.double() @ mean.double()).to(bias.dtype))
        weight.mul_(std.to(weight.dtype))
    yield ((t - mean) / std).to(t.dtype)
    with torch.no_grad():
        weight.div_(std.to(weight.dtype))
        bias.sub_((weight.double() @ mean.double()).to(bias.dtype))


@contextmanager
def _present_classes(head: Head, y: Tensor) -> Iterator[Tensor]:
    """What to add to scores [B, C] to leave absent classes out; afterwards their rows are what they were."""
    if not len(y):
        raise CalibrationError("there are no features to re-train a head on. Take them from clients that have images.")
    absent = torch.bincount(y, minlength=head.weight.shape[0]) == 0
    before = {name: tensor.detach().clone() for name, tensor in head.named_parameters()}
    yield torch.zeros(len(absent)).masked_fill(absent, float("-inf"))
    with torch.no_grad():
        for name, tensor in head.named_parameters():
            tensor[absent] = before[name][absent]


def _require_learned(head: Head, t: Tensor, y: Tensor, silence: Tensor, remedy: str) -> None:
    with torch.no_grad():
        after = functional.cross_entropy(head.score(t) + silence, y)
    if not after < DIVERGED:
        raise CalibrationError(
            f"re-training diverged: the loss is {after:.3g}, with features as large as {t.abs().max():.3g}. {remedy}, "
            "or look for statistics that no honest client sends."
        )
