"""Kernels against torch: values, gradients, ties, zeros, NaN, images that fill no group."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from ccvr.kernels.block import Block
from ccvr.kernels.lanes import Lanes
from ccvr.kernels.machine import this_machine
from ccvr.kernels.shape import BlockShape

LANES = this_machine().lanes
PAPER = (BlockShape(3, 6, 32, 32, 5), BlockShape(6, 16, 14, 14, 5))
DIGITS = (BlockShape(1, 16, 8, 8, 3, 1), BlockShape(16, 32, 4, 4, 3, 1, 1))


@st.composite
def shapes(draw: st.DrawFn) -> BlockShape:
    """Any channels, odd kernels, paddings, image sizes; at least one output."""
    kernel, padding, pool = draw(st.sampled_from([1, 3, 5, 7])), draw(st.integers(0, 3)), draw(st.sampled_from([1, 2]))
    least = max(1, kernel + pool - 1 - 2 * padding)
    side = st.integers(least, least + 10)
    channels = st.integers(1, 19)
    return BlockShape(draw(channels), draw(channels), draw(side), draw(side), kernel, padding, pool)


def by_torch(shape: BlockShape, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.relu(functional.max_pool2d(functional.conv2d(x, weight, bias, padding=shape.padding), shape.pool))


def tensors(shape: BlockShape, number: int, draw=torch.randn) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(number)
    x = draw(number, shape.inputs, shape.height, shape.width)
    return x, draw(shape.outputs, shape.inputs, shape.kernel, shape.kernel), draw(shape.outputs)


def filled(t: Tensor) -> Tensor:
    """Zeros up to whole groups."""
    return torch.cat([t, t.new_zeros(-len(t) % LANES, *t.shape[1:])])


def close(ours: Tensor, expected: Tensor, tolerance: float = 1e-5) -> bool:
    return bool((ours - expected).abs().max() <= tolerance * expected.abs().max().clamp(min=1e-30))


def assert_as_torch(shape: BlockShape, x: Tensor, weight: Tensor, bias: Tensor, gradient: Tensor | None = None) -> None:
    """Output and all gradients, against torch in float64."""
    block, z = Block(shape), Lanes.of(x, LANES).groups
    leaves = [t.double().requires_grad_() for t in (x, weight, bias)]
    expected = by_torch(shape, *leaves)
    gradient = torch.randn(expected.shape) if gradient is None else gradient
    expected.backward(gradient.double())
    ours, places = block.forward(z, weight, bias, grouped=False)
    grouped, again = block.forward(z, weight, bias, grouped=True)
    assert torch.equal(Lanes(grouped, len(ours)).images(), ours)
    assert torch.equal(again, places)
    assert close(ours[: len(x)], expected.detach())
    for given_ in (gradient, filled(gradient)):
        of_weight, of_bias = block.weight_gradient(z, given_, places)
        of_input = block.input_gradient(weight, given_, places)
        assert close(of_weight, leaves[1].grad)
        assert close(of_bias, leaves[2].grad)
        assert close(of_input[: len(x)], leaves[0].grad)
        assert not of_input[len(x) :].any(), "what fills a group has no gradient"


@settings(deadline=None, max_examples=15)
@given(shape=shapes(), number=st.integers(1, 2 * LANES + 1))
def test_equals_torch_for_any_shape(shape, number):
    assert_as_torch(shape, *tensors(shape, number))


@pytest.mark.parametrize("shape", PAPER + DIGITS, ids=str)
@pytest.mark.parametrize("number", [1, 50, 64])
def test_equals_torch_for_the_shapes_that_are_trained(shape, number):
    assert_as_torch(shape, *tensors(shape, number))


@pytest.mark.parametrize("shape", [PAPER[1], BlockShape(11, 3, 9, 9, 11, 5), BlockShape(70, 33, 6, 7, 3, 1)], ids=str)
def test_many_channels_and_large_kernels(shape):
    assert_as_torch(shape, *tensors(shape, 5))


def counting(*size: int) -> Tensor:
    """−1, 0 and 1, mostly 0: sums of their products are exact, so that maxima over different patches tie."""
    return torch.randint(-1, 2, size).float() * (torch.rand(size) < 0.2)


@pytest.mark.parametrize("shape", [*PAPER, DIGITS[0]], ids=str)
def test_of_equal_maxima_the_first_has_the_gradient(shape):
    x, weight, bias = tensors(shape, 9, counting)
    windows = functional.conv2d(x, weight, bias, padding=shape.padding).unfold(2, 2, 2).unfold(3, 2, 2).flatten(4)
    most = windows.amax(4, keepdim=True)
    assert ((windows == most).sum(4) > 1).logical_and(most[..., 0] > 0).sum() > 10, "there are ties above zero"
    assert (most == 0).sum() > 10, "and zeros"
    exact = counting(*by_torch(shape, x, weight, bias).shape)
    assert_as_torch(shape, x, weight, bias, exact)


def test_nothing_gets_through_below_zero():
    shape = PAPER[1]
    x, weight, _ = tensors(shape, 8)
    block, z, low = Block(shape), Lanes.of(x, LANES).groups, torch.full((shape.outputs,), -1e4)
    out, places = block.forward(z, weight, low, grouped=False)
    gradient = torch.ones_like(out)
    assert not out.any()
    assert not any(t.any() for t in block.weight_gradient(z, gradient, places))
    assert not block.input_gradient(weight, gradient, places).any()


@pytest.mark.parametrize("shape", [PAPER[0], *DIGITS], ids=str)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_no_number_is_not_hidden(shape, bad):
    """A model that diverged must be seen to: ReLU and maxima keep NaN, as torch's do."""
    x, weight, bias = tensors(shape, LANES)
    x[1, 0, 3, 2] = bad
    out, _ = Block(shape).forward(Lanes.of(x, LANES).groups, weight, bias, grouped=False)
    expected = by_torch(shape, x, weight, bias)
    assert torch.equal(out.isnan(), expected.isnan())
    assert expected.isnan().any() or expected.isinf().any()
    assert torch.equal(out.isinf(), expected.isinf())


