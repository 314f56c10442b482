import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ccvr.core.errors import ModelError
from ccvr.models.tensor_file import MAX_HEADER, UnreadableTensors, read_header, tensors_from_bytes, tensors_to_bytes

TENSORS = {"a": torch.arange(6.0).view(2, 3), "n": torch.tensor(4), "empty": torch.zeros(0, 5, dtype=torch.float64)}
BLOB = tensors_to_bytes(TENSORS, format="test/1", size=[1, 2], name="é")


def framed(entries: object, payload: bytes = b"") -> bytes:
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + payload


def test_the_header_and_the_shapes() -> None:
    header, shapes = read_header(BLOB, format="test/1")
    assert header == {"format": "test/1", "size": [1, 2], "name": "é"}
    assert shapes == {"a": [2, 3], "n": [], "empty": [0, 5]}


def test_the_tensors_are_not_needed_for_that() -> None:
    length = 8 + int.from_bytes(BLOB[:8], "little")
    assert len(BLOB) > length
    assert read_header(BLOB[:length], format="test/1") == read_header(BLOB, format="test/1")
    with pytest.raises(UnreadableTensors):
        tensors_from_bytes(BLOB[:length], format="test/1")


def test_shapes_may_lie_about_sizes_that_no_memory_holds() -> None:
    entry = {"dtype": "F64", "shape": [10**9, 10**9], "data_offsets": [0, 8]}
    blob = framed({"__metadata__": {"ccvr": json.dumps({"format": "test/1"})}, "a": entry}, bytes(8))
    assert read_header(blob, format="test/1")[1] == {"a": [10**9, 10**9]}
    with pytest.raises(UnreadableTensors):
        tensors_from_bytes(blob, format="test/1")


def test_a_round_trip() -> None:
    header, tensors = tensors_from_bytes(BLOB, format="test/1")
    assert header["size"] == [1, 2]
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor)


def test_only_tensors_are_kept() -> None:
    with pytest.raises(ModelError, match=r'^the model keeps a dict as "part._extra_state", and only tensors can be'):
        tensors_to_bytes({"a": torch.ones(2), "part._extra_state": {"a": 1}}, format="test/1")


def test_equal_tensors_are_equal_bytes() -> None:
    backwards = dict(reversed(TENSORS.items()))
    assert tensors_to_bytes(backwards, format="test/1", size=[1, 2], name="é") == BLOB


def test_a_header_that_is_too_long_is_not_read() -> None:
    good = {"__metadata__": {"ccvr": json.dumps({"format": "test/1"})}}
    text = json.dumps(good).encode()
    fits = text + b" " * (MAX_HEADER - len(text))
    assert read_header(framed(fits), format="test/1") == ({"format": "test/1"}, {})
    with pytest.raises(UnreadableTensors, match=r"^no header of ours"):
        read_header(framed(fits + b" "), format="test/1")
    with pytest.raises(UnreadableTensors, match=r"^no header of ours"):
        read_header((2**64 - 1).to_bytes(8, "little") + text, format="test/1")


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        b"short",
        framed(b""),
        framed(b"\xff\xfe"),
        framed(b"[" * 100_000),
        framed([]),
        framed("text"),
        framed({}),
        framed({"__metadata__": {}}),
        framed({"__metadata__": {"ccvr": "{"}}),
        framed({"__metadata__": {"ccvr": 5}}),
        framed({"__metadata__": {"ccvr": '{"format": "test/1"}'}, "a": []}),
        framed({"__metadata__": {"ccvr": '{"format": "test/1"}'}, "a": {"shape": 5}}),
    ],
    ids=range(13),
)
def test_bytes_that_were_never_ours(blob: bytes) -> None:
    with pytest.raises(UnreadableTensors, match=r"^no header of ours"):
        read_header(blob, format="test/1")


@pytest.mark.parametrize(("header", "found"), [('{"format": "x/9"}', "'x/9'"), ("{}", "None"), ("[1]", r"\[1\]")])
def test_another_format(header: str, found: str) -> None:
    with pytest.raises(UnreadableTensors, match=f"^the format is {found}, this version reads 'test/1'$"):
        read_header(framed({"__metadata__": {"ccvr": header}}), format="test/1")


@given(st.integers(0, len(BLOB) - 1))
def test_cut_bytes_are_refused(length: int) -> None:
    with pytest.raises(UnreadableTensors):
        tensors_from_bytes(BLOB[:length], format="test/1")


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(blob: bytes) -> None:
    with pytest.raises(UnreadableTensors):
        read_header(blob, format="test/1")
