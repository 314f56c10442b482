"""Data sets from their official addresses into their own folder under the data root."""

import re
from collections.abc import Iterator
from pathlib import Path

from ccvr.core.errors import DataError
from ccvr.core.trust import FOLDER
from ccvr.data.catalogue import check, resolve
from ccvr.data.digests import digest, record_first, verify
from ccvr.data.sources.source import Embedded, Stored
from ccvr.data.transfer import Progress, Transfer


def download(name: str, root: Path | None = None, *, mirror: str | None = None) -> Iterator[Progress]:
    """Download what is missing or wrong, step by step; yields nothing if all is there and right.

    ``mirror`` is an address to be used in place of the official ones' folder.
    """
    source = resolve(name)
    if isinstance(source, Embedded):
        raise DataError(f"{name} comes with {source.package}; there is nothing to download.")
    if name.startswith(FOLDER) or not isinstance(source, Stored) or not source.urls:
        raise DataError(f'"{name}" is your own; there is no address to download it from.')
    if mirror is not None and not re.match(r"https?://[\w.-]+(:\d+)?(/|$)", mirror, re.ASCII):
        raise DataError(f'the mirror "{mirror}" is not a web address. Give one like https://example.org/folder.')
    return iter(()) if _is_right(name, source, root) else _download_all(source, root, mirror)


def _is_right(name: str, source: Stored, root: Path | None) -> bool:
    """Whether the data set is there and whole; wrong files that a download would not replace are an error."""
    found = source.find(root)
    if found is None:
        return False
    try:
        check(name, root)
    except DataError:
        # Damaged unpacked files would still be read after the download, because they are preferred to archives.
        own, downloads = source.folder(root), {url.rsplit("/", 1)[-1] for url in source.urls}
        is_unpacked = any(path.name not in downloads for path in found.files())
        if is_unpacked and found.form is source.forms[0] and (found.path == own or own in found.path.parents):
            raise
        return False
    return True


def _download_all(source: Stored, root: Path | None, mirror: str | None) -> Iterator[Progress]:
    for url in source.urls:
        file = url.rsplit("/", 1)[-1]
        target, md5 = source.folder(root) / file, source.md5.get(file)
        if md5 is not None and target.is_file() and digest(target, "md5") == md5:
            continue  # from an earlier download
        try:
            yield from _download(Transfer(target, f"{mirror.rstrip('/')}/{file}" if mirror else url), md5)
        except OSError as error:
            raise DataError(
                f"cannot write into {target.parent} ({error.strerror}). Free some space or name another folder."
            ) from error


def _download(transfer: Transfer, md5: str | None) -> Iterator[Progress]:
    """Download one file, which gets its name only if its checksum is right."""
    yield from transfer.receive()
    try:
        verify(transfer.part, transfer.target, md5, remedy="It was deleted; run the command again")
    except DataError:
        transfer.discard()
        raise
    transfer.finish()
    if md5 is None:
        record_first(transfer.target)
