"""Named arrays and what they are about, as bytes: what analyses leave in a run, and reports read."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ccvr.core.errors import RunError
from ccvr.core.files import parse_json, read_bytes

FORMAT = "ccvr-arrays/1"
KEY = "ccvr"
MAX_ARRAYS = 2**28
"""Bytes of a file of arrays: confusions of some 30 heads on a thousand classes."""
MAX_HEADER = 10**7
"""Bytes of a header that is read at all."""

Array = np.ndarray[Any, np.dtype[Any]]
IntArray = NDArray[np.int64]


def arrays_to_bytes(arrays: Mapping[str, Array], about: Mapping[str, Any]) -> bytes:
    """A safetensors file; ``about`` is JSON in its header."""
    header = json.dumps({"format": FORMAT, "about": about}, ensure_ascii=False)
    return save({name: np.asarray(array, order="C") for name, array in arrays.items()}, {KEY: header})


def read_arrays(path: Path) -> tuple[dict[str, Array], dict[str, Any]]:
    """The arrays of a file, and what they are about."""
    try:
        entries, arrays = load_arrays(path)
        return arrays, _about(parse_json(entries["__metadata__"][KEY]))
    except (OSError, LookupError, TypeError, ValueError) as error:
        raise RunError(f"{path} cannot be read ({error}). Delete it and run `ccvr analyze` again.") from error


def load_arrays(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """The header and the arrays of a safetensors file.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is too large, or not such a file.
    """
    blob = read_bytes(path, MAX_ARRAYS)
    length = int.from_bytes(blob[:8], "little")
    if length > MAX_HEADER:
        raise ValueError(f"its header has {length:,} bytes; at most {MAX_HEADER:,} are read")
    entries = parse_json(blob[8 : 8 + length])
    try:
        return dict(entries), load(blob)
    except (SafetensorError, LookupError, TypeError, OverflowError) as error:
        raise ValueError(str(error)) from error


def read_about(path: Path) -> dict[str, Any]:
    """What the arrays of a file are about; empty where there is no such file, or it cannot be read."""
    try:
        return read_arrays(path)[1]
    except RunError:
        return {}


def _about(header: Any) -> dict[str, Any]:
    if header["format"] != FORMAT:
        raise ValueError(f"the format is {header['format']!r:.60}, this version reads {FORMAT!r}")
    return dict(header["about"])
