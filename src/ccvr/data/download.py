"""Data sets from their official addresses into their own folder under the data root."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ccvr.core.errors import DataError
from ccvr.data.catalogue import check, resolve
from ccvr.data.digests import digest, record_first, verify
from ccvr.data.locate import own_folder
from ccvr.data.sources.source import Embedded, Stored, StoredFiles
from ccvr.data.spec import FOLDER
from ccvr.data.transfer import transfer
from ccvr.data.unfinished import Unfinished


class Progress(NamedTuple):
    """How far the download of one file is; ``total`` is None if the server does not say."""

    file: str
    done: int
    total: int | None


def download(name: str, root: Path | None = None, *, mirror: str | None = None) -> Iterator[Progress]:
    """Download what is missing or wrong, step by step; yields nothing if all is there and right.

    ``mirror`` is an address to be used in place of the official ones' folder.
    """
    source = _downloadable(name)
    if mirror is not None and not re.match(r"https?://[\w.-]+(:\d+)?(/|$)", mirror, re.ASCII):
        raise DataError(f'the mirror "{mirror}" is no web address. Give one like https://example.org/folder.')
    return iter(()) if _is_right(name, source, root) else _fetch_all(source, root, mirror)


def _downloadable(name: str) -> Stored:
    row = resolve(name)
    if isinstance(row, Embedded):
        raise DataError(f"{name} comes with {row.package}; there is nothing to download.")
    if name.startswith(FOLDER) or not isinstance(row, Stored) or not row.urls:
        raise DataError(f'"{name}" is your own; there is no address to download it from.')
    return row


def _is_right(name: str, source: Stored, root: Path | None) -> bool:
    """Whether the data set is there and whole; wrong files that a download would not replace are an error."""
    found = source.find(root)
    if found is None:
        return False
    try:
        check(name, root)
    except DataError:
        if _is_in_the_way(found, source, root):
            raise
        return False
    return True


def _is_in_the_way(found: StoredFiles, source: Stored, root: Path | None) -> bool:
    """Whether damaged unpacked files would still be read after the download, being preferred to archives."""
    own, downloads = own_folder(source.name, root), {_file_name(url) for url in source.urls}
    unpacked = any(path.name not in downloads for path in found.files())
    return unpacked and found.form is source.forms[0] and (found.path == own or own in found.path.parents)


def _file_name(url: str) -> str:
    return url.rsplit("/", 1)[-1]


def _fetch_all(source: Stored, root: Path | None, mirror: str | None) -> Iterator[Progress]:
    for url in source.urls:
        file = _file_name(url)
        target = own_folder(source.name, root) / file
        if not _is_verified(target, source.md5.get(file)):
            address = f"{mirror.rstrip('/')}/{file}" if mirror else url
            yield from _fetch(Unfinished(target, address), source.md5.get(file))


def _is_verified(target: Path, md5: str | None) -> bool:
    """Whether an earlier download has brought this file; without a published checksum one cannot say."""
    return md5 is not None and target.is_file() and digest(target, "md5") == md5


def _fetch(unfinished: Unfinished, md5: str | None) -> Iterator[Progress]:
    """Download one file; only if its checksum is right it gets its name."""
    try:
        for done, total in transfer(unfinished):
            yield Progress(unfinished.target.name, done, total)
        _accept(unfinished, md5)
    except OSError as error:
        where = unfinished.target.parent
        raise DataError(
            f"cannot write into {where} ({error.strerror}). Free some space or name another folder."
        ) from error


def _accept(unfinished: Unfinished, md5: str | None) -> None:
    try:
        verify(unfinished.path, unfinished.target, md5, remedy="It was deleted; run the command again")
    except DataError:
        unfinished.discard()
        raise
    unfinished.finish()
    if md5 is None:
        record_first(unfinished.target)
