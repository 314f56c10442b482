"""What features give away: pictures reconstructed from them (Luo et al. 2021, appendix on privacy)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ccvr.core.errors import AnalysisError
from ccvr.models.modes import evaluating
from ccvr.models.split import SplitModel


@dataclass(frozen=True)
class Descent:
    """How pictures are sought: steps of Adam with a rate that falls to 0, for each weight of the total variation."""

    steps: int = 200
    lr: float = 0.1
    weights: tuple[float, ...] = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
    """From smooth to rough, each from where the last one ended."""
    near: float = 0.002
    """The error at which nothing rougher is tried."""


DESCENT = Descent()


@dataclass(frozen=True)
class Inversion:
    """Reconstructions [R, C, H, W] uint8, and ‖f(x) − z‖² / ‖z‖² [R] that is left with the weight [R] they are of."""

    images: Tensor
    error: Tensor
    weight: Tensor


def invert(
    model: SplitModel,
    z: Tensor,
    image_shape: tuple[int, int, int],
    *,
    rng: torch.Generator,
    descent: Descent = DESCENT,
) -> Inversion:
    """Pictures whose features come near z [R, d], each by itself: minimise ‖f(x) − z‖² / ‖z‖² + weight · TV(x).

    Of each the smoothest is taken whose features are near, or whose error no rougher one halves (a mean of features may
    be that of no picture): an attacker with z and the model can choose so. x is a normalised picture within the bounds
    of valid pixels, at first grey with a little noise; TV is the mean absolute difference of neighbours. The model is
    left as it was.
    """
    bounds = low, high = _bounds(model, image_shape[0])
    noise = torch.randn(len(z), *image_shape, generator=rng).to(low.device)
    x = (low + (high - low) * (0.5 + 0.05 * noise)).clamp(low, high)
    target = z.detach().to(x)
    taken, error, weight = x.clone(), x.new_full((len(x),), torch.inf), x.new_zeros(len(x))
    left = torch.arange(len(x), device=x.device)
    with evaluating(model):
        for tv in descent.weights:
            x[left], now = _descend(model, x[left], target[left], bounds, tv, descent)
            better = (now <= descent.near) | (now < error[left] / 2)
            taken[left[better]], error[left[better]], weight[left[better]] = x[left[better]], now[better], tv
            left = left[error[left] > descent.near]
            if not len(left):
                break
    pixels = 255 * (taken - low) / (high - low)
    return Inversion(pixels.round().to(torch.uint8).cpu(), error.cpu(), weight.cpu())


def _descend(
    model: SplitModel, start: Tensor, target: Tensor, bounds: tuple[Tensor, Tensor], tv: float, descent: Descent
) -> tuple[Tensor, Tensor]:
    """Where one weight leads to, and the error [R] there."""
    x = start.clone().requires_grad_()
    size = target.square().sum(1).clamp(min=1e-12)
    optimiser = torch.optim.Adam([x], lr=descent.lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, descent.steps)
    for _ in range(descent.steps):
        with torch.enable_grad():
            error = (model.features(x) - target).square().sum(1) / size
            loss = (error + tv * total_variation(x)).sum()
        x.grad = torch.autograd.grad(loss, x)[0]
        optimiser.step()
        schedule.step()
        x.clamp_(*bounds)
    return x.detach(), (model.features(x) - target).square().sum(1) / size


def total_variation(x: Tensor) -> Tensor:
    """[N]: the mean absolute difference of neighbours, down and across, in pictures [N, C, H, W]."""
    return x.diff(dim=2).abs().mean((1, 2, 3)) + x.diff(dim=3).abs().mean((1, 2, 3))


def _bounds(model: SplitModel, channels: int) -> tuple[Tensor, Tensor]:
    """What the pixels 0 and 255 are to the backbone, [1, C, 1, 1]."""
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    black = torch.zeros(1, channels, 1, 1, dtype=torch.uint8, device=device)
    low, high = model.normalize(black), model.normalize(~black)
    if not low.is_floating_point():
        raise AnalysisError("the model does not normalise its images. Give a model that takes uint8 images.")
    return low, high
