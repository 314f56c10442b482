"""States and results are the same bits on the other side, whatever their tensors are."""

import pickle
import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ccvr.algorithms.messages import GlobalState, LocalMetrics, LocalResult
from ccvr.models.flat import Flat
from ccvr.training.mailbox import ALIGNMENT, Mailbox, pack_state, room_for, unpack_state

METRICS = LocalMetrics(0.5, (1.0, 2.0), 3, 4, 0.25)
RESULT = LocalResult(7, {}, {}, 12, 3, {}, {}, METRICS, has_state=True)


@st.composite
def tensors(draw):
    """Any bits, not-a-numbers among them, in any shape and order of memory."""
    dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int64]))
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    tensor = torch.empty(shape, dtype=dtype)
    tensor.view(-1).view(torch.uint8).copy_(torch.tensor(list(rng.bytes(tensor.nbytes))))
    if len(shape) == 4 and draw(st.booleans()):
        return tensor.contiguous(memory_format=torch.channels_last)
    return tensor.t() if len(shape) == 2 and draw(st.booleans()) else tensor


groups = st.dictionaries(st.sampled_from(["w", "b", "layer.1/x", ""]), tensors())
first = st.builds(lambda named: {"scale": torch.tensor(2.0), **named}, groups)  # fits into the smallest room
results = st.builds(
    lambda parameters, buffers, payload: replace(RESULT, parameters=parameters, buffers=buffers, payload=payload),
    first,
    groups,
    groups,
)


def bits(named):
    return {name: (t.dtype, t.shape, t.reshape(-1).view(torch.uint8).tolist()) for name, t in named.items()}


def all_bits(result):
    return {group: bits(getattr(result, group)) for group in ("parameters", "buffers", "payload", "state")}


def sent(thing):
    return pickle.loads(pickle.dumps(thing))


@pytest.fixture
def ends(tmp_path):
    """A worker's mailbox and the one that its parent opens on the same file."""
    return Mailbox(tmp_path / "mailbox", 1024), Mailbox(tmp_path / "mailbox", 1024)


def result(value, size=100, **fields):
    return replace(RESULT, parameters={"w": torch.full((size,), float(value))}, **fields)


@given(groups, groups, groups)
def test_a_state_comes_out_as_it_went_in(parameters, buffers, broadcast):
    found = unpack_state(sent(pack_state(GlobalState(parameters, buffers, broadcast))))
    assert bits(found.parameters) == bits(parameters)
    assert bits(found.buffers) == bits(buffers)
    assert bits(found.broadcast) == bits(broadcast)


@given(st.lists(results, min_size=1, max_size=5), st.integers(1, 30))
def test_results_come_out_as_they_went_in_wherever_there_was_room(row, room):
    with tempfile.TemporaryDirectory() as folder:
        worker, parent = (Mailbox(Path(folder) / "mailbox", ALIGNMENT * room) for _ in range(2))
        for given_ in (*row, row[-1]):
            found = parent.take(sent(worker.put(given_)))
            assert all_bits(found) == all_bits(given_)
            assert replace(found, parameters={}, buffers={}, payload={}) == RESULT


@given(st.lists(results, min_size=2, max_size=6))
def test_two_results_may_be_under_way_of_any_layout(row):
    with tempfile.TemporaryDirectory() as folder:
        worker, parent = (Mailbox(Path(folder) / "mailbox", 10 * ALIGNMENT) for _ in range(2))
        letters = [sent(worker.put(row[0]))]
        for earlier, later in pairwise(row):
            letters.append(sent(worker.put(later)))
            assert all_bits(parent.take(letters.pop(0))) == all_bits(earlier)


@given(groups, groups)
def test_there_is_room_for_a_model_and_as_much_again(parameters, buffers):
    whole = replace(RESULT, parameters={"scale": torch.tensor(2.0), **parameters}, buffers=buffers)
    doubled = {f"{group}/{name}": t for group in ("parameters", "buffers") for name, t in getattr(whole, group).items()}
    with tempfile.TemporaryDirectory() as folder:
        mailbox = Mailbox(Path(folder) / "mailbox", room_for(whole.parameters, whole.buffers))
        assert mailbox.put(replace(whole, payload=doubled)).outside == {}


def test_the_layout_goes_along_when_it_changes(ends):
    worker, parent = ends
    row = [
        result(1),
        result(2),
        result(3, 10),
        result(4, 10),
        result(5),
        replace(result(6), payload=result(7).parameters),
    ]
    letters = [sent(worker.put(each)) for each in row[:2]]
    assert [letter.layout is None for letter in letters] == [False, True]
    assert [all_bits(parent.take(letter)) for letter in letters] == [all_bits(each) for each in row[:2]]
    for each, known in zip(row[2:], (False, True, False, False), strict=True):
        letter = sent(worker.put(each))
        assert (letter.layout is None) is known
        assert all_bits(parent.take(letter)) == all_bits(each)


