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

from ccvr.models.flat import Flat, Layout, flattened
from ccvr.models.state import plain
from ccvr.training.local import GlobalState, LocalMetrics, LocalResult

CARRIED = ("parameters", "buffers", "payload")
OTHERS = tuple(field.name for field in fields(LocalResult) if field.name not in (*CARRIED, "memory"))
ALIGNMENT = 64

Key = tuple[str, str]
"""A tensor of a result: the field that it is in, and its name there; no name where the field is in one piece."""
Shape = tuple[torch.dtype, tuple[int, ...]]
Packed = dict[str, tuple[Shape, NDArray[np.uint8]]]
State = tuple[Packed, Packed, Packed]


class Form(NamedTuple):
    """What results look like without their numbers: all tensors, and the layouts of those fields that are flat."""

    shapes: dict[Key, Shape]
    flat: dict[str, Layout]


class Letter(NamedTuple):
    """A result without its tensors: they are at a place of the mailbox, or, where there was no room, ``outside``."""

    place: int
    form: Form | None
    """None: as in the letter before."""
    outside: dict[Key, tuple[Shape, NDArray[np.uint8]]]
    bare: dict[str, Any]
    """The other fields."""


def pack_state(state: GlobalState) -> State:
    return _pack(state.parameters), _pack(state.buffers), _pack(state.broadcast)


def unpack_state(parcel: State) -> GlobalState:
    parameters, buffers, broadcast = ({name: _tensor(*piece) for name, piece in group.items()} for group in parcel)
    return GlobalState(flattened(parameters), flattened(buffers), broadcast)


class Mailbox:
    """A mapped file with places for some results: those may be read while the next are written."""

    def __init__(self, path: Path, room: int, places: int = 2) -> None:
        if not path.exists():
            with path.open("wb") as file:
                file.truncate(places * room)
                if hasattr(os, "posix_fallocate"):  # a full disk is an error here, and a signal later
                    os.posix_fallocate(file.fileno(), 0, places * room)
        self._content = torch.from_numpy(np.memmap(path, np.uint8, "r+", shape=(places, room)))
        self._place = 0
        self._form = Form({}, {})
        self._places: list[dict[Key, Tensor]] = [{} for _ in self._content]
        self._begins: dict[Key, int] = {}
        self._used = 0

    def put(self, result: LocalResult) -> Letter:
        """Write the tensors of a result."""
        groups = {group: getattr(result, group) for group in CARRIED}
        flat = {group: named for group, named in groups.items() if isinstance(named, Flat)}
        pieces = groups | {group: {"": named.whole} for group, named in flat.items()}
        tensors = {(group, name): t for group, named in pieces.items() for name, t in named.items()}
        form = Form(
            {key: (t.dtype, tuple(t.shape)) for key, t in tensors.items()},
            {group: named.layout for group, named in flat.items()},
        )
        known = form == self._form
        if not known:
            self._arrange(form)
        self._place = (self._place + 1) % len(self._content)
        inside = self._places[self._place]
        if inside:
            with torch.no_grad():
                torch._foreach_copy_(list(inside.values()), [tensors[key] for key in inside])
        outside = {key: (form.shapes[key], _bytes_of(t)) for key, t in tensors.items() if key not in inside}
        bare = {name: getattr(result, name) for name in OTHERS} | {"metrics": vars(result.metrics)}
        return Letter(self._place, None if known else form, outside, bare)

    def take(self, letter: Letter) -> LocalResult:
        """The result, copied out of the mailbox."""
        if letter.form is not None:
            self._arrange(letter.form)
        groups: dict[str, Any] = {group: {} for group in CARRIED}
        content = self._content[letter.place, : self._used].clone()  # in one piece: it costs as much as one tensor
        typed = {dtype: content.view(dtype) for dtype, _ in self._form.shapes.values()}
        for (group, name), begin in self._begins.items():
            dtype, shape = self._form.shapes[group, name]
            place = self._places[letter.place][group, name]
            groups[group][name] = typed[dtype].as_strided(shape, place.stride(), begin // dtype.itemsize)
        for (group, name), piece in letter.outside.items():
            groups[group][name] = _tensor(*piece)
        groups |= {group: Flat(layout, groups[group][""]) for group, layout in self._form.flat.items()}
        others = letter.bare | {"metrics": LocalMetrics(**letter.bare["metrics"])}
        return LocalResult(**groups, **others, memory={})

    def _arrange(self, form: Form) -> None:
        """Lay out every tensor at all places, as long as there is room."""
        self._form, self._places, self._begins = form, [{} for _ in self._content], {}
        begin = 0
        for key, (dtype, shape) in form.shapes.items():
            end = begin + dtype.itemsize * int(np.prod(shape, dtype=np.int64))
            if end <= self._content.shape[1]:
                for content, inside in zip(self._content, self._places, strict=True):
                    inside[key] = content[begin:end].view(dtype).view(shape)
                self._begins[key] = begin
                begin = -(-end // ALIGNMENT) * ALIGNMENT
        self._used = begin


def _pack(tensors: Mapping[str, Tensor]) -> Packed:
    return {name: ((t.dtype, tuple(t.shape)), _bytes_of(t)) for name, t in tensors.items()}


def _bytes_of(tensor: Tensor) -> NDArray[np.uint8]:
    return plain(tensor).view(-1).view(torch.uint8).numpy()  # as bytes: NumPy has no bfloat16


def _tensor(shape: Shape, content: NDArray[np.uint8]) -> Tensor:
    return torch.from_numpy(content).view(shape[0]).view(shape[1])


def room_for(*groups: Mapping[str, Tensor]) -> int:
    """Bytes for a result with these tensors, and as much again for what an algorithm adds."""
    each = (tensor.numel() * tensor.element_size() + ALIGNMENT for group in groups for tensor in group.values())
    return ALIGNMENT * -(-2 * sum(each) // ALIGNMENT)
