"""States and results on their way between our own processes.

A state goes through the pipe as plain arrays, once a round. Results come back for every client, so they go through
memory that both sides map, at a quarter of the pipe's price.
"""

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ccvr.models.state import Tensors, plain
from ccvr.training.local import GlobalState, LocalMetrics, LocalResult

CARRIED = ("parameters", "buffers", "payload")
OTHERS = tuple(field.name for field in fields(LocalResult) if field.name not in (*CARRIED, "memory"))
ALIGNMENT = 64

Key = tuple[str, str]
"""A tensor of a result: the field that it is in, and its name there."""
Shape = tuple[torch.dtype, tuple[int, ...]]
Packed = dict[str, tuple[Shape, NDArray[np.uint8]]]
State = tuple[Packed, Packed, Packed]


class Letter(NamedTuple):
    """A result without its tensors: they are in a half of the mailbox, or, where there was no room, ``outside``."""

    half: int
    layout: dict[Key, Shape] | None
    """None: as in the letter before."""
    outside: dict[Key, tuple[Shape, NDArray[np.uint8]]]
    bare: dict[str, Any]
    """The other fields."""


def pack_state(state: GlobalState) -> State:
    return _pack(state.parameters), _pack(state.buffers), _pack(state.broadcast)


def unpack_state(parcel: State) -> GlobalState:
    return GlobalState(*({name: _tensor(*piece) for name, piece in group.items()} for group in parcel))


class Mailbox:
    """A mapped file with room for two results: one may be read while the next is written."""

    def __init__(self, path: Path, room: int) -> None:
        if not path.exists():
            with path.open("wb") as file:
                file.truncate(2 * room)
                if hasattr(os, "posix_fallocate"):  # a full disk is an error here, and a signal later
                    os.posix_fallocate(file.fileno(), 0, 2 * room)
        self._halves = torch.from_numpy(np.memmap(path, np.uint8, "r+", shape=(2, room)))
        self._half = 0
        self._layout: dict[Key, Shape] = {}
        self._places: tuple[dict[Key, Tensor], dict[Key, Tensor]] = ({}, {})
        self._begins: dict[Key, int] = {}
        self._used = 0

    def put(self, result: LocalResult) -> Letter:
        """Write the tensors of a result."""
        tensors = {(group, name): t for group in CARRIED for name, t in getattr(result, group).items()}
        layout = {key: (t.dtype, tuple(t.shape)) for key, t in tensors.items()}
        known = layout == self._layout
        if not known:
            self._arrange(layout)
        self._half ^= 1
        places = self._places[self._half]
        if places:
            with torch.no_grad():
                torch._foreach_copy_(list(places.values()), [tensors[key] for key in places])
        outside = {key: (layout[key], _bytes_of(t)) for key, t in tensors.items() if key not in places}
        bare = {name: getattr(result, name) for name in OTHERS} | {"metrics": vars(result.metrics)}
        return Letter(self._half, None if known else layout, outside, bare)

    def take(self, letter: Letter) -> LocalResult:
        """The result, copied out of the mailbox."""
        if letter.layout is not None:
            self._arrange(letter.layout)
        groups: dict[str, Any] = {group: {} for group in CARRIED}
        content = self._halves[letter.half, : self._used].clone()  # in one piece: it costs as much as one tensor
        typed = {dtype: content.view(dtype) for dtype, _ in self._layout.values()}
        for (group, name), begin in self._begins.items():
            dtype, shape = self._layout[group, name]
            place = self._places[letter.half][group, name]
            groups[group][name] = typed[dtype].as_strided(shape, place.stride(), begin // dtype.itemsize)
        for (group, name), piece in letter.outside.items():
            groups[group][name] = _tensor(*piece)
        others = letter.bare | {"metrics": LocalMetrics(**letter.bare["metrics"])}
        return LocalResult(**groups, **others, memory={})

    def _arrange(self, layout: dict[Key, Shape]) -> None:
        """Give every tensor its place in both halves, as long as there is room."""
        self._layout, self._places, self._begins = layout, ({}, {}), {}
        begin = 0
        for key, (dtype, shape) in layout.items():
            end = begin + dtype.itemsize * int(np.prod(shape, dtype=np.int64))
            if end <= self._halves.shape[1]:
                for half, places in zip(self._halves, self._places, strict=True):
                    places[key] = half[begin:end].view(dtype).view(shape)
                self._begins[key] = begin
                begin = -(-end // ALIGNMENT) * ALIGNMENT
        self._used = begin


def _pack(tensors: Mapping[str, Tensor]) -> Packed:
    return {name: ((t.dtype, tuple(t.shape)), _bytes_of(t)) for name, t in tensors.items()}


def _bytes_of(tensor: Tensor) -> NDArray[np.uint8]:
    return plain(tensor).view(-1).view(torch.uint8).numpy()  # as bytes: NumPy has no bfloat16


def _tensor(shape: Shape, content: NDArray[np.uint8]) -> Tensor:
    return torch.from_numpy(content).view(shape[0]).view(shape[1])


def room_for(*groups: Tensors) -> int:
    """Bytes for a result with these tensors, and as much again for what an algorithm adds."""
    each = (tensor.numel() * tensor.element_size() + ALIGNMENT for group in groups for tensor in group.values())
    return ALIGNMENT * -(-2 * sum(each) // ALIGNMENT)
