"""Tensors in one piece are the tensors that they were, and add up to the same bits."""

import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from ccvr.models.flat import ALIGNED, Flat, Layout, whole_of
from ccvr.models.state import WeightedMean, copied, flattened

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
ODD = {
    "channels last": ONE.contiguous(memory_format=torch.channels_last),
    "transposed": ONE.transpose(0, 1),
    "one channel": ONE[:, :1].clone(memory_format=torch.channels_last),
    "empty": torch.empty(0, 3),
    "scalar": torch.tensor(2.0),
    "sparse": torch.eye(3).to_sparse(),
    "trained": nn.Parameter(ONE),
    "expanded": torch.ones(1).expand(3),
}


def test_copies_are_plain_whatever_the_tensors_are():
    flat = flattened(ODD | {"again": ONE, "overlapping": ONE[1:]})
    assert isinstance(flat, Flat)
    for name, tensor in ODD.items():
        assert torch.equal(flat[name], tensor.detach().to_dense())
        assert flat[name].stride() == torch.empty(tensor.shape).stride()
        assert not flat[name].requires_grad
    before = ONE.clone()
    flat["again"].zero_()
    assert torch.equal(ONE, before)
    assert torch.equal(flat["overlapping"], before[1:])


@pytest.mark.parametrize("other", [torch.ones(2).double(), torch.ones(2).bfloat16(), torch.ones(2).to(torch.int64)])
def test_tensors_of_other_types_are_copied_one_by_one(other):
    given_ = {"x": ONE, "y": other}
    found = flattened(given_)
    assert type(found) is dict
    assert same(found, given_)
    assert found["x"].data_ptr() != ONE.data_ptr()
    assert flattened({}) == {}


def test_it_looks_and_is_copied_like_a_dict():
    flat = flattened({"x": torch.tensor([1.0, 2.0])})
    assert repr(flat) == "{'x': tensor([1., 2.])}"
    assert type(flat.copy()) is dict
    with pytest.raises(TypeError):
        flat["x"] = ONE
    assert same(pickle.loads(pickle.dumps(flat)), flat)


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
