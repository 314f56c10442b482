"""From a name to a fresh split model."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import nn

from ccvr.core.errors import ModelError
from ccvr.core.seeds import derive_seed
from ccvr.core.tables import Table
from ccvr.kernels.crops import is_images
from ccvr.kernels.inputs import Inputs, described, each
from ccvr.models import digits_cnn, mobilenet_v2, simple_cnn
from ccvr.models.blocks import use_kernels
from ccvr.models.preprocess import fit_preprocess
from ccvr.models.split import SplitModel, split_model

Shape = tuple[int, ...]
InputShape = Shape | dict[str, Shape]
"""The shape of one sample's inputs; by name where there are several."""


@dataclass(frozen=True)
class ModelSpec:
    """Which network is trained."""

    name: str = "auto"
    """simple-cnn, mobilenet-v2, digits-cnn, linear, your own as package.module:name (a function of the shape of one
    sample and the number of classes that returns an nn.Module), or auto: digits-cnn for images below 16 pixels,
    simple-cnn from there on, linear for vectors."""
    head: str = ""
    """Path of the nn.Linear that is the head; without it, it is found by a forward pass."""


@dataclass(frozen=True)
class ImageNetwork:
    """A network of ours for images, and the smallest image side that it takes."""

    build: Callable[[tuple[int, int, int], int], nn.Module]
    minimum: int

    def __call__(self, shape: InputShape, num_classes: int) -> nn.Module:
        name = self.build.__name__.replace("_", "-")
        if isinstance(shape, dict) or len(shape) != 3:
            raise ModelError(f"{name} takes images [C, H, W]; these inputs are {shape}. Choose another model.name.")
        channels, height, width = shape
        if min(height, width) < self.minimum:
            least, size = f"{self.minimum} x {self.minimum}", f"{height} x {width}"
            raise ModelError(f"{name} needs images of at least {least} pixels; these are {size}.")
        # Convolutions are up to 1.4 times as fast in this order of memory. Users' models choose for themselves.
        model = self.build((channels, height, width), num_classes)
        return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def linear(shape: Shape, num_classes: int) -> nn.Module:
    """One layer over all numbers of a sample: features are the inputs themselves."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), num_classes))


MODELS: Table[Callable[..., nn.Module]] = Table(
    "model",
    {
        "simple-cnn": ImageNetwork(simple_cnn.simple_cnn, simple_cnn.MINIMUM),
        "mobilenet-v2": ImageNetwork(mobilenet_v2.mobilenet_v2, mobilenet_v2.MINIMUM),
        "digits-cnn": ImageNetwork(digits_cnn.digits_cnn, digits_cnn.MINIMUM),
        "linear": linear,
    },
)


def model_name(spec: ModelSpec, inputs: Inputs) -> str:
    """The table's name for a spec and inputs [B, …], with ``auto`` decided."""
    if spec.name != "auto":
        return spec.name
    if is_images(inputs):
        return "simple-cnn" if min(inputs.shape[2:]) >= simple_cnn.MINIMUM else "digits-cnn"
    if not isinstance(inputs, Mapping) and inputs.is_floating_point() and inputs.dim() == 2:
        return "linear"
    raise ModelError(
        f"model.name is auto, which knows images and vectors; inputs are {described(inputs)}. "
        "Name a model of your own: --model.name package.module:name."
    )


def build_model(
    spec: ModelSpec,
    inputs: Inputs,
    num_classes: int,
    *,
    preprocess: nn.Module | None = None,
    head_kind: str = "linear",
    kernels: bool = False,
    seed: int,
) -> SplitModel:
    """A freshly initialised model; the same seed gives the same weights.

    ``inputs`` [B, …] show what the model will read. They pass a copy of ``preprocess`` first; without it,
    what suits them. ``kernels``: compiled ones run its blocks.
    """
    name = model_name(spec, inputs)
    factory = MODELS[name]
    if not callable(factory):
        raise ModelError(f'model "{name}" is a {type(factory).__name__}; it must be a function (shape, classes).')
    example = each(lambda tensor: torch.zeros(2, *tensor.shape[1:], dtype=tensor.dtype), inputs)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "initialisation"))
        model = factory(_shape(example), num_classes)
        if not isinstance(model, nn.Module):
            raise ModelError(f'model "{name}" returned {type(model).__name__}; it must return a torch.nn.Module.')
        before = fit_preprocess("auto", inputs) if preprocess is None else copy.deepcopy(preprocess)
        split = split_model(model, before, example, head_path=spec.head, head_kind=head_kind)
    if kernels:
        use_kernels(split)
    outputs = split.head.weight.shape[0]
    if outputs != num_classes:
        raise ModelError(f'model "{name}" has {outputs} outputs; the data has {num_classes} classes.')
    return split


def _shape(example: Inputs) -> InputShape:
    """The shape of one sample."""
    if isinstance(example, Mapping):
        return {name: tuple(tensor.shape[1:]) for name, tensor in example.items()}
    return tuple(example.shape[1:])
