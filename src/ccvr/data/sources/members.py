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

    def is_wanted(name: str, size: int) -> bool:
        """Refuse a length that is not expected, before anything of that length is read."""
        if name in sizes and size not in sizes[name]:
            low, high = sizes[name][0], sizes[name][-1]
            raise place.damaged(f"has {size} bytes, expected {low if low == high else f'{low} to {high}'}", name)
        return name in sizes

    if place.path.is_dir():
        found = dict(_folder_files(place, sizes, is_wanted))
    else:
        inside = f"{folder}/"  # a member elsewhere is not looked at
        members = archive_files(place, lambda m, size: m.startswith(inside) and is_wanted(m.removeprefix(inside), size))
        found = {member.removeprefix(inside): raw for member, raw in members}
    for name in sizes:
        if name not in found:
            raise place.damaged("is missing", name)
    return found


def _folder_files(
    place: Place, names: Mapping[str, range], wanted: Callable[[str, int], bool]
) -> Iterator[tuple[str, bytes]]:
    for name in names:
        path = place.path / name
        try:
            if path.exists() and wanted(name, path.stat().st_size):
                yield name, path.read_bytes()
        except OSError as error:
            raise place.damaged(f"cannot be read ({error.strerror})", name) from error


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
