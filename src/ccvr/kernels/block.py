"""Convolution k × k of stride 1, max-pooling, ReLU: forward and gradients, compiled by Halide for one shape.

Forward, activations lie in groups, [G, C, H, W, L]: the L images of a group fill a vector register, one in each lane,
so no lane is empty, whatever the number of channels. Backward, pooling lets one of pool² gradients through, in each
image another one. So images lie one by one as rows, [N, n], channels last, with their padding: what one row of a filter
meets is then one dense vector, and the products with zeros are never made. No kernel depends on the number of images.
Halide's dimension 0 is the last one here.
"""

from functools import cache
from math import prod
from typing import Any

import halide as hl
import torch
from numpy.typing import NDArray
from torch import Tensor

from ccvr.kernels.machine import Machine, target_of, this_machine
from ccvr.kernels.parameters import array
from ccvr.kernels.shape import BlockShape

lane, x, y, c, g, n = (hl.Var(name) for name in ("lane", "x", "y", "c", "g", "n"))
tap, kx, ky, cell, at, o = (hl.Var(name) for name in ("tap", "kx", "ky", "cell", "at", "o"))
xo, xi, co, ci, no, ni = (hl.Var(name) for name in ("xo", "xi", "co", "ci", "no", "ni"))
IMAGES_AT_ONCE = 4
"""Images whose input gradients take turns, so that no sum waits for the one before it."""


