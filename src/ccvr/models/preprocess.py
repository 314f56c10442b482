"""What stands between a data set's inputs and a model; a row makes it from training inputs."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ccvr.core.errors import CcvrError, ModelError
from ccvr.core.tables import Table
from ccvr.kernels.crops import is_images
from ccvr.kernels.inputs import Inputs, described

Preprocess = Callable[[Inputs], nn.Module]
"""Training inputs [N, …] → the module that a model's inputs pass first."""


class Normalize(nn.Module):
    """(x / 255 − mean) / std per channel for uint8 images; floating-point inputs are taken as normalised already."""

    scale: Tensor
    shift: Tensor

    def __init__(self, mean: Sequence[float] | Tensor, std: Sequence[float] | Tensor) -> None:
        super().__init__()
        mean_, std_ = torch.as_tensor(mean, dtype=torch.float64), torch.as_tensor(std, dtype=torch.float64)
        self.register_buffer("scale", (1 / (255 * std_)).float().view(-1, 1, 1))
        self.register_buffer("shift", (mean_ / std_).float().view(-1, 1, 1))

    @classmethod
    def fit(cls, images: Inputs) -> "Normalize":
        """With the moments of images."""
        if not is_images(images):
            raise ModelError(f"preprocess is pixels, but inputs are {described(images)}; give uint8 [N, C, H, W].")
        return cls(*channel_moments(images))

    def forward(self, x: Tensor) -> Tensor:
        return x.to(self.scale.dtype).mul_(self.scale).sub_(self.shift) if x.dtype == torch.uint8 else x

    def is_plain(self) -> bool:
        """Whether its numbers are float32 on the CPU, as kernels read them."""
        return all((t.dtype, t.device.type) == (torch.float32, "cpu") for t in (self.scale, self.shift))


def channel_moments(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel of images [N, C, H, W], on the scale [0, 1], as float64 [C].

    From histograms: exact, whatever the number of threads. A deviation is at least 1/255, so that one may divide by it.
    """
    levels = torch.arange(256, dtype=torch.float64) / 255
    counts = torch.stack([torch.bincount(channel.flatten(), minlength=256) for channel in images.unbind(1)])
    shares = counts.double() / images[:, 0].numel()
    mean = shares @ levels
    variance = (shares * (levels - mean.unsqueeze(1)) ** 2).sum(1)
    return mean, variance.sqrt().clamp(min=1 / 255)


class Standardize(nn.Module):
    """(x − mean) / std of every number of a sample; numbers that never change are only shifted."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    @classmethod
    def fit(cls, inputs: Inputs) -> "Standardize":
        """With the moments of floating-point inputs, found in float64."""
        if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
            raise ModelError(f"preprocess is standardize, but inputs are {described(inputs)}; give one float tensor.")
        mean, std = inputs.double().mean(0), inputs.double().std(0, correction=0)
        return cls(mean.to(inputs.dtype), torch.where(std > 0, std, 1.0).to(inputs.dtype))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


def unchanged(inputs: Inputs) -> nn.Module:
    """Inputs reach the model as they are."""
    return nn.Identity()


PREPROCESSES: Table[Preprocess] = Table(
    "preprocess", {"pixels": Normalize.fit, "standardize": Standardize.fit, "none": unchanged}
)


def preprocess_name(name: str, inputs: Inputs) -> str:
    """The table's name, with ``auto`` decided."""
    return name if name != "auto" else "pixels" if is_images(inputs) else "none"


def fit_preprocess(name: str, inputs: Inputs) -> nn.Module:
    """The module of that name for training inputs."""
    try:
        module = PREPROCESSES[preprocess_name(name, inputs)](inputs)
    except CcvrError:
        raise
    except Exception as error:  # a function of the user's may raise anything
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(
            f'preprocess "{name}" failed on {described(inputs)} ({type(error).__name__}: {reason}).'
        ) from error
    if not isinstance(module, nn.Module):
        raise ModelError(f'preprocess "{name}" returned {type(module).__name__}; it must return a torch.nn.Module.')
    return module
