"""Small files that anybody may have written: read whole, with bounds on size, depth and memory."""

import hashlib
import json
import os
import stat
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

MAX_TEXT = 2**24
"""Bytes of a JSON file, or of a line of rounds.jsonl. Ours have at most a few hundred thousand."""
MAX_TOML = 2**17
"""Bytes of a spec. Ours have a few thousand."""
MAX_VALUES = 10**6
"""Values in a JSON text. A parsed value takes some 40 bytes, however short its text is."""
MAX_CONTAINERS = 200_000
"""Lists and objects in a JSON text. Each takes some 200 bytes."""
MAX_DEPTH = 50
"""Levels of lists and objects. Ours have at most ten."""
KINDS: dict[str, Callable[[int], bool]] = {
    "a folder": stat.S_ISDIR,
    "a FIFO": stat.S_ISFIFO,
    "a socket": stat.S_ISSOCK,
    "a device": lambda mode: stat.S_ISCHR(mode) or stat.S_ISBLK(mode),
}


def require_file(path: Path) -> os.stat_result:
    """Refuse what is not a regular file: reading a FIFO or a device may never end.

    Raises:
        OSError: the path cannot be looked up.
        ValueError: it is a folder, a FIFO, a socket or a device.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        kind = next((name for name, holds in KINDS.items() if holds(found.st_mode)), "something else")
        raise ValueError(f"it is {kind}, not a file")
    return found


def read_bytes(path: Path, most: int) -> bytes:
    """The content of a regular file.

    Raises:
        OSError: the file cannot be read.
        ValueError: the path is not a file, or the file is larger than ``most`` bytes.
    """
    require_file(path)  # before it is opened: that alone changes some devices
    opened = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(opened, "rb") as file:
        size = os.fstat(opened).st_size
        if size > most:
            raise ValueError(f"it has {size:,} bytes; at most {most:,} are read")
        return file.read(most)


def own_file(path: str, flags: int) -> int:
    """An opener of files that we write: it follows no link, and does not wait for a FIFO's reader."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o666)


def read_text(path: Path, most: int = MAX_TEXT) -> str:
    """The content of a regular file in UTF-8. Raises OSError or ValueError, as ``read_bytes`` does."""
    return read_bytes(path, most).decode("utf-8")


def parse_json(text: str | bytes) -> Any:
    """JSON as Python values. The text is looked at before it is parsed: a parsed value takes more room than its text.

    Args:
        text: the JSON; bytes are in UTF-8.

    Raises:
        ValueError: the text is not JSON, holds too many values, or is nested too deeply.

    Example:
        >>> parse_json('{"accuracy": [61.5]}')
        {'accuracy': [61.5]}
    """
    text = text.decode("utf-8") if isinstance(text, bytes) else text
    containers = text.count("[") + text.count("{")
    if containers > MAX_CONTAINERS or containers + text.count(",") > MAX_VALUES:
        raise ValueError(f"it holds more than {MAX_CONTAINERS:,} lists and objects, or {MAX_VALUES:,} values")
    try:
        content = json.loads(text)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels") from None
    require_shallow(content)
    return content


def parse_toml(text: str) -> dict[str, Any]:
    """TOML as Python values. Raises ValueError where the text is not TOML or is nested too deeply."""
    try:
        content = tomllib.loads(text)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels") from None
    require_shallow(content)
    return content


def require_shallow(content: Any) -> None:
    """Refuse values that are nested deeper than MAX_DEPTH: what walks through them would run out of stack."""
    level = [content] if isinstance(content, list | dict) else []
    for _ in range(MAX_DEPTH):
        level = [item for each in level for item in _items(each) if isinstance(item, list | dict)]
    if level:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")


def _items(container: list[Any] | dict[str, Any]) -> Iterator[Any]:
    return iter(container.values() if isinstance(container, dict) else container)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def digest_of(path: Path) -> str | None:
    """SHA-256 of a file; None where there is none."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
