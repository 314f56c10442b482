"""Compiled kernels behind torch's blocks: which blocks they compute, and one autograd function for a chain of them."""

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional

from ccvr.kernels.lanes import Lanes
from ccvr.kernels.machine import MAX_LANES, MAX_NUMBERS, is_installed
from ccvr.kernels.shape import BlockShape

if TYPE_CHECKING:
    from ccvr.kernels.block import Block

MAX_KERNEL = 11
"""Side of the largest kernel whose sums fit into the registers."""


class Settings(NamedTuple):
    """All that decides what a block computes, but the numbers of its parameters."""

    types: tuple[type, ...]
    tensors: tuple[Any, ...]
    convolution: tuple[Any, ...]
    pooling: tuple[Any, ...]


CONVOLUTION = ("stride", "dilation", "groups", "padding_mode", "padding", "kernel_size", "in_channels", "out_channels")
POOLING = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")


def settings_of(block: nn.Module) -> Settings:
    """What a block is now: anybody may have changed it since it was built."""
    convolution, *others = layers = tuple(block._modules.values()) or (None,)
    parameters = {} if convolution is None else convolution._parameters
    tensors = (parameters.get("weight"), parameters.get("bias"))
    return Settings(
        tuple(map(type, layers)),
        tuple(tensor is not None and (tensor.dtype, tensor.device.type, tuple(tensor.shape)) for tensor in tensors),
        tuple(_hashable(getattr(convolution, name, None)) for name in CONVOLUTION),
        tuple(_hashable(getattr(layer, name, None)) for layer in others[1:] for name in POOLING),
    )


def _hashable(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def shape_of(setting: Settings, height: int, width: int) -> BlockShape | None:
    """What the kernels take of a block's settings; None where they do not compute what the block does."""
    if not is_plain(setting):
        return None
    padding, (side, _), inputs, outputs = setting.convolution[-4:]
    here = (torch.float32, "cpu")
    if setting.tensors != ((*here, (outputs, inputs, side, side)), (*here, (outputs,))):
        return None
    return BlockShape(inputs, outputs, height, width, side, padding[0], 2 if setting.pooling else 1)


def is_plain(setting: Settings) -> bool:
    """Whether a block is still made of the layers that it was built of, and of sizes that kernels know."""
    *fixed, padding, kernel, _, _ = setting.convolution
    return (
        setting.types in ((nn.Conv2d, nn.ReLU), (nn.Conv2d, nn.ReLU, nn.MaxPool2d))
        and fixed == [(1, 1), (1, 1), 1, "zeros"]
        and setting.pooling in ((), (2, 2, 0, 1, False, False))
        and kernel[0] == kernel[1] <= MAX_KERNEL
        and kernel[0] % 2 == 1
        and isinstance(padding, tuple)
        and padding[0] == padding[1] >= 0
    )


def kernels_may_run() -> bool:
    """Whether Halide is installed, and torch neither traces, transforms nor casts what it runs."""
    return (
        is_installed()
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()  # type: ignore[attr-defined]
        and not torch._C._are_functorch_transforms_active()
        and forward_ad._current_level < 0
        and not torch.is_autocast_enabled("cpu")
    )


def kernels_for(settings: tuple[Settings, ...], x: object) -> "tuple[Block, ...]":
    """The kernels for these blocks and this input; none where torch has to run them."""
    if not kernels_may_run():
        return ()
    if isinstance(x, Lanes):
        size, number = x.size, x.number
    elif _is_batch(x):
        size, number = x.shape[1:], len(x)
    else:
        return ()
    found = _kernels(tuple(size), settings)
    largest = max((block.numbers for block in found), default=0)
    return found if (number + MAX_LANES) * largest <= MAX_NUMBERS else ()


def _is_batch(x: object) -> TypeGuard[Tensor]:
    """Whether an input is a batch of images in this machine's memory."""
    return (
        type(x) in (Tensor, nn.Parameter)
        and isinstance(x, Tensor)
        and (x.dtype, x.device.type, x.layout, x.dim()) == (torch.float32, "cpu", torch.strided, 4)
        and len(x) > 0
    )


@cache
def _kernels(size: tuple[int, ...], settings: tuple[Settings, ...]) -> "tuple[Block, ...]":
    """The kernels of blocks with these settings, for images of that size; none where one does not suit."""
    from ccvr.kernels.block import Block

    found: list[Block] = []
    channels, height, width = size
    for setting in settings:
        shape = shape_of(setting, height, width)
        if shape is None or shape.inputs != channels or min(shape.pooled) < 1:
            return ()  # torch says what is wrong, if anything is
        channels, (height, width) = shape.outputs, shape.pooled
        found.append(Block(shape))
    return tuple(found)


class Compiled(torch.autograd.Function):
    """Blocks over groups of lanes, [G, C, H, W, L] → [N, C', H', W']; the parameters are their weights and biases."""

    @staticmethod
    def forward(ctx: Any, blocks: "tuple[Block, ...]", number: int, z: Tensor, *parameters: Tensor) -> Tensor:
        inputs, places = [], []
        for at, block in enumerate(blocks):
            weight, bias = parameters[2 * at : 2 * at + 2]
            inputs.append(z)
            z, where = block.forward(z, weight.contiguous(), bias.contiguous(), grouped=at + 1 < len(blocks))
            places.append(where)
        ctx.blocks = blocks
        ctx.save_for_backward(*inputs, *places, *parameters)
        return z[:number].detach()  # no view, so that a layer behind may change it in place

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        blocks, needs = ctx.blocks, ctx.needs_input_grad[2:]
        inputs, places, parameters = _cut(ctx.saved_tensors, len(blocks))
        if torch.is_grad_enabled():  # somebody will differentiate this again
            return (None, None, *_differentiable(blocks, inputs[0], parameters, gradient, needs))
        found: list[Tensor | None] = []
        for at in reversed(range(len(blocks))):
            gradient, block = gradient.contiguous(), blocks[at]
            found = [*block.weight_gradient(inputs[at], gradient, places[at]), *found]
            if at or needs[0]:
                gradient = block.input_gradient(parameters[2 * at].contiguous(), gradient, places[at])
        if not needs[0]:
            return None, None, None, *found
        groups, *_, lanes = inputs[0].shape
        missing = groups * lanes - len(gradient)
        return None, None, Lanes.of(functional.pad(gradient, (0, 0, 0, 0, 0, 0, 0, missing)), lanes).groups, *found


def _cut(tensors: Sequence[Tensor], blocks: int) -> tuple[Sequence[Tensor], ...]:
    return tensors[:blocks], tensors[blocks : 2 * blocks], tensors[2 * blocks :]


def _differentiable(
    blocks: "tuple[Block, ...]", z: Tensor, parameters: Sequence[Tensor], gradient: Tensor, needed: Sequence[bool]
) -> list[Tensor | None]:
    """The gradients by torch's operations, which can be differentiated again."""
    z, *parameters = (tensor.view_as(tensor) for tensor in (z, *parameters))  # what they come from is not ours
    x = Lanes(z, len(gradient)).images()
    for block, weight, bias in zip(blocks, parameters[::2], parameters[1::2], strict=True):
        shape = block.shape
        x = functional.conv2d(x, weight, bias, padding=shape.padding)
        x = functional.relu(functional.max_pool2d(x, shape.pool) if shape.pool > 1 else x)
    wanted = [tensor for tensor, is_needed in zip((z, *parameters), needed, strict=True) if is_needed]
    found = iter(torch.autograd.grad(x, wanted, gradient, create_graph=True))
    return [next(found) if is_needed else None for is_needed in needed]
