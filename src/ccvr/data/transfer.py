"""One file over HTTP, going on where an earlier attempt stopped."""

import http.client
import re
import shutil
from collections.abc import Iterator
from typing import IO, Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from ccvr.core.errors import DataError
from ccvr.data.unfinished import Unfinished

TIMEOUT = 30.0
CHUNK = 1 << 18
NETWORK_ERRORS = (OSError, http.client.HTTPException)  # URLError, timeouts and resets are OSErrors


def transfer(unfinished: Unfinished) -> Iterator[tuple[int, int | None]]:
    """Bring all bytes into the .part file; yields (bytes here, bytes in all if the server says so)."""
    with _answer(unfinished) as response:
        if response.status == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:  # nothing is left to send
            yield unfinished.size, unfinished.size
            return
        if response.status != http.client.PARTIAL_CONTENT:
            unfinished.begin(response.headers)
        total = _total(response)
        _check_space(unfinished, total)
        yield from _receive(response, unfinished, total)
    if total is not None and unfinished.size < total:
        raise _broken(unfinished, unfinished.size, total)


def _answer(unfinished: Unfinished) -> Any:
    """The server's answer: the rest, all of it, or that nothing is left; other rests are refused by asking anew."""
    response = _open(unfinished, unfinished.headers())
    span = str(response.headers.get("Content-Range", ""))
    expected = {
        http.client.PARTIAL_CONTENT: rf"bytes {unfinished.size}-\d+/\d+",
        http.client.REQUESTED_RANGE_NOT_SATISFIABLE: rf"bytes \*/{unfinished.size}",
    }
    if response.status in expected and not re.fullmatch(expected[response.status], span):
        response.close()
        return _open(unfinished, {})
    return response


def _open(unfinished: Unfinished, headers: dict[str, str]) -> Any:
    host, by_hand = urlsplit(unfinished.url).netloc, _by_hand(unfinished)
    try:
        return urlopen(Request(unfinished.url, headers={"User-Agent": "ccvr", **headers}), timeout=TIMEOUT)
    except HTTPError as error:
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            return error
        error.close()
        raise DataError(f"{host} answered {error.code} {error.reason} for {unfinished.url}. {by_hand}") from error
    except NETWORK_ERRORS as error:
        reason = " ".join(str(getattr(error, "reason", error)).split())
        raise DataError(f"cannot reach {host} ({reason}). Check the network, or: {by_hand}") from error


def _by_hand(unfinished: Unfinished) -> str:
    return f"Get {unfinished.target.name} in another way and put it into {unfinished.target.parent}."


def _total(response: Any) -> int | None:
    if response.status == http.client.PARTIAL_CONTENT:  # which may be less than all of the rest
        return int(response.headers["Content-Range"].rsplit("/", 1)[1])
    length = str(response.headers.get("Content-Length", ""))
    return int(length) if length.isdecimal() else None


def _check_space(unfinished: Unfinished, total: int | None) -> None:
    free, needed = shutil.disk_usage(unfinished.target.parent).free, (total or 0) - unfinished.size
    if needed > free:
        raise DataError(
            f"{unfinished.target.name} needs {needed} more bytes, but {unfinished.target.parent} has {free} left. "
            "Free some space, or name another folder with $CCVR_DATA."
        )


def _receive(response: Any, unfinished: Unfinished, total: int | None) -> Iterator[tuple[int, int | None]]:
    done = unfinished.size
    with unfinished.path.open("ab") as file:
        yield done, total
        while chunk := _read(response, unfinished, done, total):
            file.write(chunk)
            done += len(chunk)
            yield done, total


def _read(response: IO[bytes], unfinished: Unfinished, done: int, total: int | None) -> bytes:
    try:
        return response.read(CHUNK)
    except NETWORK_ERRORS as error:
        raise _broken(unfinished, done, total) from error


def _broken(unfinished: Unfinished, done: int, total: int | None) -> DataError:
    host, of = urlsplit(unfinished.url).netloc, f" of {total}" if total is not None else ""
    return DataError(
        f"the connection to {host} broke after {done}{of} bytes of {unfinished.target.name}. "
        "Run the command again; it goes on from there."
    )
