"""From a name to a fresh split model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ccvr.core.errors import ModelError
from ccvr.core.seeds import derive_seed
from ccvr.core.tables import Table
from ccvr.models import digits_cnn, mobilenet_v2, simple_cnn
from ccvr.models.blocks import use_kernels
from ccvr.models.split import Normalize, SplitModel, split_model

ImageShape = tuple[int, int, int]


@dataclass(frozen=True)
class ModelSpec:
    """Which network is trained."""

    name: str = "auto"
    """simple-cnn, mobilenet-v2, digits-cnn, your own as package.module:name (a function of image shape and number of
    classes that returns an nn.Module), or auto: digits-cnn below 16 pixels, simple-cnn from there on."""
    head: str = ""
    """Path of the nn.Linear that is the head; without it, it is found by a forward pass."""


@dataclass(frozen=True)
class Architecture:
    """A network of ours and the smallest image side that it takes."""

    build: Callable[[ImageShape, int], nn.Module]
    minimum: int

    def __call__(self, image_shape: ImageShape, num_classes: int) -> nn.Module:
        if min(image_shape[1:]) < self.minimum:
            name = self.build.__name__.replace("_", "-")
            least, size = f"{self.minimum} x {self.minimum}", f"{image_shape[1]} x {image_shape[2]}"
            raise ModelError(f"{name} needs images of at least {least} pixels; these are {size}.")
        # Convolutions are up to 1.4 times as fast in this order of memory. Users' models choose for themselves.
        model = self.build(image_shape, num_classes)
        return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


MODELS: Table[Callable[[ImageShape, int], nn.Module]] = Table(
    "model",
    {
        "simple-cnn": Architecture(simple_cnn.simple_cnn, simple_cnn.MINIMUM),
        "mobilenet-v2": Architecture(mobilenet_v2.mobilenet_v2, mobilenet_v2.MINIMUM),
        "digits-cnn": Architecture(digits_cnn.digits_cnn, digits_cnn.MINIMUM),
    },
)


def model_name(spec: ModelSpec, image_shape: ImageShape) -> str:
    """The table's name for a spec, with ``auto`` decided."""
    if spec.name != "auto":
        return spec.name
    return "simple-cnn" if min(image_shape[1:]) >= simple_cnn.MINIMUM else "digits-cnn"


def build_model(
    spec: ModelSpec,
    image_shape: ImageShape,
    num_classes: int,
    *,
    mean: Sequence[float] | Tensor,
    std: Sequence[float] | Tensor,
    head_kind: str = "linear",
    kernels: bool = False,
    seed: int,
) -> SplitModel:
    """A freshly initialised model; the same seed gives the same weights. ``kernels``: compiled ones run its blocks."""
    name = model_name(spec, image_shape)
    factory = MODELS[name]
    if not callable(factory):
        raise ModelError(f'model "{name}" is a {type(factory).__name__}; it must be a function (shape, classes).')
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "initialisation"))
        model = factory(image_shape, num_classes)
        if not isinstance(model, nn.Module):
            raise ModelError(f'model "{name}" returned {type(model).__name__}; it must return a torch.nn.Module.')
        example = torch.zeros(2, *image_shape, dtype=torch.uint8)
        split = split_model(model, Normalize(mean, std), example, head_path=spec.head, head_kind=head_kind)
    if kernels:
        use_kernels(split)
    outputs = split.head.weight.shape[0]
    if outputs != num_classes:
        raise ModelError(f'model "{name}" has {outputs} outputs; the data has {num_classes} classes.')
    return split
