"""Tensors in one piece are the tensors that they were, and are found to be in one piece only as long as they are."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from ccvr.models.flat import ALIGNED, Flat, Layout, flattened, whole_of
from ccvr.models.state import Scratch, WeightedMean, buffers_of, copied, parameters_of

shapes = st.dictionaries(st.text(max_size=3), st.lists(st.integers(1, 5), max_size=4), min_size=1, max_size=5)


def drawn(named, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in named.items()}


def same(left, right):
    return list(left) == list(right) and all(torch.equal(left[name], right[name]) for name in left)


@given(shapes)
def test_the_parts_are_the_tensors_in_their_order(named):
    tensors = drawn(named)
    flat = flattened(tensors)
    assert isinstance(flat, Flat)
    assert same(flat, tensors)
    assert same(flat | {}, tensors)
    assert same({} | flat, tensors)
    assert same(copied(flat), tensors)
    begins = [(flat[name].data_ptr() - flat.whole.data_ptr()) // 4 for name in flat]
    assert all(begin % ALIGNED == 0 for begin in begins)
    assert flat.whole.count_nonzero() == sum(tensor.count_nonzero() for tensor in tensors.values()), "gaps are zero"
    assert all(tensor.is_contiguous() for tensor in flat.values())
    next(iter(flat.values())).fill_(7)
    assert flat.whole[0] == 7, "the parts are no copies"


def test_parts_are_found_in_a_piece_that_begins_somewhere():
    layout = Layout((("a", (2, 3)), ("b", (4,))))
    numbers = torch.arange(100.0)
    flat = Flat(layout, numbers[10 : 10 + layout.size])
    assert torch.equal(flat["a"], numbers[10:16].view(2, 3))
    assert torch.equal(flat["b"], numbers[26:30])


ONE = torch.rand(4, 3, 2, 2)


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        {"x": ONE.double()},
        {"x": ONE.bfloat16(), "y": ONE},
        {"x": ONE.to(torch.int64)},
        {"x": ONE.contiguous(memory_format=torch.channels_last)},
        {"x": ONE.transpose(0, 1)},
        {"x": ONE, "y": ONE},
        {"x": ONE[:3], "y": ONE[2:]},
        {"x": torch.empty(0)},
        {"x": ONE.to_sparse()},
        {"x": torch.empty(3, device="meta")},
    ],
    ids=[
        "none",
        "double",
        "half",
        "whole numbers",
        "channels last",
        "transposed",
        "tied",
        "overlapping",
        "empty",
        "sparse",
        "elsewhere",
    ],
)
def test_what_cannot_be_laid_out_is_left_as_it_is(tensors):
    assert flattened(tensors) is tensors


def test_one_piece_of_another_layout_is_not_taken():
    one, other = flattened(drawn({"a": (2, 3)})), flattened(drawn({"a": (3, 2)}))
    assert whole_of(one, one.layout) is one.whole
    assert whole_of(other, one.layout) is None
    assert whole_of(dict(one), one.layout) is None


@given(shapes, st.lists(st.tuples(st.integers(1, 2**20), st.booleans()), min_size=1, max_size=6))
def test_a_mean_has_the_same_bits_whichever_results_are_in_one_piece(named, row):
    plainly, mixed = WeightedMean(), WeightedMean()
    for seed, (weight, is_flat) in enumerate(row):
        tensors = drawn(named, seed)
        plainly.add(tensors, weight)
        mixed.add(flattened(tensors) if is_flat else tensors, weight)
    assert same(plainly.result(), mixed.result())


def model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 3))


def trained(scratch):
    optimiser = torch.optim.SGD(scratch.trained(), lr=0.1)
    rng = np.random.default_rng(0)
    for _ in range(3):
        optimiser.zero_grad()
        scratch.model(torch.from_numpy(rng.standard_normal((6, 5), np.float32))).square().sum().backward()
        optimiser.step()
    return copied(scratch.parameters()), copied(scratch.buffers())


def test_a_flat_model_trains_and_loads_as_any_other():
    plainly, flat = Scratch(model()), Scratch(model()).flatten()
    assert isinstance(flat.parameters(), Flat)
    start = parameters_of(model()), buffers_of(model())
    first = trained(flat)
    assert all(map(same, first, trained(plainly)))
    assert not same(first[0], start[0])
    for parameters in (flattened(start[0]), start[0], dict(reversed(start[0].items()))):
        flat.load(parameters, start[1])
        assert same(copied(flat.parameters()), start[0])
        assert isinstance(flat.parameters(), Flat), "it was written to, not replaced"
        assert all(map(same, trained(flat), first))


def test_a_model_that_puts_in_another_parameter_is_read_where_it_is():
    scratch = Scratch(model()).flatten()
    scratch.model[0].weight = nn.Parameter(torch.full((7, 5), 3.0))
    found = scratch.parameters()
    assert not isinstance(found, Flat)
    assert (found["0.weight"] == 3).all()
    start = flattened(parameters_of(model()))
    scratch.load(start, buffers_of(model()))
    assert same(copied(scratch.parameters()), start | {})
    assert torch.equal(scratch.model[0].weight, start["0.weight"])


def test_a_parameter_that_is_taken_away_is_missed():
    scratch = Scratch(model()).flatten()
    scratch.model[0].bias = None
    assert "0.bias" not in scratch.parameters()


def test_a_model_in_part_of_other_numbers_stays_as_it_is():
    odd = model()
    odd[0].weight.data = odd[0].weight.data.t().contiguous().t()
    assert not isinstance(Scratch(odd).flatten().parameters(), Flat)