def test_what_fits_is_not_in_the_letter_and_what_does_not_is(ends):
    worker, parent = ends
    for sizes in ((100, 400, 100), (400, 100, 300)):
        parameters = {str(place): torch.full((size,), float(size)) for place, size in enumerate(sizes)}
        letter = worker.put(replace(RESULT, parameters=parameters))
        assert {name for _, name in letter.outside} == {name for name in parameters if len(parameters[name]) >= 300}
        taken = parent.take(sent(letter))
        assert bits(taken.parameters) == bits(parameters)
    letter = worker.put(result(1, 256))
    assert letter.outside == {}, "a room may be filled to its last byte"
    assert len(pickle.dumps(letter)) < 1000


@given(st.lists(st.integers(0, 40), min_size=1, max_size=3), st.integers(6, 12), groups)
def test_float32_comes_out_in_one_piece_where_there_is_room(sizes, room, payload):
    named = {str(size): torch.rand(size) for size in sizes}
    given_ = replace(RESULT, parameters=named, buffers=named | {"steps": torch.tensor(3)}, payload=payload)
    with tempfile.TemporaryDirectory() as folder:
        worker, parent = (Mailbox(Path(folder) / "mailbox", ALIGNMENT * room, 3) for _ in range(2))
        for _ in range(4):
            letter = sent(worker.put(given_))
            found = parent.take(letter)
            outside = {group for group, _ in letter.outside}
            assert isinstance(found.parameters, Flat) is ("parameters" not in outside)
            assert type(found.buffers) is dict, "whole numbers among them"
            assert type(found.payload) is dict
            assert all_bits(found) == all_bits(given_)
        again = replace(given_, buffers=named)
        assert all_bits(parent.take(sent(worker.put(again)))) == all_bits(again), "the layout goes along"


def test_as_many_results_may_be_under_way_as_there_are_places(tmp_path):
    worker, parent = (Mailbox(tmp_path / "mailbox", 1024, 5) for _ in range(2))
    for first in (0, 10, 20):
        letters = [sent(worker.put(result(first + number))) for number in range(5)]
        assert len({letter.place for letter in letters}) == 5
        for number, letter in enumerate(letters):
            assert bits(parent.take(letter).parameters) == bits(result(first + number).parameters)


def test_states_stay_behind(ends):
    worker, parent = ends
    letter = worker.put(result(1, state={"secret": torch.ones(3)}))
    assert b"secret" not in pickle.dumps(letter)
    assert parent.take(sent(letter)).state == {}


def test_what_was_taken_is_a_copy(ends):
    worker, parent = ends
    letter = sent(worker.put(result(1)))
    taken = parent.take(letter)
    worker.put(result(2))
    worker.put(result(3))
    assert bits(taken.parameters) == bits(result(1).parameters), "both halves have been written since"
    letter = sent(worker.put(result(4)))
    parent.take(letter).parameters["w"].zero_()
    assert bits(parent.take(letter).parameters) == bits(result(4).parameters)


def test_a_mailbox_that_is_there_is_opened_with_what_is_in_it(ends, tmp_path):
    worker, _ = ends
    letter = sent(worker.put(result(1)))
    assert bits(Mailbox(tmp_path / "mailbox", 1024).take(letter).parameters) == bits(result(1).parameters)


def test_what_was_put_is_not_held(ends):
    worker, parent = ends
    given_ = result(1)
    letter = worker.put(given_)
    given_.parameters["w"].zero_()
    assert bits(parent.take(letter).parameters) == bits(result(1).parameters)


def test_tensors_with_a_gradient_go_without_it(ends):
    worker, parent = ends
    parameters = {"w": torch.ones(3, requires_grad=True), "large": torch.ones(999, requires_grad=True)}
    letter = worker.put(replace(RESULT, parameters=parameters))
    for taken in (worker.take(letter), parent.take(sent(letter))):
        assert bits(taken.parameters) == bits({name: t.detach() for name, t in parameters.items()})
        assert not any(t.requires_grad for t in taken.parameters.values())


@pytest.mark.parametrize("size", [None, 999])
def test_a_result_of_which_nothing_is_in_the_mailbox(ends, size):
    worker, parent = ends
    given_ = RESULT if size is None else result(1, size)
    assert all_bits(parent.take(sent(worker.put(given_)))) == all_bits(given_)
