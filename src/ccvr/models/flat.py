"""Named tensors in one piece of memory: one call copies, adds or looks at all of them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor

ALIGNED = 16
"""Every tensor begins at a multiple of so many numbers: in float32, where torch would begin it as well."""


@dataclass(frozen=True)
class Layout:
    """The names and shapes of some tensors that lie one after the other."""

    shapes: tuple[tuple[str, tuple[int, ...]], ...]

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> "Layout | None":
        """None unless all are contiguous float32 on the CPU, each in its own memory."""
        if not tensors or not all(_is_plain(tensor) for tensor in tensors.values()):
            return None
        if len({tensor.untyped_storage().data_ptr() for tensor in tensors.values()}) < len(tensors):
            return None
        return cls(tuple((name, tuple(tensor.shape)) for name, tensor in tensors.items()))

    @cached_property
    def parts(self) -> dict[str, tuple[tuple[int, ...], tuple[int, ...], int]]:
        """Shape, strides and beginning of each tensor, by its name."""
        found, begin = {}, 0
        for name, shape in self.shapes:
            found[name] = shape, tuple(prod(shape[axis + 1 :]) for axis in range(len(shape))), begin
            begin += _room(shape)
        return found

    @cached_property
    def size(self) -> int:
        """Numbers of the whole, gaps and all."""
        return sum(_room(shape) for _, shape in self.shapes)


class Flat(Mapping[str, Tensor]):
    """Named tensors that are the parts of ``whole`` [layout.size]. A part is made when it is asked for."""

    def __init__(self, layout: Layout, whole: Tensor) -> None:
        self.layout, self.whole = layout, whole

    def __getitem__(self, name: str) -> Tensor:
        shape, strides, begin = self.layout.parts[name]
        return self.whole.as_strided(shape, strides, self.whole.storage_offset() + begin)

    def __iter__(self) -> Iterator[str]:
        return iter(self.layout.parts)

    def __len__(self) -> int:
        return len(self.layout.parts)

    def __or__(self, other: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {**self, **other}

    def __ror__(self, other: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {**other, **self}


def flattened(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """A copy in one piece, or the tensors themselves where they cannot be laid out like that."""
    layout = Layout.of(tensors)
    if layout is None:
        return tensors
    flat = Flat(layout, torch.zeros(layout.size, dtype=torch.float32, device="cpu"))
    torch._foreach_copy_(list(flat.values()), list(tensors.values()))
    return flat


def whole_of(tensors: Mapping[str, Tensor], layout: Layout) -> Tensor | None:
    """The one tensor that some are the parts of; None where they are not laid out like that."""
    return tensors.whole if isinstance(tensors, Flat) and tensors.layout == layout else None


def _is_plain(tensor: Tensor) -> bool:
    here = (tensor.dtype, tensor.device.type, tensor.layout) == (torch.float32, "cpu", torch.strided)
    return here and tensor.is_contiguous() and tensor.numel() > 0 and not tensor.is_neg()


def _room(shape: tuple[int, ...]) -> int:
    return -(-prod(shape) // ALIGNED) * ALIGNED
