"""What features give away: pictures reconstructed from them (Luo et al. 2021, appendix on privacy)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ccvr.core.errors import AnalysisError
from ccvr.models.modes import evaluating
from ccvr.models.split import SplitModel


@dataclass(frozen=True)
class Descent:
    """How pictures are sought: steps of Adam with a rate that falls to 0, and the weight of the total variation."""

    steps: int = 500
    lr: float = 0.1
    tv: float = 0.3


DESCENT = Descent()


@dataclass(frozen=True)
class Inversion:
    """Reconstructions [R, C, H, W] uint8, and ‖f(x) − z‖² / ‖z‖² [R] that is left."""

    images: Tensor
    error: Tensor


def invert(
    model: SplitModel,
    z: Tensor,
    image_shape: tuple[int, int, int],
    *,
    rng: torch.Generator,
    descent: Descent = DESCENT,
) -> Inversion:
    """Pictures whose features come near z [R, d], each by itself: minimise ‖f(x) − z‖² / ‖z‖² + tv · TV(x).

    x is a normalised picture within the bounds of valid pixels, at first grey with a little noise; TV is the mean
    absolute difference of neighbours. The model is left as it was.
    """
    low, high = _bounds(model, image_shape[0])
    noise = torch.randn(len(z), *image_shape, generator=rng).to(low.device)
    x = (low + (high - low) * (0.5 + 0.05 * noise)).clamp(low, high).requires_grad_()
    target = z.detach().to(x)
    size = target.square().sum(1).clamp(min=1e-12)
    optimiser = torch.optim.Adam([x], lr=descent.lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, descent.steps)
    with evaluating(model):
        for _ in range(descent.steps):
            with torch.enable_grad():
                error = (model.features(x) - target).square().sum(1) / size
                loss = (error + descent.tv * total_variation(x)).sum()
            x.grad = torch.autograd.grad(loss, x)[0]
            optimiser.step()
            schedule.step()
            x.clamp_(low, high)
        error = (model.features(x) - target).square().sum(1) / size
    pixels = 255 * (x.detach() - low) / (high - low)
    return Inversion(pixels.round().to(torch.uint8).cpu(), error.cpu())


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
