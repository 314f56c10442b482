"""Files by name out of an unpacked folder or a .tar.gz archive, into memory."""

from collections.abc import Callable, Iterator, Mapping

from ccvr.core.files import read_bytes
from ccvr.data.sources.archives import ARCHIVE_ERRORS, Wanted, tar_files
from ccvr.data.sources.source import Place

MAX_OTHERS = 1_000
"""Members of an archive beside those that are read."""


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
        found = {}
        for member, raw in archive_files(
            place, lambda m, size: m.startswith(inside) and is_wanted(m.removeprefix(inside), size)
        ):
            if (name := member.removeprefix(inside)) in found:
                raise place.damaged("is there twice", name)
            found[name] = raw
    for name in sizes:
        if name not in found:
            raise place.damaged("is missing", name)
    return found


def _folder_files(
    place: Place, sizes: Mapping[str, range], wanted: Callable[[str, int], bool]
) -> Iterator[tuple[str, bytes]]:
    for name in sizes:
        path = place.path / name
        try:
            if path.exists() and wanted(name, path.stat().st_size):
                yield name, read_bytes(path, sizes[name][-1])
        except (OSError, ValueError) as error:
            raise place.damaged(f"cannot be read ({getattr(error, 'strerror', None) or error})", name) from error


def archive_files(place: Place, wanted: Wanted, *, others: int = MAX_OTHERS) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of each regular file that is ``wanted(name, size)``; ``others`` may be there beside."""
    try:
        yield from tar_files(place.path, wanted, others=others)
    except ARCHIVE_ERRORS as error:
        raise place.damaged(f"is not a whole .tar.gz archive ({error})") from error
