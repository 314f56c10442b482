"""Blocks of convolution, ReLU and max-pooling, which compiled kernels can run; and a sequence that holds them.

Each layer is torch's own. Kernels (``ccvr.kernels``) run the blocks once ``use_kernels`` has said so, on the CPU and in
float32. Otherwise, and wherever hooks listen to a layer inside, torch runs them.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.module import _has_any_global_hook

from ccvr.kernels.lanes import Lanes
from ccvr.kernels.machine import this_machine
from ccvr.models.compiled import Compiled, is_plain, kernels_for, kernels_may_run, settings_of, shape_of

FILLED = 8
"""Channels that torch's convolutions handle together: one vector register of 32-bit numbers."""


class ConvBlock(nn.Sequential):
    """Convolution of stride 1, ReLU and max-pooling of pool × pool; 1 is no pooling.

    ``inputs`` and ``outputs`` are channels, ``kernel`` is the side of the convolution, ``padding`` the zeros on each
    side of the image. Compiled kernels take odd sides up to 11 and pooling of 1 or 2; torch runs the others.

    Example:
    >>> ConvBlock(3, 6, 5)(torch.zeros(4, 3, 32, 32)).shape
    torch.Size([4, 6, 14, 14])
    """

    kernels = False
    """Whether compiled kernels run this block where they can."""

    def __init__(self, inputs: int, outputs: int, kernel: int, *, padding: int = 0, pool: int = 2) -> None:
        pooling = [nn.MaxPool2d(pool)] if pool > 1 else []
        super().__init__(nn.Conv2d(inputs, outputs, kernel, padding=padding), nn.ReLU(), *pooling)

    def forward(self, x: Tensor | Lanes) -> Tensor:
        return run_blocks([self], x)


class BlockSequential(nn.Sequential):
    """``nn.Sequential`` in which blocks that follow each other run as one, unless somebody listens between them."""

    def forward(self, x: Any) -> Any:
        for are_blocks, layers in groupby(self, _is_block):
            row = list(layers)
            if are_blocks and not is_heard(*row, *(part for layer in row for part in layer._modules.values())):
                x = _run(row, x, heard=False)
                continue
            for layer in row:
                x = layer(x)
        return x


def _is_block(layer: nn.Module) -> bool:
    """Whether a layer is a block that computes what blocks compute: a user's may have a ``forward`` of its own."""
    return isinstance(layer, ConvBlock) and type(layer).forward is ConvBlock.forward


def takes_lanes(model: nn.Module) -> bool:
    """Whether a model reads ``Lanes`` now: it is a ``BlockSequential`` that begins with a block that kernels run."""
    if type(model).forward is not BlockSequential.forward or not kernels_may_run() or is_heard(model):
        return False
    first = next(iter(model.children()), None)
    return (
        isinstance(first, ConvBlock)
        and first.kernels
        and _is_block(first)
        and not is_heard(first, *first._modules.values())
    )


def use_kernels(model: nn.Module, on: bool = True) -> nn.Module:
    """Have compiled kernels run the blocks of a model where they can, or torch alone. Returns the model.

    Without the extra ``fast``, on another device and for what the kernels do not take, torch runs them in any case.

    Example:
    >>> model = use_kernels(nn.Sequential(ConvBlock(3, 6, 5), nn.Flatten()))
    """
    layout = torch.contiguous_format if on else torch.channels_last
    for module in model.modules():
        if isinstance(module, ConvBlock):
            module.kernels = on and shape_of(settings_of(module), 1, 1) is not None
            convolution = module._modules.get("0")
            if type(convolution) is nn.Conv2d:
                # Not contiguous(): a weight of one input channel is both to it, in the strides of either.
                convolution.weight.data = convolution.weight.data.clone(memory_format=layout)
    return model


def unsuited_block(model: nn.Module) -> str | None:
    """The path of the first block that compiled kernels do not take; None where they take all, "" for no blocks."""
    blocks = {path: module for path, module in model.named_modules() if isinstance(module, ConvBlock)}
    unsuited = [
        path for path, block in blocks.items() if not _is_block(block) or not shape_of(settings_of(block), 1, 1)
    ]
    return unsuited[0] if unsuited else None if blocks else ""


def run_blocks(blocks: Sequence[nn.Module], x: Tensor | Lanes) -> Tensor:
    """Images [B, C, H, W], or ``Lanes``, through some blocks, one after the other."""
    return _run(blocks, x, heard=is_heard(*(part for block in blocks for part in block._modules.values())))


def _run(blocks: Sequence[nn.Module], x: Tensor | Lanes, *, heard: bool) -> Tensor:
    settings = tuple(settings_of(block) for block in blocks)
    if compiled := kernels_for(settings, x) if not heard and all(block.kernels for block in blocks) else ():
        lanes = x if isinstance(x, Lanes) else Lanes.of(x, this_machine().lanes)
        images: Tensor = Compiled.apply(compiled, lanes.number, lanes.groups, *_parameters(blocks))
        return images
    images = x.images() if isinstance(x, Lanes) else x
    if blocks[0].training and not heard and images.dim() == 4 and all(map(is_plain, settings)):
        return _shorter(blocks, images)
    for block in blocks:
        for layer in block.children():
            images = layer(images)
    return images


def _parameters(blocks: Sequence[nn.Module]) -> list[Tensor]:
    """Weight and bias of each block in turn."""
    of_convolutions = (block._modules["0"]._parameters for block in blocks)  # type: ignore[union-attr]
    return [parameters[name] for parameters in of_convolutions for name in ("weight", "bias")]  # type: ignore[misc]


def is_heard(*modules: nn.Module | None) -> bool:
    """Whether hooks listen to one of some modules, or to all that there are."""
    if _has_any_global_hook():
        return True
    for module in modules:
        if module is not None and (
            module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
        ):
            return True
    return False


def _shorter(blocks: Sequence[nn.Module], x: Tensor) -> Tensor:
    """The same numbers by torch, to rounding, in less time.

    Max-pooling first leaves ReLU a quarter of the work, and commutes with it. Zero filters that fill the channels
    between two convolutions up to whole registers cost less than the gaps do.
    """
    x, filled = x.contiguous(memory_format=torch.channels_last), 0
    for number, block in enumerate(blocks, 1):
        convolution, _, *pooling = block.children()
        assert isinstance(convolution, nn.Conv2d)
        missing = -convolution.out_channels % FILLED if number < len(blocks) else 0
        weight = functional.pad(convolution.weight, (0, 0, 0, 0, 0, filled, 0, missing))
        bias = None if convolution.bias is None else functional.pad(convolution.bias, (0, missing))
        x = functional.conv2d(x, weight, bias, padding=convolution.padding)
        x = functional.max_pool2d(x, 2) if pooling else x
        # The same as ReLU; but that keeps its output, which a layer behind the last block may change in place.
        x = functional.relu(x) if number < len(blocks) else functional.threshold(x, 0.0, 0.0)
        filled = missing
    return x
