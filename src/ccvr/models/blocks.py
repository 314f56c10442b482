"""Blocks of convolution, ReLU and max-pooling, which compiled kernels can run; and a sequence that holds them.

Each layer is torch's own. Kernels (``ccvr.kernels``) run the blocks once ``use_kernels`` has said so, on the CPU and in
float32. Otherwise, and wherever hooks listen to a layer inside, torch runs them.
"""

from collections.abc import Sequence
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from ccvr.kernels.lanes import Lanes
from ccvr.kernels.machine import MAX_NUMBERS, is_installed, this_machine
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
        super().__init__(nn.Conv2d(inputs, outputs, kernel, padding=padding), nn.ReLU())
        if pool > 1:
            self.append(nn.MaxPool2d(pool))
        self.pool = pool

    @property
    def convolution(self) -> nn.Conv2d:
        first = self._modules["0"]  # indexing a sequence costs more
        assert isinstance(first, nn.Conv2d)
        return first

    def forward(self, x: Tensor | Lanes) -> Tensor:
        return run_blocks([self], x)


class BlockSequential(nn.Sequential):
    """``nn.Sequential`` in which blocks that follow each other run as one, unless somebody listens between them."""

    def forward(self, x: Any) -> Any:
        for are_blocks, layers in groupby(self, lambda layer: isinstance(layer, ConvBlock)):
            row = list(layers)
            if are_blocks and not any(is_heard(layer, *layer._modules.values()) for layer in row):
                x = run_blocks(row, x)  # type: ignore[arg-type]
                continue
            for layer in row:
                x = layer(x)
        return x

    def takes_lanes(self) -> bool:
        """Whether it begins with a block that takes ``Lanes``."""
        first = next(iter(self), None)
        return (
            isinstance(first, ConvBlock)
            and first.kernels
            and is_installed()
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
            module.kernels = on
            module.convolution.weight.data = module.convolution.weight.data.contiguous(memory_format=layout)
    return model


def suits_kernels(model: nn.Module) -> bool:
    """Whether the model holds blocks, and compiled kernels can run each of them."""
    blocks = [module for module in model.modules() if isinstance(module, ConvBlock)]
    return bool(blocks) and all(_shape(_settings(block), 1, 1) for block in blocks)


def run_blocks(blocks: Sequence[ConvBlock], x: Tensor | Lanes) -> Tensor:
    """Images [B, C, H, W], or ``Lanes``, through some blocks, one after the other."""
    if compiled := _compiled(blocks, x):
        lanes = x if isinstance(x, Lanes) else Lanes.of(x, this_machine().lanes)
        parameters = [tensor for block in blocks for tensor in (block.convolution.weight, block.convolution.bias)]
        images: Tensor = _Compiled.apply(compiled, lanes.groups, *parameters)
        return images if len(images) == lanes.number else images[: lanes.number]
    images = x.images() if isinstance(x, Lanes) else x
    if blocks[0].training and all(
        not is_heard(*block._modules.values()) and _is_plain(_settings(block)) for block in blocks
    ):
        return _shorter(blocks, images)
    for block in blocks:
        for layer in block:
            images = layer(images)
    return images


def is_heard(*modules: nn.Module | None) -> bool:
    """Whether hooks listen to one of some modules."""
    for module in modules:
        if module is not None and (
            module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
        ):
            return True
    return False


def _shorter(blocks: Sequence[ConvBlock], x: Tensor) -> Tensor:
    """The same numbers by torch, to rounding, in less time.

    Max-pooling first leaves ReLU a quarter of the work, and commutes with it. Zero filters that fill the channels
    between two convolutions up to whole registers cost less than the gaps do.
    """
    x, filled = x.contiguous(memory_format=torch.channels_last), 0
    for number, block in enumerate(blocks, 1):
        convolution = block.convolution
        missing = -convolution.out_channels % FILLED if number < len(blocks) else 0
        weight = functional.pad(convolution.weight, (0, 0, 0, 0, 0, filled, 0, missing))
        bias = None if convolution.bias is None else functional.pad(convolution.bias, (0, missing))
        x = functional.conv2d(x, weight, bias, padding=convolution.padding)
        x = functional.relu(functional.max_pool2d(x, block.pool) if block.pool > 1 else x)
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
            z, where = block.forward(z, weight.contiguous(), bias, grouped=at + 1 < len(blocks))
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
    blocks: "tuple[Block, ...]",
    z: Tensor,
    parameters: Sequence[Tensor],
    gradient: Tensor,
    needed: Sequence[bool],
) -> list[Tensor | None]:
    """The gradients by torch's operations, which can be differentiated again."""
    x = Lanes(z, z.shape[0] * z.shape[-1]).images()
    for block, weight, bias in zip(blocks, parameters[::2], parameters[1::2], strict=True):
        shape = block.shape
        x = functional.conv2d(x, weight, bias, padding=shape.padding)
        x = functional.relu(functional.max_pool2d(x, shape.pool) if shape.pool > 1 else x)
    wanted = [tensor for tensor, is_needed in zip((z, *parameters), needed, strict=True) if is_needed]
    found = iter(torch.autograd.grad(x, wanted, gradient, create_graph=True))
    return [next(found) if is_needed else None for is_needed in needed]


