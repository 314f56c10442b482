"""Batches pickled by NumPy, read without trusting the pickle.

The official Python archives of CIFAR are pickles, and a pickle may name any function to be called. Here the few names
that an array needs are answered with stand-ins of our own, all others are refused. NumPy itself never sees the state
that a pickle wants to give an array before it was checked.
"""

import io
import pickle
import pickletools
import re
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccvr.data.sources.source import Place

# What the standard unpickler is known to let through for a damaged pickle.
PICKLE_ERRORS = (
    pickle.UnpicklingError,
    EOFError,
    AttributeError,
    ImportError,
    LookupError,
    ValueError,
    TypeError,
    OverflowError,
    MemoryError,
    struct.error,
)
MAX_OPCODES = 1_000_000
MAX_MEMO = 10_000_000
"""The unpickler allocates its memo up to the largest index that the pickle names."""
MAX_TUPLES = 10_000
"""A tower of tuples as a dictionary key overflows the C stack."""
MAX_BITS = 1_000
"""Of a whole number."""
MAX_SHARED = 1_000
"""Bytes of a text that may be used more than once."""
NEEDED = {
    *("PROTO", "FRAME", "STOP", "MARK", "GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "NONE", "NEWTRUE", "NEWFALSE"),
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
    *("EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS"),
    *("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "GET", "BINGET", "LONG_BINGET"),
}
"""Opcodes of arrays, numbers and texts in lists and dictionaries."""


def unpickle(raw: bytes, place: Place, member: str, *, opcodes: int = MAX_OPCODES) -> dict[str, Any]:
    """The dictionary of arrays and plain values in a pickle of at most so many ``opcodes``.

    Raises:
        DataError: it is no such pickle; the error names ``member`` of ``place``.
    """
    try:
        _check_opcodes(raw, opcodes)
        batch = ArrayUnpickler(io.BytesIO(raw), encoding="bytes").load()
        return {_text(key): value.array if isinstance(value, PickledArray) else value for key, value in batch.items()}
    except PICKLE_ERRORS as error:
        raise place.damaged(f"is not a pickled batch of images ({error})", member) from error


def _check_opcodes(raw: bytes, most: int) -> None:
    """Refuse a pickle whose mere loading would exhaust memory, stack or patience.

    A tuple of tuples that are used twice is hashed in exponential time, and long texts that are equal are compared each
    time: so tuples and long texts, and what is made of these, may be used once.
    """
    tuples, is_long, is_unshared = 0, False, False  # tuples that are no arguments of a call
    memo: dict[int, bool] = {}
    for number, (opcode, argument, _) in enumerate(pickletools.genops(raw)):
        name = opcode.name
        if number >= most or name not in NEEDED:
            raise ValueError(f"opcode {name} beyond any need")
        if name == "MEMOIZE" or name.endswith("PUT"):
            memo[len(memo) if name == "MEMOIZE" else _place(argument)] = is_unshared
            continue
        if name.endswith("GET") and memo.get(_place(argument)):
            raise ValueError("a tuple or a long text is used twice")
        tuples += ("TUPLE" in name) - (name == "REDUCE")
        if tuples > MAX_TUPLES or (isinstance(argument, int) and argument.bit_length() > MAX_BITS):
            raise ValueError(f"opcode {name} beyond any need")
        is_text = isinstance(argument, str | bytes | bytearray) and len(argument) > MAX_SHARED
        is_unshared = name.startswith("TUPLE") or is_text or (name == "REDUCE" and is_long)
        is_long = is_text or (is_long and name != "REDUCE")


def _place(argument: object) -> int:
    """Where the memo keeps something."""
    place = int(str(argument))
    if not 0 <= place <= MAX_MEMO:
        raise ValueError("a memo beyond any need")
    return place


def _encode(text: object, encoding: object) -> bytes:
    """How Python 3 spells bytes in protocols before 3."""
    if not isinstance(text, str) or encoding != "latin1":
        raise TypeError("bytes that are not spelled as text")
    return text.encode("latin1")


def _text(value: object) -> str:
    """Python 2 pickled its strings as bytes."""
    if isinstance(value, bytes):
        return value.decode("latin1")
    if isinstance(value, str):
        return value
    raise TypeError(f"a {type(value).__name__} where a string belongs")


class PickledDtype:
    """Stand-in for a numpy.dtype of plain integers."""

    def __init__(self, code: str | bytes, align: object = False, copy: object = True) -> None:
        self.order, self.code = "=", _text(code)
        if not re.fullmatch(r"[bui][1248]", self.code):
            raise ValueError(f"an array of dtype {self.code[:20]!r}")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = _text(state[1])[:1]

    def plain(self) -> np.dtype[Any]:
        return np.dtype(self.order + self.code)


class PickledArray:
    """Stand-in for a numpy.ndarray; ``array`` is the real one, once the pickle has given its state."""

    array: NDArray[Any]

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, raw = state
        self.fill(raw, dtype, shape, "F" if fortran else "C")

    def fill(self, raw: object, dtype: object, shape: tuple[int, ...], order: str) -> None:
        if not isinstance(dtype, PickledDtype) or not isinstance(raw, bytes | bytearray):
            raise TypeError("an array that is not of plain integers")
        self.array = np.frombuffer(raw, dtype.plain()).reshape(shape, order="F" if order == "F" else "C")


def from_buffer(raw: object, dtype: object, shape: tuple[int, ...], order: str) -> PickledArray:
    """Stand-in for NumPy's ``_frombuffer`` (pickle protocol 5)."""
    made = PickledArray()
    made.fill(raw, dtype, shape, order)
    return made


# NumPy's _reconstruct would allocate any shape that the pickle names; _codecs.encode is how protocol 2 spells bytes.
STAND_INS: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "ndarray"): PickledArray,
    ("numpy", "dtype"): PickledDtype,
    ("numpy.core.multiarray", "_reconstruct"): lambda kind, shape, typecode: PickledArray(),
    ("numpy._core.multiarray", "_reconstruct"): lambda kind, shape, typecode: PickledArray(),
    ("numpy.core.numeric", "_frombuffer"): from_buffer,
    ("numpy._core.numeric", "_frombuffer"): from_buffer,
    ("_codecs", "encode"): _encode,
}


class ArrayUnpickler(pickle.Unpickler):
    """Builds integer arrays and plain Python values; refuses every other name."""

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        if (module, name) not in STAND_INS:
            asked = f"{module}.{name}"[:80]
            raise pickle.UnpicklingError(f"it asks for {asked!r}, which no array needs; nothing was called")
        return STAND_INS[module, name]
