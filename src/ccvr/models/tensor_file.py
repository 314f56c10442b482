"""Named tensors and a header as bytes: the one layout of checkpoints, heads, models and statistics."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ccvr.core.files import parse_json, require_file
from ccvr.models.state import Tensors, require_tensors

# One metadata entry only: safetensors writes several in no fixed order, and equal files must have equal bytes.
KEY = "ccvr"
MAX_HEADER = 10**7
"""Bytes of a header that is read at all."""


class UnreadableTensors(ValueError):
    """Bytes that are not what they should be; the message says in which way."""


def tensors_to_bytes(tensors: Mapping[str, Tensor], *, format: str, **header: Any) -> bytes:
    """A safetensors file whose header names its ``format``."""
    require_tensors(tensors)
    # Copies, because safetensors refuses tensors that share memory, as tied weights do.
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    return save(plain, {KEY: json.dumps({"format": format, **header})})


def tensors_from_bytes(blob: bytes, *, format: str) -> tuple[dict[str, Any], Tensors]:
    """The header and the tensors of bytes in that ``format``."""
    header, _ = read_header(blob, format=format)
    try:
        return header, load(blob)
    except (SafetensorError, LookupError, TypeError, ValueError, OverflowError, RuntimeError, MemoryError) as error:
        raise UnreadableTensors(str(error)) from error


def read_tensor_file(path: Path) -> bytes:
    """The bytes of a safetensors file, read once their number is known to be the one that the header states.

    Raises:
        OSError: the file cannot be read.
        ValueError: the path is not a file, or the file is damaged.
    """
    size = require_file(path).st_size
    with path.open("rb") as file:
        start = file.read(8)
        start += file.read(header_length(start))
        try:
            entries = parse_json(start[8:])
            ends = [int(entry["data_offsets"][1]) for name, entry in entries.items() if name != "__metadata__"]
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise UnreadableTensors(f"no header of ours: {error}") from error
        if size != (stated := len(start) + max(ends, default=0)):
            raise UnreadableTensors(f"it has {size:,} bytes, and its header states {stated:,}")
        return start + file.read(size - len(start))


def header_length(start: bytes) -> int:
    """Bytes of the header that follows the first eight; 0 for one that is too long to be ours."""
    length = int.from_bytes(start[:8], "little")
    return length if length <= MAX_HEADER else 0


def read_header(blob: bytes, *, format: str) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """The header and the tensors' shapes, without making any tensor."""
    try:
        entries: Any = parse_json(blob[8 : 8 + header_length(blob)])
        header = parse_json(entries["__metadata__"][KEY])
        shapes = {name: list(entry["shape"]) for name, entry in entries.items() if name != "__metadata__"}
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise UnreadableTensors(f"no header of ours: {error}") from error
    if not isinstance(header, dict) or header.get("format") != format:
        found = header.get("format") if isinstance(header, dict) else header
        raise UnreadableTensors(f"the format is {found!r:.60}, this version reads {format!r}")
    return header, shapes
