"""Files out of gzip and .tar.gz archives of anybody, in pieces, with bounds on everything that an archive can claim.

An archive is never extracted: its members are matched by name, so none of them can choose where to be written.
"""

import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from ccvr.core.files import require_file

ARCHIVE_ERRORS = (tarfile.TarError, EOFError, zlib.error, OSError, ValueError)
"""What a damaged archive raises here."""
CHUNK = 1 << 18
ROOM, RATIO = 2**26, 20
"""A gzip file may hold so many bytes, and so many more for each byte that was read of it. Pixels shrink to a fifth."""
MAX_STREAMS = 1_000
"""Parts of a gzip file; most have one."""
MAX_PADDING = 2**20
"""Zeros between these parts, and behind them."""
MAX_NAME = 4096
"""Bytes of a member's name."""
MAX_RECORDS = 2**16
"""Bytes of a member's extended header (pax)."""
BLOCK = 512
PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
Wanted = Callable[[str, int], bool]


class Inflated:
    """The content of a gzip file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._engine = zlib.decompressobj(31)
        self._pending = b""
        self._consumed = self._produced = 0
        self._streams = 1

    def read(self, size: int) -> bytes:
        """So many bytes, fewer at the end, where checksums are compared.

        Raises:
            EOFError, zlib.error: the file is damaged.
            ValueError: it inflates more than data does.
        """
        pieces, missing = [], size
        while missing and (piece := self._some(min(missing, CHUNK))):
            pieces.append(piece)
            missing -= len(piece)
        return b"".join(pieces)

    def skip(self, size: int) -> None:
        while size and (piece := self._some(min(size, CHUNK))):
            size -= len(piece)
        if size:
            raise EOFError("it ends in the midst of a member")

    def _some(self, most: int) -> bytes:
        while True:
            if self._engine.eof and not self._begin_stream():
                return b""
            piece = self._engine.decompress(self._pending, most)
            self._pending = self._engine.unconsumed_tail
            self._produced += len(piece)
            if self._produced > ROOM + RATIO * self._consumed:
                raise ValueError(f"it inflates to more than {RATIO} times its size")
            if piece:
                return piece
            if not self._engine.eof and not self._pending and not self._feed():
                raise EOFError("it ends before the end-of-stream marker")

    def _begin_stream(self) -> bool:
        """Whether there is another part; zeros behind the last one are padding."""
        padding, self._pending = 0, self._engine.unused_data
        while (self._pending or self._feed()) and not (rest := self._pending.lstrip(b"\0")):
            padding, self._pending = padding + len(self._pending), rest
            if padding > MAX_PADDING:
                raise ValueError(f"it ends in more than {MAX_PADDING:,} zeros")
        self._pending = self._pending.lstrip(b"\0")
        self._engine = zlib.decompressobj(31) if self._pending else self._engine
        self._streams += 1
        if self._streams > MAX_STREAMS:
            raise ValueError(f"it has more than {MAX_STREAMS:,} parts")
        return bool(self._pending)

    def _feed(self) -> bool:
        self._pending = self._file.read(CHUNK)
        self._consumed += len(self._pending)
        return bool(self._pending)


def tar_files(path: Path, wanted: Wanted, *, others: int) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of each regular file that is ``wanted(name, size)`` in a .tar.gz, in its order, in one pass.

    Args:
        path: the archive.
        wanted: says of a name and a size whether to read the file; what it wants is held in memory.
        others: members that may be there beside.

    Raises:
        ARCHIVE_ERRORS: the archive is damaged, or claims more than data sets need.
    """
    require_file(path)
    with path.open("rb") as file:
        stream = Inflated(file)
        for name, kind, size in _members(stream):
            if kind in PLAIN and wanted(name, size):
                content = stream.read(size)
                if len(content) < size:
                    raise EOFError("it ends in the midst of a member")
                stream.skip(-size % BLOCK)
                yield name, content
            else:
                others -= 1
                if others < 0:
                    raise ValueError("it has more members than this data set")
                stream.skip(_blocks(size) if kind in PLAIN or kind not in tarfile.SUPPORTED_TYPES else 0)
        while stream.read(CHUNK):  # to the end, where gzip keeps its checksum
            pass


def _members(stream: Inflated) -> Iterator[tuple[str, bytes, int]]:
    """Name, type and size of each member. Whoever asks for the next one has read or skipped what the last one holds."""
    name: str | None = None
    size: int | None = None
    extended = 0
    while header := stream.read(BLOCK):
        if header.count(0) == BLOCK:
            return
        member = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
        if member.type in (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE):
            extended += 1
            if extended > 4:
                raise ValueError("a member has more than 4 extended headers")
            is_pax = member.type in (tarfile.XHDTYPE, tarfile.XGLTYPE)
            content = _bounded(stream, member.size, MAX_RECORDS if is_pax else MAX_NAME)
            if member.type == tarfile.GNUTYPE_LONGNAME:
                name = content.partition(b"\0")[0].decode(errors="surrogateescape")
            elif member.type == tarfile.XHDTYPE:
                records = _pax(content)
                name, size = records.get("path", name), int(records["size"]) if "size" in records else size
            continue
        if (found := member.size if size is None else size) < 0:
            raise ValueError("a member has a negative size")
        yield (member.name if name is None else name).removeprefix("./"), member.type, found
        name, size, extended = None, None, 0


def _bounded(stream: Inflated, size: int, most: int) -> bytes:
    if not 0 <= size <= most:
        raise ValueError(f"an extended header has {size:,} bytes; at most {most:,} are read")
    content = stream.read(_blocks(size))
    return content[:size]


def _blocks(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def _pax(content: bytes) -> dict[str, str]:
    """Records ``LENGTH KEY=VALUE`` of an extended header."""
    found = {}
    while content.strip(b"\0"):
        length, _, _ = content.partition(b" ")
        if not length.isdigit() or not len(length) < int(length[:6]) <= len(content):
            raise ValueError("an extended header is damaged")
        record, content = content[len(length) + 1 : int(length)], content[int(length) :]
        key, _, value = record.decode(errors="surrogateescape").removesuffix("\n").partition("=")
        found[key] = value
    return found
