"""The kernel that gathers uint8 images, cuts them out, mirrors and normalises them, and puts them into the lanes."""

from functools import cache
from typing import Any

import halide as hl
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ccvr.kernels.crops import Crops
from ccvr.kernels.lanes import Lanes
from ccvr.kernels.machine import Machine, target_of, this_machine
from ccvr.kernels.parameters import array

lane, x, y, c, g = (hl.Var(name) for name in ("lane", "x", "y", "c", "g"))
LEFT_OUT = -1
"""The index of a lane that no image fills."""


def gather(crops: Crops, scale: Tensor, shift: Tensor) -> Lanes:
    """The crops, normalised by scale [C] and shift [C]; lanes that no image fills are zero.

    Crops that lie outside of the images raise an IndexError.
    """
    channels, *whole = crops.whole.shape[1:]
    machine = this_machine()
    groups = -(-len(crops) // machine.lanes)
    places = np.zeros((4, groups * machine.lanes), np.int64)
    places[0, len(crops) :] = LEFT_OUT
    for number, values in enumerate((crops.index, *(crops.shifts or ()))):
        places[number, : len(crops)] = values
    limits = np.array([len(crops.whole), whole[0] - crops.size[0] + 1, whole[1] - crops.size[1] + 1, 2])
    used = places[:, : len(crops)]
    if used.min(initial=0) < 0 or (used.max(1, initial=0) >= limits).any():
        raise IndexError(f"some crops lie outside of the {len(crops.whole)} images of {whole[0]} x {whole[1]} pixels.")
    if crops.whole.dtype != torch.uint8 or not crops.is_small:
        raise ValueError(
            f"Expected uint8 images of fewer than 2**31 pixels together, got {len(crops)} of {crops.whole.dtype} and "
            f"{crops.size[0]} x {crops.size[1]} pixels. Pass uint8, in smaller batches."
        )
    out = torch.empty(groups, channels, *crops.size, machine.lanes, dtype=torch.float32, device="cpu")
    kernel = _gather(channels, crops.size, (whole[0], whole[1]), machine)
    lanes = places.astype(np.int32).reshape(4, groups, machine.lanes)
    kernel(crops.whole.numpy(), *lanes, _of_channels(scale, channels), _of_channels(shift, channels), out.numpy())
    return Lanes(out, len(crops))


def _of_channels(tensor: Tensor, channels: int) -> NDArray[np.float32]:
    """One number a channel, or one for all."""
    found = tensor.detach().numpy().reshape(-1).astype(np.float32, copy=False)
    return found if len(found) == channels else np.full(channels, found)


@cache
def _gather(channels: int, size: tuple[int, int], whole: tuple[int, int], machine: Machine) -> Any:
    lanes, (height, width) = machine.lanes, size
    images = array("images", whole[1], whole[0], channels, None, kind=hl.UInt(8))
    names = ("index", "row", "column", "mirrored")
    index, row, column, mirrored = inputs = [array(name, lanes, None, kind=hl.Int(32)) for name in names]
    scale, shift = array("scale", channels), array("shift", channels)
    z = hl.Func("z")
    across = hl.select(mirrored[lane, g] != 0, width - 1 - x, x)
    pixel = images[
        hl.clamp(column[lane, g] + across, 0, whole[1] - 1),
        hl.clamp(row[lane, g] + y, 0, whole[0] - 1),
        c,
        hl.clamp(index[lane, g], 0, images.dim(3).extent() - 1),
    ]
    normalised = hl.cast(hl.Float(32), pixel) * scale[c] - shift[c]
    z[lane, x, y, c, g] = hl.select(index[lane, g] == LEFT_OUT, hl.f32(0), normalised)
    z.bound(lane, 0, lanes).bound(x, 0, width).bound(y, 0, height).bound(c, 0, channels).vectorize(lane)
    return z.compile_to_callable([images, *inputs, scale, shift], target_of(machine))
