"""Convolution k × k of stride 1, max-pooling, ReLU: forward and gradients, compiled by Halide for one shape.

Activations lie in groups, [G, C, H, W, L]: the L images of a group fill a vector register, one in each lane, so no lane
is empty, whatever the number of channels. Kernels do not depend on the number of groups. Halide's dimension 0 is the
last one here.
"""

from functools import cache
from typing import Any

import halide as hl
import torch
from torch import Tensor

from ccvr.kernels.machine import Machine, target_of, this_machine
from ccvr.kernels.parameters import array
from ccvr.kernels.shape import BlockShape

FIRST_LEVEL_CACHE = 16 * 1024
"""Bytes of gradients that the weight gradient keeps at hand: half of the smallest first-level cache."""

lane, x, y, c, g, i = (hl.Var(name) for name in ("lane", "x", "y", "c", "g", "i"))
kx, ky = hl.Var("kx"), hl.Var("ky")
xo, xi, yo, yi, co, ci = (hl.Var(name) for name in ("xo", "xi", "yo", "yi", "co", "ci"))


class Block:
    """The kernels of one shape. Tensors are float32 on the CPU and contiguous; each kernel compiles when first used.

    ``z`` [G, C, H, W, L] is the input, ``p`` [G, C', H', W', L] the output. ``places`` says which of its pool × pool
    numbers each output is, in rows; pool² stands for none, where ReLU gave zero.
    """

    def __init__(self, shape: BlockShape, machine: Machine | None = None) -> None:
        self.shape, self.machine = shape, machine or this_machine()
        lanes = self.machine.lanes
        self._weight = (shape.outputs, shape.inputs, shape.kernel, shape.kernel)
        self._bias = (shape.outputs,)
        self._input = (shape.inputs, shape.height, shape.width, lanes)
        self._output = (shape.outputs, *shape.pooled, lanes)

    def forward(self, z: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """``p`` and ``places``."""
        groups = len(z)
        p = torch.empty(groups, *self._output)
        places = torch.empty(groups, *self._output, dtype=torch.uint8)
        kernel = _forward(self.shape, self.machine)
        kernel(
            _checked(z, groups, *self._input),
            _checked(weight, *self._weight),
            _checked(bias, *self._bias),
            p.numpy(),
            places.numpy(),
        )
        return p, places

    def weight_gradient(self, z: Tensor, gradient: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of weight and bias, from the gradient of ``p``."""
        groups, weight, bias = len(z), torch.empty(self._weight), torch.empty(self._bias)
        _weight_gradient(self.shape, self.machine)(
            _checked(z, groups, *self._input), *self._checked(groups, gradient, places), weight.numpy(), bias.numpy()
        )
        return weight, bias

    def input_gradient(self, weight: Tensor, gradient: Tensor, places: Tensor) -> Tensor:
        """The gradient of ``z``."""
        groups = len(gradient)
        z = torch.empty(groups, *self._input)
        _input_gradient(self.shape, self.machine)(
            _checked(weight, *self._weight), *self._checked(groups, gradient, places), z.numpy()
        )
        return z

    def _checked(self, groups: int, gradient: Tensor, places: Tensor) -> tuple[Any, Any]:
        return _checked(gradient, groups, *self._output), _checked(places, groups, *self._output, kind=torch.uint8)


def _checked(tensor: Tensor, *shape: int, kind: torch.dtype = torch.float32) -> Any:
    """The tensor's memory as the kernels take it: they look at no shape themselves."""
    if tensor.shape != shape or tensor.dtype != kind or not tensor.is_contiguous():
        raise ValueError(
            f"a kernel was given {tensor.dtype} of shape {list(tensor.shape)} with strides {list(tensor.stride())}; "
            f"it takes contiguous {kind} of shape {list(shape)}."
        )
    return tensor.detach().numpy()


def _padded(z: Any, shape: BlockShape) -> Any:
    """``z`` with zeros around it; itself without padding."""
    if not shape.padding:
        return z
    padded = hl.Func("padded")
    inside = (x >= 0) & (x < shape.width) & (y >= 0) & (y < shape.height)
    at = z[lane, hl.clamp(x, 0, shape.width - 1), hl.clamp(y, 0, shape.height - 1), i, g]
    padded[lane, x, y, i, g] = hl.select(inside, at, hl.f32(0))
    return padded


@cache
def _forward(shape: BlockShape, machine: Machine) -> Any:
    lanes, q, k = machine.lanes, shape.pool, shape.kernel
    height, width = shape.pooled
    z = array("z", lanes, shape.width, shape.height, shape.inputs, None)
    weight, bias = array("weight", k, k, shape.inputs, shape.outputs), array("bias", shape.outputs)
    padded = _padded(z, shape)
    r = hl.RDom([(0, k), (0, k), (0, shape.inputs)], "r")
    sums, p = hl.Func("sums"), hl.Func("p")
    sums[lane, x, y, c, g] = bias[c]
    shifted = padded[lane, x + r.x - shape.padding, y + r.y - shape.padding, r.z, g]
    sums[lane, x, y, c, g] += weight[r.x, r.y, r.z, c] * shifted
    corners = [hl.Expr(sums[lane, q * x + at % q, q * y + at // q, c, g]) for at in range(q * q)]
    most, place = _first_maximum(corners)
    p[lane, x, y, c, g] = (
        hl.select(most > 0, most, hl.select(_is_nan(most), most, hl.f32(0))),
        hl.cast(hl.UInt(8), hl.select(most > 0, place, q * q)),
    )
    columns = 2 if q == 1 and width > 1 else 1  # outputs of a row that are computed together
    group = machine.channels_at_once(shape.outputs, columns * q)
    inwards = hl.TailStrategy.ShiftInwards
    p.bound(lane, 0, lanes).bound(x, 0, width).bound(y, 0, height).bound(c, 0, shape.outputs)
    p.split(c, co, ci, group, inwards).split(x, xo, xi, columns, inwards).reorder(lane, xi, ci, xo, y, co, g)
    p.vectorize(lane).unroll(xi).unroll(ci)
    sums.compute_at(p, xo).vectorize(lane).unroll(x).unroll(c)
    sums.update(0).reorder(lane, x, c, r.x, r.y, r.z, y).vectorize(lane).unroll(x).unroll(c).unroll(r.x)
    if shape.padding:
        padded.compute_at(p, g).vectorize(lane)
    return p.compile_to_callable([z, weight, bias], target_of(machine))


def _first_maximum(values: list[Any]) -> tuple[Any, Any]:
    """The largest value and its place; of equal ones the first, as torch has it; NaN wins."""
    most, place = values[0], hl.i32(0)
    for number, value in enumerate(values[1:], 1):
        above = (value > most) | _is_nan(value)
        most, place = hl.select(above, value, most), hl.select(above, number, place)
    return most, place


def _is_nan(value: Any) -> Any:
    """By its bits: Halide takes floating-point numbers to be numbers."""
    return (hl.reinterpret(hl.Int(32), value) & 0x7FFFFFFF) > 0x7F800000


def _unpooled(gradient: Any, places: Any, shape: BlockShape) -> Any:
    """The gradient of the convolution's output; what lies outside of it is zero in x, and never read in y."""
    q, (height, width) = shape.pool, shape.pooled
    at = (lane, hl.clamp(x / q, 0, width - 1), hl.clamp(y / q, 0, height - 1), hl.min(c, shape.outputs - 1), g)
    place = hl.cast(hl.UInt(8), x % q + q * (y % q))
    unpooled = hl.Func("unpooled")
    inside = (x >= 0) & (x < q * width)
    unpooled[lane, x, y, c, g] = hl.select(inside & (places[at] == place), gradient[at], hl.f32(0))
    return unpooled


def _pooled_images(shape: BlockShape, lanes: int) -> tuple[Any, Any]:
    """The inputs ``gradient`` and ``places``."""
    height, width = shape.pooled
    extents = (lanes, width, height, shape.outputs, None)
    return array("gradient", *extents), array("places", *extents, kind=hl.UInt(8))


@cache
def _weight_gradient(shape: BlockShape, machine: Machine) -> Any:
    """Sums of each lane stay apart until the end; rows go in parts, so that what is read again is still at hand."""
    lanes, q, k = machine.lanes, shape.pool, shape.kernel
    height, width = shape.pooled
    z = array("z", lanes, shape.width, shape.height, shape.inputs, None)
    gradient, places = _pooled_images(shape, lanes)
    padded, unpooled = _padded(z, shape), _unpooled(gradient, places, shape)
    group = machine.channels_at_once(shape.outputs, k)
    rows = _part(height, FIRST_LEVEL_CACHE // (4 * lanes * group * q * q * width))
    groups = gradient.dim(4).extent()
    r = hl.RDom([(0, q * width), (0, q * rows), (0, height // rows), (0, groups)], "r")
    sums, weight, bias = hl.Func("sums"), hl.Func("weight"), hl.Func("bias")
    row = r.z * q * rows + r.y
    sums[lane, kx, ky, i, c] = hl.f32(0)
    shifted = padded[lane, r.x + kx - shape.padding, row + ky - shape.padding, i, r.w]
    sums[lane, kx, ky, i, c] += unpooled[lane, r.x, row, c, r.w] * shifted
    over_lanes = hl.RDom([(0, lanes)], "over_lanes")
    weight[kx, ky, i, c] = hl.f32(0)
    weight[kx, ky, i, c] += sums[over_lanes, kx, ky, i, c]
    everywhere = hl.RDom([(0, width), (0, height), (0, groups)], "everywhere")
    at = (lane, everywhere.x, everywhere.y, c, everywhere.z)
    by_lane = hl.Func("by_lane")
    by_lane[lane, c] = hl.f32(0)
    by_lane[lane, c] += hl.select(places[at] < q * q, gradient[at], hl.f32(0))
    bias[c] = hl.f32(0)
    bias[c] += by_lane[over_lanes, c]

    weight.bound(kx, 0, k).bound(ky, 0, k).bound(i, 0, shape.inputs).bound(c, 0, shape.outputs)
    sums.compute_root().bound(lane, 0, lanes).bound(kx, 0, k).bound(ky, 0, k).bound(i, 0, shape.inputs)
    sums.bound(c, 0, -(-shape.outputs // group) * group).vectorize(lane)
    update = sums.update(0).split(c, co, ci, group)
    update.reorder(lane, kx, ci, r.x, r.y, ky, i, co, r.z, r.w).vectorize(lane).unroll(kx).unroll(ci)
    if q * width % 2 == 0:
        update.unroll(r.x, 2)
    unpooled.compute_at(sums, co).vectorize(lane)
    unpooled.split(x, xo, xi, q).split(y, yo, yi, q).reorder(lane, xi, yi, xo, yo, c).unroll(xi).unroll(yi)
    if shape.padding:
        padded.compute_at(sums, r.w).vectorize(lane)
    by_lane.compute_root().bound(lane, 0, lanes).vectorize(lane).update(0).vectorize(lane)
    return hl.Pipeline([weight, bias]).compile_to_callable([z, gradient, places], target_of(machine))


def _part(whole: int, most: int) -> int:
    """The largest divisor of ``whole`` that is at most ``most``."""
    return max(part for part in range(1, whole + 1) if whole % part == 0 and (part <= most or part == 1))


@cache
def _input_gradient(shape: BlockShape, machine: Machine) -> Any:
    """A kernel's places that meet no gradient are left out: exactly in y, but for the odd one in x, in pairs."""
    lanes, q, k = machine.lanes, shape.pool, shape.kernel
    height, width = shape.pooled
    gradient, places = _pooled_images(shape, lanes)
    weight = array("weight", k, k, shape.inputs, shape.outputs)
    unpooled = _unpooled(gradient, places, shape)
    columns = 2
    pair = hl.Var("pair")
    r = hl.RDom([(0, k), (0, k), (0, shape.outputs)], "r")
    row, first = y + shape.padding - r.y, pair * columns + shape.padding - r.x
    r.where((row >= 0) & (row < q * height))
    r.where((first + columns > 0) & (first < q * width))
    sums, z = hl.Func("sums"), hl.Func("z")
    sums[lane, x, pair, y, i, g] = hl.f32(0)
    sums[lane, x, pair, y, i, g] += weight[r.x, r.y, i, r.z] * unpooled[lane, first + x, row, r.z, g]
    z[lane, x, y, i, g] = sums[lane, x % columns, x / columns, y, i, g]
    group = machine.channels_at_once(shape.inputs, columns)
    z.bound(lane, 0, lanes).bound(x, 0, shape.width).bound(y, 0, shape.height).bound(i, 0, shape.inputs)
    z.split(x, xo, xi, columns, hl.TailStrategy.GuardWithIf).split(i, co, ci, group, hl.TailStrategy.ShiftInwards)
    z.reorder(lane, xi, ci, xo, co, y, g).vectorize(lane).unroll(xi).unroll(ci)
    sums.compute_at(z, xo).bound_extent(x, columns).vectorize(lane).unroll(x).unroll(i)
    sums.update(0).reorder(lane, x, i, r.z, r.x, r.y, pair).vectorize(lane).unroll(x).unroll(i)
    unpooled.compute_at(z, g).vectorize(lane)
    return z.compile_to_callable([weight, gradient, places], target_of(machine))