class Block:
    """The kernels of one shape. Tensors are contiguous float32 on the CPU; each kernel compiles when it is first used.

    ``places`` says which of its pool × pool numbers each output is, in rows; pool² stands for none, where ReLU gave
    zero.
    """

    def __init__(self, shape: BlockShape, machine: Machine | None = None) -> None:
        self.shape, self.machine = shape, machine or this_machine()
        self._weight = (shape.outputs, shape.inputs, shape.kernel, shape.kernel)
        self._input = (shape.inputs, shape.height, shape.width)
        self._output = (shape.outputs, *shape.pooled)
        self._row = _row_length(shape, self.machine)
        self.numbers = max(prod(self._input), prod(self._output), self._row)
        """Numbers of an image in the largest array that a kernel reads or writes."""

    def forward(self, z: Tensor, weight: Tensor, bias: Tensor, *, grouped: bool) -> tuple[Tensor, Tensor]:
        """The output of z [G, C, H, W, L], ``grouped`` likewise or as images, and ``places``, [G L, C', H', W']."""
        groups, lanes = z.shape[0], self.machine.lanes
        images, apart = (groups * lanes, *self._output), (groups, lanes, *self._output)
        out, places = _empty((groups, *self._output, lanes) if grouped else images), _empty(images, torch.uint8)
        _forward(self.shape, self.machine, grouped)(
            _read(z, (groups, *self._input, lanes)),
            _read(weight, self._weight),
            _read(bias, (self.shape.outputs,)),
            out.numpy() if grouped else _by_lane(out.numpy().reshape(apart)),
            _by_lane(places.numpy().reshape(apart)),
        )
        return out, places

    def weight_gradient(self, z: Tensor, gradient: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of weight and bias, from the input [G, C, H, W, L] and that of the output, [N, C', H', W']."""
        groups, lanes = z.shape[0], self.machine.lanes
        weight, bias = _empty(self._weight), _empty((self.shape.outputs,))
        _weight_gradient(self.shape, self.machine)(
            _read(z, (groups, *self._input, lanes)),
            *self._read_outputs(gradient, places, groups * lanes),
            weight.numpy(),
            bias.numpy(),
        )
        return weight, bias

    def input_gradient(self, weight: Tensor, gradient: Tensor, places: Tensor) -> Tensor:
        """The gradient of the input, [N, C, H, W], from that of the output, [N, C', H', W']."""
        number = gradient.shape[0]
        z = _empty((-(-number // IMAGES_AT_ONCE) * IMAGES_AT_ONCE, *self._input))
        _input_gradient(self.shape, self.machine)(
            _read(weight, self._weight), *self._read_outputs(gradient, places, places.shape[0]), z.numpy()
        )
        return z[:number]

    def _read_outputs(self, gradient: Tensor, places: Tensor, filled: int) -> tuple[NDArray[Any], ...]:
        """The gradient and the places of its images; the last of ``filled`` places are of no image."""
        number, cells = min(gradient.shape[0], filled), (self.shape.outputs, prod(self.shape.pooled))
        return (
            _read(gradient, (number, *self._output)).reshape(number, *cells),
            _read(places, (filled, *self._output), torch.uint8)[:number].reshape(number, *cells),
        )


def _read(tensor: Tensor, shape: tuple[int, ...], kind: torch.dtype = torch.float32) -> NDArray[Any]:
    """The numbers of a tensor. Refuses what a kernel would read or write beside: it looks at no shape itself."""
    if tensor.shape != shape or tensor.dtype != kind or not tensor.is_contiguous():
        raise ValueError(
            f"a kernel was given {tensor.dtype} of shape {list(tensor.shape)} with strides {list(tensor.stride())}; "
            f"it takes contiguous {kind} of shape {list(shape)}."
        )
    return tensor.detach().numpy()


def _empty(shape: tuple[int, ...], kind: torch.dtype = torch.float32) -> Tensor:
    """What a kernel writes to, whatever torch's defaults are."""
    return torch.empty(shape, dtype=kind, device="cpu")


def _by_lane(images: NDArray[Any]) -> NDArray[Any]:
    """[G, L, C', H', W'] as [G, C', H', W', L]."""
    return images.transpose(0, 2, 3, 4, 1)


# --- forward ----------------------------------------------------------------------------------------------------------


@cache
def _forward(shape: BlockShape, machine: Machine, grouped: bool) -> Any:
    """Sums of a row of outputs, for several channels, stay in registers; pooling follows at once."""
    lanes, q, k = machine.lanes, shape.pool, shape.kernel
    height, width = shape.pooled
    z = array("z", lanes, shape.width, shape.height, shape.inputs, None)
    weight, bias = array("weight", k, k, shape.inputs, shape.outputs), array("bias", shape.outputs)
    padded = _padded(z, shape)
    r = hl.RDom([(0, k), (0, k), (0, shape.inputs)], "r")
    sums, out = hl.Func("sums"), hl.Func("out")
    sums[lane, x, y, c, g] = bias[c]
    sums[lane, x, y, c, g] += weight[r.x, r.y, r.z, c] * padded[lane, x + r.x, y + r.y, r.z, g]
    most, place = _first_maximum([hl.Expr(sums[lane, q * x + p % q, q * y + p // q, c, g]) for p in range(q * q)])
    lives = (most > 0) | _is_nan(most)  # as in torch, so that whatever diverges is seen to
    out[lane, x, y, c, g] = (
        hl.select(lives, most, hl.f32(0)),
        hl.cast(hl.UInt(8), hl.select(lives, place, q * q)),
    )
    columns = 2 if q == 1 and width > 1 else 1  # outputs of a row that are computed together
    channels = machine.at_once(shape.outputs, columns * q)
    inwards = hl.TailStrategy.ShiftInwards
    out.bound(lane, 0, lanes).bound(x, 0, width).bound(y, 0, height).bound(c, 0, shape.outputs)
    out.split(c, co, ci, channels, inwards).split(x, xo, xi, columns, inwards).reorder(lane, xi, ci, xo, y, co, g)
    out.vectorize(lane).unroll(xi).unroll(ci)
    sums.compute_at(out, xo).vectorize(lane).unroll(x).unroll(c)
    sums.update(0).reorder(lane, x, c, r.x, r.y, r.z, y).vectorize(lane).unroll(x).unroll(c).unroll(r.x)
    if shape.padding:
        padded.compute_at(out, g).vectorize(lane)
    values, places = out.output_buffers()
    for buffer in (places,) if grouped else (values, places):
        buffer.dim(0).set_stride(hl.Expr())  # images lie apart
    return out.compile_to_callable([z, weight, bias], target_of(machine))


def _padded(z: Any, shape: BlockShape) -> Any:
    """``z`` by places of the padded image, with zeros around it."""
    if not shape.padding:
        return z
    padded, left, top = hl.Func("padded"), x - shape.padding, y - shape.padding
    inside = (left >= 0) & (left < shape.width) & (top >= 0) & (top < shape.height)
    pixel = z[lane, hl.clamp(left, 0, shape.width - 1), hl.clamp(top, 0, shape.height - 1), c, g]
    padded[lane, x, y, c, g] = hl.select(inside, pixel, hl.f32(0))
    return padded


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


# --- backward ---------------------------------------------------------------------------------------------------------


def _taps_at_once(shape: BlockShape, machine: Machine) -> int:
    """Taps that the weight gradient sums up together, for all rows of the filter."""
    return machine.lanes * machine.at_once(-(-shape.taps // machine.lanes), shape.kernel)


def _row_length(shape: BlockShape, machine: Machine) -> int:
    """Numbers of an image as a row. Those at its end are read where taps are filled up, and come to nothing."""
    height, width = shape.padded
    return height * width * shape.inputs + _taps_at_once(shape, machine)


class _Gradients:
    """The gradients [N, C', cells] that pooling and ReLU let through, and where in a row the patch of each begins."""

    def __init__(self, shape: BlockShape, machine: Machine) -> None:
        q, inputs, row = shape.pool, shape.inputs, shape.padded[1] * shape.inputs
        (height, width), self.lanes = shape.pooled, machine.lanes
        self.cells, self.last = height * width, (q * height - 1) * row + (q * width - 1) * inputs
        self.gradient = array("gradient", self.cells, shape.outputs, None)
        self.places = array("places", self.cells, shape.outputs, None, kind=hl.UInt(8))
        self.images = self.gradient.dim(2).extent()
        image = hl.min(n, self.images - 1)  # a schedule that rounds the images up reads the last one again
        place = hl.cast(hl.Int(32), self.places[cell, c, image])
        corner = q * (cell / width) * row + q * (cell % width) * inputs
        self.value, self.start = hl.Func("value"), hl.Func("start")
        self.value[cell, c, n] = self.through(cell, c, image, q * q)
        self.start[cell, c, n] = hl.min(corner + (place / q) * row + (place % q) * inputs, self.last)

    def through(self, cell: Any, c: Any, n: Any, none: int) -> Any:
        return hl.select(self.places[cell, c, n] == none, hl.f32(0), self.gradient[cell, c, n])

    def start_of(self, *where: Any) -> Any:
        """Halide cannot see in what is computed before that ``start`` stays in its bounds."""
        return hl.unsafe_promise_clamped(self.start[where], 0, self.last)

    def compute_at(self, function: Any, variable: Any) -> None:
        for each in (self.value, self.start):
            each.compute_at(function, variable)
            if self.cells >= self.lanes:
                each.vectorize(cell, self.lanes, hl.TailStrategy.ShiftInwards)


@cache
def _weight_gradient(shape: BlockShape, machine: Machine) -> Any:
    """Every gradient that gets through adds its multiple of the patch that it comes from."""
    lanes, k, together, (height, width) = machine.lanes, shape.kernel, _taps_at_once(shape, machine), shape.padded
    z = array("z", lanes, shape.width, shape.height, shape.inputs, None)
    gradients, padded = _Gradients(shape, machine), _padded(z, shape)
    rows, sums, weight, bias = (hl.Func(name) for name in ("rows", "sums", "weight", "bias"))
    p = hl.RDom([(0, shape.inputs), (0, width), (0, height)], "p")
    rows[at, lane, g] = hl.undef(hl.Float(32))
    rows[(p.z * width + p.y) * shape.inputs + p.x, lane, g] = padded[lane, p.y, p.z, p.x, g]
    r = hl.RDom([(0, gradients.cells), (0, lanes), (0, z.dim(4).extent())], "r")
    image = r.z * lanes + r.y
    r.where(image < gradients.images)
    first = gradients.start_of(r.x, c, image) + ky * (width * shape.inputs)
    sums[tap, ky, c] = hl.f32(0)
    sums[tap, ky, c] += gradients.value[r.x, c, image] * rows[first + tap, r.y, r.z]
    weight[kx, ky, c, o] = sums[kx * shape.inputs + c, ky, o]
    bias[c] = hl.f32(0)
    bias[c] += gradients.through(r.x, c, image, shape.pool**2)

    weight.bound(kx, 0, k).bound(ky, 0, k).bound(c, 0, shape.inputs).bound(o, 0, shape.outputs)
    sums.compute_root().bound(tap, 0, -(-shape.taps // together) * together).bound(ky, 0, k)
    sums.bound(c, 0, shape.outputs).vectorize(tap, lanes)
    update = sums.update(0).split(tap, xo, xi, together).reorder(xi, ky, r.x, xo, c, r.y, r.z)
    update.vectorize(xi, lanes).unroll(xi).unroll(ky)
    rows.compute_at(sums, r.z).bound_extent(at, _row_length(shape, machine))
    rows.update(0).reorder(lane, p.x, p.y, p.z).vectorize(lane)
    if shape.padding:
        padded.compute_at(sums, r.z).vectorize(lane)
    gradients.compute_at(sums, c)
    if gradients.cells >= lanes:
        bias.update(0).atomic().vectorize(r.x, lanes)
    pipeline = hl.Pipeline([weight, bias])
    return pipeline.compile_to_callable([z, gradients.gradient, gradients.places], target_of(machine))


@cache
def _input_gradient(shape: BlockShape, machine: Machine) -> Any:
    """Every gradient that gets through adds its multiple of the filter to the patch that it comes from."""
    lanes, k, p, (_, width) = machine.lanes, shape.kernel, shape.padding, shape.padded
    filled = -(-shape.taps // lanes) * lanes
    weight = array("weight", k, k, shape.inputs, shape.outputs)
    gradients = _Gradients(shape, machine)
    filters, sums, z = hl.Func("filters"), hl.Func("sums"), hl.Func("z")
    last = hl.min(tap, shape.taps - 1)
    filters[tap, ky, o] = hl.select(
        tap < shape.taps, weight[last / shape.inputs, ky, last % shape.inputs, o], hl.f32(0)
    )
    r = hl.RDom([(0, filled), (0, k), (0, gradients.cells), (0, shape.outputs)], "r")
    sums[at, n] = hl.f32(0)
    place = gradients.start_of(r.z, r.w, n) + r.y * (width * shape.inputs) + r.x
    sums[place, n] += gradients.value[r.z, r.w, n] * filters[r.x, r.y, r.w]
    z[x, y, c, n] = sums[((y + p) * width + x + p) * shape.inputs + c, n]

    z.bound(x, 0, shape.width).bound(y, 0, shape.height).bound(c, 0, shape.inputs)
    z.split(n, no, ni, IMAGES_AT_ONCE, hl.TailStrategy.RoundUp).reorder(x, y, c, ni, no)
    if shape.width >= lanes:
        z.vectorize(x, lanes, hl.TailStrategy.ShiftInwards)
    filters.compute_root()
    sums.compute_at(z, no).vectorize(at, lanes)
    update = sums.update(0).reorder(r.x, r.y, n, r.z, r.w)
    update.allow_race_conditions().vectorize(r.x, lanes).unroll(r.x, _divisor(filled // lanes, 4)).unroll(r.y)
    gradients.compute_at(sums, r.w)
    return z.compile_to_callable([weight, gradients.gradient, gradients.places], target_of(machine))


def _divisor(number: int, most: int) -> int:
    """The largest divisor of a number that is at most ``most``."""
    return max(part for part in range(1, most + 1) if number % part == 0)