@pytest.mark.parametrize("kind", [torch.float16, torch.float64])
def test_torchs_default_type_changes_nothing(kind):
    shape = PAPER[1]
    drawn_ = tensors(shape, LANES)
    before = torch.get_default_dtype()
    torch.set_default_dtype(kind)
    try:
        with torch.device("meta"):
            block, z = Block(shape), Lanes.of(drawn_[0], LANES).groups
            out, places = block.forward(z, *drawn_[1:], grouped=False)
            found = (*block.weight_gradient(z, out, places), block.input_gradient(drawn_[1], out, places))
    finally:
        torch.set_default_dtype(before)
    assert all((t.dtype, t.device.type) == (torch.float32, "cpu") for t in (out, *found))
    assert close(out, by_torch(shape, *drawn_))


def test_gradients_of_nan_are_nan():
    shape = PAPER[1]
    x, weight, bias = tensors(shape, LANES)
    x[1, 0, 3, 2] = float("nan")
    leaves = [t.clone().requires_grad_() for t in (weight, bias)]
    by_torch(shape, x, *leaves).sum().backward()
    block, z = Block(shape), Lanes.of(x, LANES).groups
    out, places = block.forward(z, weight, bias, grouped=False)
    of_weight, of_bias = block.weight_gradient(z, torch.ones_like(out), places)
    assert of_weight.isnan().any()
    assert torch.equal(of_bias, leaves[1].grad)


def test_what_fills_a_group_changes_no_gradient():
    """Whatever it is: it has none itself."""
    shape, number = PAPER[1], LANES - 3
    x, weight, bias = tensors(shape, LANES)
    block, found = Block(shape), []
    gradient = torch.randn(number, shape.outputs, *shape.pooled)
    for scale in (0.0, 1e3):
        z = Lanes.of(torch.cat([x[:number], scale * x[number:]]), LANES).groups
        out, places = block.forward(z, weight, bias, grouped=False)
        found.append([out[:number], *block.weight_gradient(z, gradient, places)])
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def test_images_do_not_see_their_neighbours():
    """An image's output has the same bits in any batch."""
    shape = PAPER[0]
    x, weight, bias = tensors(shape, 3 * LANES)
    block = Block(shape)
    whole, _ = block.forward(Lanes.of(x, LANES).groups, weight, bias, grouped=False)
    part, _ = block.forward(Lanes.of(x[5 : 5 + LANES].flip(0), LANES).groups, weight, bias, grouped=False)
    assert torch.equal(part.flip(0), whole[5 : 5 + LANES])


def test_what_does_not_fit_never_reaches_a_kernel():
    """A kernel looks at no shape itself: it would read beside the memory that it is given."""
    shape = PAPER[1]
    x, weight, bias = tensors(shape, LANES)
    block, z = Block(shape), Lanes.of(x, LANES).groups
    out, places = block.forward(z, weight, bias, grouped=False)
    wrong = [
        lambda: block.forward(z[..., :-1], weight, bias, grouped=True),
        lambda: block.forward(z.double(), weight, bias, grouped=True),
        lambda: block.forward(z, weight.to(memory_format=torch.channels_last), bias, grouped=True),
        lambda: block.forward(z, weight, bias[1:], grouped=True),
        lambda: block.weight_gradient(z[:, 1:], out, places),
        lambda: block.weight_gradient(z, torch.cat([out, out]), places),
        lambda: block.weight_gradient(z, out, places.float()),
        lambda: block.weight_gradient(z, out[:1], places[:1]),
        lambda: block.weight_gradient(z[:0], out, places),
        lambda: block.input_gradient(weight[1:], out, places),
        lambda: block.input_gradient(weight, out.transpose(2, 3), places),
    ]
    for call in wrong:
        with pytest.raises(ValueError, match="it takes contiguous"):
            call()


def test_places_that_no_forward_pass_made_reach_no_foreign_memory():
    shape = PAPER[1]
    x, weight, _ = tensors(shape, LANES)
    block = Block(shape)
    gradient = torch.ones(LANES, shape.outputs, *shape.pooled)
    places = torch.full(gradient.shape, 255, dtype=torch.uint8)
    found = block.weight_gradient(Lanes.of(x, LANES).groups, gradient, places)
    assert all(t.isfinite().all() for t in (*found, block.input_gradient(weight, gradient, places)))


def test_operations_are_counted_as_far_as_pooling_reads():
    assert PAPER[0].flop(1) == 2 * 6 * 75 * 28 * 28
    assert replace(PAPER[0], height=33).flop(1) == PAPER[0].flop(1), "a last odd row is not computed"
    assert DIGITS[1].flop(2) == 2 * 2 * 32 * 16 * 9 * 16
