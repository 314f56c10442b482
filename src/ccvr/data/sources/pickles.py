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
MAX_MEMO = 10_000_000  # the unpickler allocates its memo up to the largest index that the pickle names
MAX_TUPLES = 10_000  # a tower of tuples as a dictionary key overflows the C stack


def unpickle(raw: bytes, place: Place, member: str) -> dict[str, Any]:
    """The dictionary of arrays and plain values in a pickle; the error names ``member`` of ``place``."""
    try:
        _check_opcodes(raw)
        batch = ArrayUnpickler(io.BytesIO(raw), encoding="bytes").load()
        return {_text(key): value.array if isinstance(value, PickledArray) else value for key, value in batch.items()}
    except PICKLE_ERRORS as error:
        raise place.damaged(f"is not a pickled batch of images ({error})", member) from error


def _check_opcodes(raw: bytes) -> None:
    """Refuse a pickle whose mere loading would exhaust memory or stack."""
    tuples = 0
    for opcode, argument, _ in pickletools.genops(raw):
        tuples += opcode.name.startswith("TUPLE")
        memo = int(argument or 0) if opcode.name.endswith("PUT") else 0
        if tuples > MAX_TUPLES or memo > MAX_MEMO:
            raise ValueError(f"opcode {opcode.name} beyond any need")


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
    ("_codecs", "encode"): lambda text, encoding: text.encode("latin1"),
}


class ArrayUnpickler(pickle.Unpickler):
    """Builds integer arrays and plain Python values; refuses every other name."""

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        if (module, name) not in STAND_INS:
            asked = f"{module}.{name}"[:80]
            raise pickle.UnpicklingError(f"it asks for {asked!r}, which no array needs; nothing was called")
        return STAND_INS[module, name]