def _compiled(blocks: Sequence[ConvBlock], x: object) -> "tuple[Block, ...]":
    """The kernels for these blocks and this input; none where torch has to run them."""
    if not all(block.kernels and not is_heard(*block._modules.values()) for block in blocks) or not is_installed():
        return ()
    if not isinstance(x, Lanes) and not _is_numbers(x):
        return ()
    size, number = (x.size, x.number) if isinstance(x, Lanes) else (x.shape[1:], len(x))  # type: ignore
    found = _kernels(tuple(size), tuple(_settings(block) for block in blocks))
    largest = max((block.numbers for block in found), default=0)
    return found if (number + this_machine().lanes) * largest <= MAX_NUMBERS else ()


def _is_numbers(x: object) -> bool:
    """Whether an input is a batch in this machine's memory, and not a stand-in that torch traces or transforms."""
    return (
        not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()  # type: ignore[attr-defined]
        and not torch._C._are_functorch_transforms_active()
        and type(x) in (Tensor, nn.Parameter)
        and isinstance(x, Tensor)
        and (x.dtype, x.device.type, x.dim()) == (torch.float32, "cpu", 4)
        and len(x) > 0
    )


class Settings(NamedTuple):
    """All that decides what a block computes, but the numbers of its parameters."""

    types: tuple[type, ...]
    tensors: tuple[tuple[torch.dtype, str] | None, ...]
    convolution: tuple[Any, ...]
    pooling: tuple[Any, ...]


def _settings(block: ConvBlock) -> Settings:
    layers = tuple(block._modules.values())
    convolution, *pooling = layers[0], *layers[2:]
    tensors = [convolution._parameters.get("weight"), convolution._parameters.get("bias")]
    return Settings(
        tuple(map(type, layers)),
        tuple(None if tensor is None else (tensor.dtype, tensor.device.type) for tensor in tensors),
        tuple(getattr(convolution, name, None) for name in CONVOLUTION),
        tuple(getattr(layer, name, None) for layer in pooling for name in POOLING),
    )


CONVOLUTION = ("stride", "dilation", "groups", "padding_mode", "padding", "kernel_size", "in_channels", "out_channels")
POOLING = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
ON_CPU = (torch.float32, "cpu")


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
    if not _is_plain(setting) or setting.tensors != (ON_CPU, ON_CPU):
        return None
    padding, kernel, inputs, outputs = setting.convolution[-4:]
    return BlockShape(inputs, outputs, height, width, kernel[0], padding[0], 2 if setting.pooling else 1)


def _is_plain(setting: Settings) -> bool:
    """Whether a block is still made of the layers that it was built of, and of sizes that kernels know."""
    *fixed, padding, kernel, _, _ = setting.convolution
    return (
        setting.types == (nn.Conv2d, nn.ReLU, nn.MaxPool2d)[: len(setting.types)]
        and fixed == [(1, 1), (1, 1), 1, "zeros"]
        and setting.pooling in ((), (2, 2, 0, 1, False, False))
        and kernel[0] == kernel[1] <= MAX_KERNEL
        and kernel[0] % 2 == 1
        and isinstance(padding, tuple)
        and padding[0] == padding[1]
    )
