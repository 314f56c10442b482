"""Files by name out of an unpacked folder or a .tar.gz archive, into memory.

An archive is never extracted: its members are matched by exact name, so none of them can choose where to be written.
"""

import gzip
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping

from ccvr.data.sources.source import Place

# The tar and gzip readers let these through for damaged input; ValueError stands for impossible header fields.
ARCHIVE_ERRORS = (tarfile.TarError, EOFError, zlib.error, OSError, ValueError)
CHUNK = 1 << 20


def read_members(place: Place, folder: str, sizes: Mapping[str, range]) -> dict[str, bytes]:
    """The bytes of each named file; ``sizes`` are the lengths it may have, ``folder`` its folder in the archive."""
    found = _from_folder(place, sizes) if place.path.is_dir() else _from_archive(place, folder, sizes)
    for name in sizes:
        if name not in found:
            raise place.damaged("is missing", name)
    return found


def _from_folder(place: Place, sizes: Mapping[str, range]) -> dict[str, bytes]:
    return {name: _file(place, name, sizes[name]) for name in sizes if (place.path / name).exists()}


def _file(place: Place, name: str, sizes: range) -> bytes:
    path = place.path / name
    try:
        check_size(place, name, path.stat().st_size, sizes)
        return path.read_bytes()
    except OSError as error:
        raise place.damaged(f"cannot be read ({error.strerror})", name) from error


def _from_archive(place: Place, folder: str, sizes: Mapping[str, range]) -> dict[str, bytes]:
    members = {f"{folder}/{name}": name for name in sizes}

    def wanted(member: str, size: int) -> bool:
        if member in members:
            check_size(place, members[member], size, sizes[members[member]])
        return member in members

    return {members[member]: raw for member, raw in archive_files(place, wanted)}


def check_size(place: Place, name: str, size: int, sizes: range) -> None:
    """Refuse a length that is not expected, before anything of that length is read."""
    if size not in sizes:
        span = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
        raise place.damaged(f"has {size} bytes, expected {span}", name)


def archive_files(place: Place, wanted: Callable[[str, int], bool]) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of each regular file that is ``wanted(name, size)``, in the archive's order, in one pass."""
    try:
        with gzip.open(place.path) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                name = member.name.removeprefix("./")
                if member.isreg() and wanted(name, member.size) and (file := archive.extractfile(member)):
                    yield name, file.read()
            while stream.read(CHUNK):  # to the end, where gzip keeps its checksum
                pass
    except ARCHIVE_ERRORS as error:
        raise place.damaged(f"is not a whole .tar.gz archive ({error})") from error
