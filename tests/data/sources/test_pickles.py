"""A pickle that is not a batch of images executes nothing and is refused."""

import io
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccvr.core.errors import DataError
from ccvr.data.sources.pickles import unpickle
from ccvr.data.sources.source import Place

PLACE = Place("cifar10", Path("/data/cifar-10-python.tar.gz"))
U1 = b"cnumpy\ndtype\n(X\x02\x00\x00\x00u1I00\nI01\ntR"


class Reduced:
    """Pickles as a call of ``function`` with ``arguments``."""

    def __init__(self, function, *arguments) -> None:
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def refusal(raw: bytes) -> str:
    with pytest.raises(DataError) as caught:
        unpickle(raw, PLACE, "data_batch_1")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_call_of_the_shell_is_refused_and_not_made(tmp_path):
    raw = pickle.dumps({"data": Reduced(os.system, f"touch {tmp_path}/pwned")})
    assert refusal(raw) == (
        "/data/cifar-10-python.tar.gz: data_batch_1 is not a pickled batch of images (it asks for 'posix.system', "
        "which no array needs; nothing was called). Replace it with the official file, or move "
        "/data/cifar-10-python.tar.gz away and run `ccvr data get cifar10`."
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("function", [eval, exec, getattr, __import__, open, np.load, np.frombuffer, io.FileIO])
def test_other_functions_are_refused_in_every_protocol(function, protocol):
    assert "which no array needs" in refusal(pickle.dumps(Reduced(function, "x"), protocol=protocol))


@pytest.mark.parametrize(
    "name",
    [
        b"cnumpy\nload\n",
        b"cnumpy\nos.system\n",
        b"cnumpy.core.multiarray\n_reconstruct.__globals__\n",
        b"cnumpy.core.multiarray\nfromfile\n",
        b"c_codecs\nlookup\n",
        b"cccvr.data.sources.pickles\npickle.loads\n",
        b"\x8c\x02os\x8c\x06system\x93",
        b"\x8c\x03o\ns\x8c\x06system\x93",
    ],
)
def test_names_near_the_allowed_ones_are_refused(name):
    assert "which no array needs" in refusal(b"\x80\x04" + name + b".")


def test_an_extension_code_cannot_reach_further():
    refusal(b"\x80\x02\x82\x01.")


def test_a_persistent_id_is_refused():
    refusal(b"Pos.system\n.")


@pytest.mark.parametrize("dtype", [b"O8", b"O", b"V8", b"f8", b"S1000000000", b"u1,O", b"U4", b"M8"])
def test_an_array_of_anything_but_integers_is_refused(dtype):
    size = struct.pack("<I", len(dtype))
    assert "an array of dtype" in refusal(b"cnumpy\ndtype\n(X" + size + dtype + b"I00\nI01\ntR.")


def test_an_object_array_is_refused():
    assert "an array of dtype 'O8'" in refusal(pickle.dumps({"data": np.array([{}, []], object)}))


def test_a_dtype_cannot_be_given_an_evil_state():
    state = b"(I3\nX\x01\x00\x00\x00ONNNI-1\nI-1\nI0\ntb"
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntX\x01\x00\x00\x00btR"
    refusal(b"(dX\x04\x00\x00\x00data" + array + b"(I1\n(I8\nt" + U1 + state + b"I00\nC\x08" + b"A" * 8 + b"tbs.")


def test_a_huge_array_is_not_allocated():
    claim = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I1000000000000000\ntX\x01\x00\x00\x00btR"
    assert "'array'" in refusal(b"(dX\x04\x00\x00\x00data" + claim + b"s.")
    lie = b"(I1\n(I1000000000000\nt" + U1 + b"I00\nC\x01Atb"
    assert "cannot reshape" in refusal(b"(dX\x04\x00\x00\x00data" + claim + lie + b"s.")


def test_a_huge_memo_is_not_allocated():
    assert "beyond any need" in refusal(b"\x80\x02]r\xff\xff\xff\xff.")


def test_a_tower_of_tuples_does_not_overflow_the_stack():
    assert "beyond any need" in refusal(b"\x80\x02})" + b"\x85" * 3_000_000 + b"Ns.")


def test_the_functions_that_stand_in_cannot_be_rebuilt():
    replaced = b"\x80\x02c_codecs\nencode\n(N}X\x08\x00\x00\x00__code__K\x01stb."
    refusal(replaced)
    raw = pickle.dumps({"data": np.arange(3, dtype=np.uint8), "more": b"\xff\x00"}, protocol=2)
    assert unpickle(raw, PLACE, "b")["more"] == b"\xff\x00"


@pytest.mark.parametrize("raw", [b"", b".", b"N.", b"].", b"\x80\x09N.", b"(d", b"(dK\x01K\x02s.", b"not a pickle"])
def test_what_is_no_dictionary_of_strings_is_refused(raw):
    refusal(raw)


@pytest.mark.parametrize("dtype", ["u1", "<i4", ">i4", "i8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_integer_arrays_come_back_as_they_were(dtype, order):
    array = np.asarray(np.arange(12).reshape(3, 4), dtype=dtype, order=order)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        found = unpickle(pickle.dumps({"data": array}, protocol=protocol), PLACE, "b")["data"]
        assert found.dtype == array.dtype
        assert np.array_equal(found, array)


BATCH = pickle.dumps({"data": np.arange(40, dtype=np.uint8).reshape(4, 10), "labels": [1, 2, 3, 4]}, protocol=2)


@settings(max_examples=300, derandomize=True, deadline=None)
@given(at=st.integers(0, len(BATCH) - 1), junk=st.binary(min_size=1, max_size=6))
def test_junk_in_a_pickle_is_refused_or_harmless(at, junk):
    try:
        found = unpickle(BATCH[:at] + junk + BATCH[at + len(junk) :], PLACE, "b")
    except DataError:
        return
    assert isinstance(found, dict)


@settings(max_examples=100, derandomize=True, deadline=None)
@given(keep=st.integers(0, len(BATCH) - 1))
def test_every_truncation_of_a_pickle_is_refused(keep):
    refusal(BATCH[:keep])
