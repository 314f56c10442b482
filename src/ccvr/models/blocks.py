"""Blocks of convolution, ReLU and max-pooling, which compiled kernels can run; and a sequence that holds them.

Each layer is torch's own. Kernels (``ccvr.kernels``) run the blocks once ``use_kernels`` has said so, on the CPU and in
float32. Otherwise, and wherever hooks listen to a layer inside, torch runs them.
"""

from collections.abc import Sequence
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional
from torch.nn.modules.module import _has_any_global_hook

from ccvr.kernels.lanes import Lanes
from ccvr.kernels.machine import MAX_LANES, MAX_NUMBERS, is_installed, this_machine
from ccvr.kernels.shape import BlockShape

if TYPE_CHECKING:
    from ccvr.kernels.block import Block

MAX_KERNEL = 11
"""Side of the largest kernel whose sums fit into the registers."""
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
            if are_blocks and not any(is_heard(layer, *layer._modules.values()) for layer in row):
                x = run_blocks(row, x)
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
        and _shape(_settings(first), 1, 1) is not None
    )


def kernels_may_run() -> bool:
    """Whether Halide is installed, and torch neither traces nor transforms what it runs."""
    return (
        is_installed()
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()  # type: ignore[attr-defined]
        and not torch._C._are_functorch_transforms_active()
        and forward_ad._current_level < 0
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
            module.kernels = on
            convolution = module._modules.get("0")
            if type(convolution) is nn.Conv2d:
                convolution.weight.data = convolution.weight.data.contiguous(memory_format=layout)
    return model


def unsuited_block(model: nn.Module) -> str | None:
    """The path of the first block that compiled kernels do not take; None where they take all, "" for no blocks."""
    blocks = {path: module for path, module in model.named_modules() if isinstance(module, ConvBlock)}
    unsuited = [path for path, block in blocks.items() if not _is_block(block) or not _shape(_settings(block), 1, 1)]
    return unsuited[0] if unsuited else None if blocks else ""


def run_blocks(blocks: Sequence[nn.Module], x: Tensor | Lanes) -> Tensor:
    """Images [B, C, H, W], or ``Lanes``, through some blocks, one after the other."""
    settings = tuple(_settings(block) for block in blocks)
    heard = any(is_heard(*block._modules.values()) for block in blocks)
    if compiled := () if heard else _compiled(blocks, settings, x):
        lanes = x if isinstance(x, Lanes) else Lanes.of(x, this_machine().lanes)
        images: Tensor = _Compiled.apply(compiled, lanes.groups, *_parameters(blocks))
        return images if len(images) == lanes.number else images[: lanes.number]
    images = x.images() if isinstance(x, Lanes) else x
    if blocks[0].training and not heard and images.dim() == 4 and all(map(_is_plain, settings)):
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
        x = functional.relu(functional.max_pool2d(x, 2) if pooling else x)
        filled = missing
    return x


# --- compiled kernels -------------------------------------------------------------------------------------------------


class _Compiled(torch.autograd.Function):
    """Blocks over groups of lanes, [G, C, H, W, L] → [G L, C', H', W']; the parameters are their weights and biases."""

    @staticmethod
    def forward(ctx: Any, blocks: "tuple[Block, ...]", z: Tensor, *parameters: Tensor) -> Tensor:
        inputs, places = [], []
        for at, block in enumerate(blocks):
            weight, bias = parameters[2 * at : 2 * at + 2]
            inputs.append(z)
            z, where = block.forward(z, weight.contiguous(), bias.contiguous(), grouped=at + 1 < len(blocks))
            places.append(where)
        ctx.blocks = blocks
        ctx.save_for_backward(*inputs, *places, *parameters)
        return z

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        blocks, needs = ctx.blocks, ctx.needs_input_grad[1:]
        inputs, places, parameters = _cut(ctx.saved_tensors, len(blocks))
        if torch.is_grad_enabled():  # somebody will differentiate this again
            return (None, *_differentiable(blocks, inputs[0], parameters, gradient, needs))
        found: list[Tensor | None] = []
        for at in reversed(range(len(blocks))):
            gradient, block = gradient.contiguous(), blocks[at]
            found = [*block.weight_gradient(inputs[at], gradient, places[at]), *found]
            if at or needs[0]:
                gradient = block.input_gradient(parameters[2 * at].contiguous(), gradient, places[at])
        return None, Lanes.of(gradient, inputs[0].shape[-1]).groups if needs[0] else None, *found


def _cut(tensors: Sequence[Tensor], blocks: int) -> tuple[Sequence[Tensor], ...]:
    return tensors[:blocks], tensors[blocks : 2 * blocks], tensors[2 * blocks :]


def _differentiable(
    blocks: "tuple[Block, ...]", z: Tensor, parameters: Sequence[Tensor], gradient: Tensor, needed: Sequence[bool]
) -> list[Tensor | None]:
    """The gradients by torch's operations, which can be differentiated again."""
    z, *parameters = (tensor.view_as(tensor) for tensor in (z, *parameters))  # what they come from is not ours
    x = Lanes(z, z.shape[0] * z.shape[-1]).images()
    for block, weight, bias in zip(blocks, parameters[::2], parameters[1::2], strict=True):
        shape = block.shape
        x = functional.conv2d(x, weight, bias, padding=shape.padding)
        x = functional.relu(functional.max_pool2d(x, shape.pool) if shape.pool > 1 else x)
    wanted = [tensor for tensor, is_needed in zip((z, *parameters), needed, strict=True) if is_needed]
    found = iter(torch.autograd.grad(x, wanted, gradient, create_graph=True))
    return [next(found) if is_needed else None for is_needed in needed]


def _compiled(blocks: Sequence[nn.Module], settings: "tuple[Settings, ...]", x: object) -> "tuple[Block, ...]":
    """The kernels for these blocks and this input; none where torch has to run them."""
    if not all(block.kernels for block in blocks) or not kernels_may_run():
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


class Settings(NamedTuple):
    """All that decides what a block computes, but the numbers of its parameters."""

    types: tuple[type, ...]
    tensors: tuple[Any, ...]
    convolution: tuple[Any, ...]
    pooling: tuple[Any, ...]


CONVOLUTION = ("stride", "dilation", "groups", "padding_mode", "padding", "kernel_size", "in_channels", "out_channels")
POOLING = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")


def _settings(block: nn.Module) -> Settings:
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


@cache
def _kernels(size: tuple[int, ...], settings: tuple[Settings, ...]) -> "tuple[Block, ...]":
    """The kernels of blocks with these settings, for images of that size; none where one does not suit."""
    from ccvr.kernels.block import Block

    found: list[Block] = []
    channels, height, width = size
    for setting in settings:
        shape = _shape(setting, height, width)
        if shape is None or shape.inputs != channels or min(shape.pooled) < 1:
            return ()  # torch says what is wrong, if anything is
        channels, (height, width) = shape.outputs, shape.pooled
        found.append(Block(shape))
    return tuple(found)


def _shape(setting: Settings, height: int, width: int) -> BlockShape | None:
    """What the kernels take of a block's settings; None where they do not compute what the block does."""
    if not _is_plain(setting):
        return None
    padding, (side, _), inputs, outputs = setting.convolution[-4:]
    here = (torch.float32, "cpu")
    if setting.tensors != ((*here, (outputs, inputs, side, side)), (*here, (outputs,))):
        return None
    return BlockShape(inputs, outputs, height, width, side, padding[0], 2 if setting.pooling else 1)


def _is_plain(setting: Settings) -> bool:
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
