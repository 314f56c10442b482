"""Named tensors and a header as bytes: the one layout of checkpoints, heads, models and statistics."""

import hashlib
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
UNKNOWN = "0" * 64
"""Stands for the checksum while it is computed."""


class UnreadableTensors(ValueError):
    """Bytes that are not what they should be; the message says in which way."""


def tensors_to_bytes(tensors: Mapping[str, Tensor], *, format: str, **header: Any) -> bytes:
    """A safetensors file whose header names its ``format``."""
    require_tensors(tensors)
    # Copies, because safetensors refuses tensors that share memory, as tied weights do.
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    return save(plain, {KEY: json.dumps({"format": format, **header})})


def with_checksum(tensors: Mapping[str, Tensor], *, format: str, **header: Any) -> bytes:
    """The same with a SHA-256 over the whole file in its header, against accidents. It is no signature."""
    blob = bytearray(tensors_to_bytes(tensors, format=format, checksum=UNKNOWN, **header))
    start = _place_of_checksum(blob, UNKNOWN)
    blob[start : start + len(UNKNOWN)] = _checksum(blob, start).encode()
    return bytes(blob)


def require_checksum(blob: bytes, header: Mapping[str, Any]) -> None:
    """Refuse bytes of ``with_checksum`` of which any bit was changed.

    Raises:
        UnreadableTensors: there is no checksum, or it is that of other bytes.
    """
    stated = header.get("checksum")
    start = _place_of_checksum(blob, stated) if isinstance(stated, str) and len(stated) == len(UNKNOWN) else -1
    if start < 0 or _checksum(blob, start) != stated:
        raise UnreadableTensors("the checksum is not that of these bytes: they were changed on their way")


def _place_of_checksum(blob: bytes | bytearray, stated: str) -> int:
    """Where the checksum stands in the header; −1 if it does not."""
    written = b'\\"checksum\\": \\"'
    found = blob.find(written + stated.encode("ascii", "replace"), 0, 8 + header_length(blob))
    return found if found < 0 else found + len(written)


def _checksum(blob: bytes | bytearray, start: int) -> str:
    """SHA-256 of the bytes, with zeros where the checksum itself stands."""
    whole = memoryview(blob)
    digest = hashlib.sha256(whole[:start])
    digest.update(UNKNOWN.encode())
    digest.update(whole[start + len(UNKNOWN) :])
    return digest.hexdigest()


def tensors_from_bytes(blob: bytes, *, format: str | tuple[str, ...]) -> tuple[dict[str, Any], Tensors]:
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


def header_length(start: bytes | bytearray, most: int = MAX_HEADER) -> int:
    """Bytes of the header that follows the first eight; 0 for one that is too long to be ours."""
    length = int.from_bytes(start[:8], "little")
    return length if length <= most else 0


def read_header(
    blob: bytes, *, format: str | tuple[str, ...], most: int = MAX_HEADER
) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """The header of at most so many bytes and the tensors' shapes, without making any tensor."""
    known = (format,) if isinstance(format, str) else format
    try:
        entries: Any = parse_json(blob[8 : 8 + header_length(blob, most)])
        header = parse_json(entries["__metadata__"][KEY])
        shapes = {name: list(entry["shape"]) for name, entry in entries.items() if name != "__metadata__"}
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise UnreadableTensors(f"no header of ours: {error}") from error
    if not isinstance(header, dict) or header.get("format") not in known:
        found = header.get("format") if isinstance(header, dict) else header
        raise UnreadableTensors(f"the format is {found!r:.60}, this version reads {' and '.join(map(repr, known))}")
    return header, shapes
