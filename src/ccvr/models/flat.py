"""Named tensors in one piece of memory: one call adds all of them."""

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
    """The names and shapes of some tensors that lie one after the other, each contiguous."""

    shapes: tuple[tuple[str, tuple[int, ...]], ...]

    @classmethod
    def of(cls, forms: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]) -> "Layout | None":
        """The layout of tensors of these types and shapes; None unless there are some, and all are float32."""
        if not forms or any(dtype != torch.float32 for dtype, _ in forms.values()):
            return None
        return cls(tuple((name, shape) for name, (_, shape) in forms.items()))

    @cached_property
    def parts(self) -> dict[str, tuple[tuple[int, ...], tuple[int, ...], int]]:
        """Shape, strides and beginning of each tensor, by its name."""
        found, begin = {}, 0
        for name, shape in self.shapes:
            found[name] = shape, tuple(prod(shape[axis + 1 :]) for axis in range(len(shape))), begin
            begin += _room(shape)
        return found

    @cached_property
    def forms(self) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """Type and shape of each tensor."""
        return {name: (torch.float32, shape) for name, shape in self.shapes}

    @cached_property
    def size(self) -> int:
        """Numbers of the whole, with the gaps between the tensors."""
        return sum(_room(shape) for _, shape in self.shapes)


class Flat(Mapping[str, Tensor]):
    """Named tensors that are the parts of ``whole`` [layout.size]; a part is made when it is asked for.

    A mapping that nobody can add to. What lies in the gaps means nothing.

    Example:
    >>> flat = Flat(Layout((("weight", (2, 3)), ("bias", (2,)))), torch.zeros(32))
    >>> flat["weight"].shape
    torch.Size([2, 3])
    """

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

    def __repr__(self) -> str:
        return repr(self.copy())

    def copy(self) -> dict[str, Tensor]:
        """A dict of the same tensors, as ``dict.copy`` gives."""
        return dict(self)


def whole_of(tensors: Mapping[str, Tensor], layout: Layout) -> Tensor | None:
    """The one tensor that some are the parts of; None where they are not laid out like that."""
    return tensors.whole if isinstance(tensors, Flat) and tensors.layout == layout else None


def _room(shape: tuple[int, ...]) -> int:
    return -(-prod(shape) // ALIGNED) * ALIGNED
