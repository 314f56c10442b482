"""Named arrays and what they are about, as bytes: what analyses leave in a run, and reports read."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ccvr.core.errors import RunError

FORMAT = "ccvr-arrays/1"
KEY = "ccvr"

Array = np.ndarray[Any, np.dtype[Any]]
IntArray = NDArray[np.int64]


def arrays_to_bytes(arrays: Mapping[str, Array], about: Mapping[str, Any]) -> bytes:
    """A safetensors file; ``about`` is JSON in its header."""
    header = json.dumps({"format": FORMAT, "about": about}, ensure_ascii=False)
    return save({name: np.asarray(array, order="C") for name, array in arrays.items()}, {KEY: header})


def read_arrays(path: Path) -> tuple[dict[str, Array], dict[str, Any]]:
    """The arrays of a file, and what they are about."""
    try:
        with safe_open(path, framework="numpy") as file:
            about = _about(json.loads((file.metadata() or {})[KEY]))
            return {name: file.get_tensor(name) for name in file.keys()}, about  # noqa: SIM118
    except (OSError, SafetensorError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise RunError(f"{path} cannot be read ({error}). Delete it and run `ccvr analyze` again.") from error


def _about(header: Any) -> dict[str, Any]:
    if header["format"] != FORMAT:
        raise ValueError(f"the format is {header['format']!r}, this version reads {FORMAT!r}")
    return dict(header["about"])
