"""States and results between our own processes.

A state goes through the pipe as plain arrays, once a round. Results come back for every client, so they go through
memory that both sides map, at a quarter of the pipe's cost.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ccvr.algorithms.messages import GlobalState, LocalMetrics, LocalResult
from ccvr.models.flat import ALIGNED, Flat, Layout
from ccvr.models.state import flattened, plain

CARRIED = ("parameters", "buffers", "payload")
FLAT = ("parameters", "buffers")
"""Groups that are read in one piece where possible: the server adds them up."""
OTHERS = tuple(field.name for field in fields(LocalResult) if field.name not in (*CARRIED, "state"))
ALIGNMENT = 4 * ALIGNED

Key = tuple[str, str]
"""A tensor of a result: the field that it is in, and its name there."""
Shape = tuple[torch.dtype, tuple[int, ...]]
Packed = dict[str, tuple[Shape, NDArray[np.uint8]]]
State = tuple[Packed, Packed, Packed]


class Letter(NamedTuple):
    """A result without its tensors: they are at a place of the mailbox, or, where there was no room, ``outside``."""

    place: int
    layout: dict[Key, Shape] | None
    """None: the same as in the letter before."""
    outside: dict[Key, tuple[Shape, NDArray[np.uint8]]]
    bare: dict[str, Any]
    """The other fields."""


def pack_state(state: GlobalState) -> State:
    return _pack(state.parameters), _pack(state.buffers), _pack(state.broadcast)


def unpack_state(parcel: State) -> GlobalState:
    parameters, buffers, broadcast = ({name: _tensor(*piece) for name, piece in group.items()} for group in parcel)
    return GlobalState(flattened(parameters), flattened(buffers), broadcast)  # in one piece they load faster


class Mailbox:
    """A mapped file with places for several results, so that one is read while the next is written."""

    def __init__(self, path: Path, room: int, places: int = 2) -> None:
        if not path.exists():
            with path.open("wb") as file:
                file.truncate(places * room)
                if hasattr(os, "posix_fallocate"):  # a full disk is an error here, and a signal later
                    os.posix_fallocate(file.fileno(), 0, places * room)
        self._content = torch.from_numpy(np.memmap(path, np.uint8, "r+", shape=(places, room)))
        self._place = 0
        self._arrange({})

    def put(self, result: LocalResult) -> Letter:
        """Write the tensors of a result."""
        groups = {group: getattr(result, group) for group in CARRIED}
        layout = {(group, name): form for group, named in groups.items() for name, form in _forms(named).items()}
        known = layout == self._layout
        if not known:
            self._arrange(layout)
        self._place = (self._place + 1) % len(self._content)
        inside, outside, pairs = self._places[self._place], {}, []
        for group, named in groups.items():
            if isinstance(named, Flat) and group in self._flat:
                pairs.append((self._flat[group].over(self._content[self._place]).whole, named.whole))
                continue
            for name, tensor in named.items():
                if (group, name) in inside:
                    pairs.append((inside[group, name], tensor))
                else:
                    outside[group, name] = layout[group, name], _bytes_of(tensor)
        if pairs:
            with torch.no_grad():
                torch._foreach_copy_([ours for ours, _ in pairs], [theirs for _, theirs in pairs])
        bare = {name: getattr(result, name) for name in OTHERS} | {"metrics": vars(result.metrics)}
        return Letter(self._place, None if known else layout, outside, bare)

    def take(self, letter: Letter) -> LocalResult:
        """The result, copied out of the mailbox."""
        if letter.layout is not None:
            self._arrange(letter.layout)
        groups: dict[str, Any] = {group: {} for group in CARRIED}
        content = self._content[letter.place, : self._used].clone()  # in one piece: it costs as much as one tensor
        for (group, name), begin in self._begins.items():
            dtype, shape = self._layout[group, name]
            end = begin + dtype.itemsize * math.prod(shape)
            groups[group][name] = content[begin:end].view(dtype).view(shape)
        for (group, name), piece in letter.outside.items():
            groups[group][name] = _tensor(*piece)
        groups |= {group: flat.over(content) for group, flat in self._flat.items()}
        others = letter.bare | {"metrics": LocalMetrics(**letter.bare["metrics"])}
        return LocalResult(**groups, **others, state={})

    def _arrange(self, layout: dict[Key, Shape]) -> None:
        """Choose where each tensor lies in every place, as long as there is room."""
        self._layout, self._places = layout, [dict[Key, Tensor]() for _ in self._content]
        self._begins, begin = dict[Key, int](), 0
        for key, (dtype, shape) in layout.items():
            end = begin + dtype.itemsize * math.prod(shape)
            if end <= self._content.shape[1]:
                for content, inside in zip(self._content, self._places, strict=True):
                    inside[key] = content[begin:end].view(dtype).view(shape)
                self._begins[key] = begin
                begin = -(-end // ALIGNMENT) * ALIGNMENT
        self._used = begin
        self._flat = dict[str, _FlatGroup]()
        for group in FLAT:
            forms = {name: form for (of, name), form in layout.items() if of == group}
            flat, begins = Layout.of(forms), [self._begins.get((group, name)) for name in forms]
            if flat is not None and None not in begins:  # the group lies here as ``Flat`` lays it out
                self._flat[group] = _FlatGroup(flat, begins[0] or 0)
        self._begins = {key: begin for key, begin in self._begins.items() if key[0] not in self._flat}


class _FlatGroup(NamedTuple):
    """A group that lies in one piece, from a byte on."""

    layout: Layout
    begin: int

    def over(self, content: Tensor) -> Flat:
        """The group in some bytes."""
        size = self.layout.size * torch.float32.itemsize
        return Flat(self.layout, content[self.begin : self.begin + size].view(torch.float32))


def _forms(named: Mapping[str, Tensor]) -> Mapping[str, Shape]:
    if isinstance(named, Flat):
        return named.layout.forms
    return {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in named.items()}


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
