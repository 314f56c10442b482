"""One file over HTTP, going on where an earlier attempt stopped."""

import http.client
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from ccvr.core.errors import DataError
from ccvr.core.files import parse_json, read_text

TIMEOUT = 30.0
CHUNK = 1 << 18
NETWORK_ERRORS = (OSError, http.client.HTTPException)  # URLError, timeouts and resets are OSErrors


class Progress(NamedTuple):
    """How far the download of one file is; ``total`` is None if the server does not say."""

    file: str
    done: int
    total: int | None


@dataclass(frozen=True)
class Transfer:
    """The download of ``target`` from ``url``: bytes so far are in TARGET.part, their version is in TARGET.part.json.

    Without the version a file that changed on the server would be glued together from two.
    """

    target: Path
    url: str

    @property
    def part(self) -> Path:
        return self.target.with_name(f"{self.target.name}.part")

    @property
    def tag(self) -> Path:
        return self.target.with_name(f"{self.target.name}.part.json")

    @property
    def size(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def discard(self) -> None:
        self.part.unlink(missing_ok=True)
        self.tag.unlink(missing_ok=True)

    def finish(self) -> None:
        """Give the file its name, atomically."""
        self.part.replace(self.target)
        self.tag.unlink(missing_ok=True)

    def receive(self) -> Iterator[Progress]:
        """Write all bytes into the .part file."""
        with self._answer() as response:
            if response.status == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:  # nothing is left to send
                yield Progress(self.target.name, self.size, self.size)
                return
            if response.status == http.client.PARTIAL_CONTENT:  # which may be less than all of the rest
                length = response.headers["Content-Range"].rsplit("/", 1)[1]
            else:
                self._begin(response.headers)
                length = str(response.headers.get("Content-Length", ""))
            done, total = self.size, int(length) if length.isdecimal() else None
            free, needed = shutil.disk_usage(self.target.parent).free, (total or 0) - done
            if needed > free:
                raise DataError(
                    f"{self.target.name} needs {needed} more bytes, but {self.target.parent} has {free} left. "
                    "Free some space, or name another folder with $CCVR_DATA."
                )
            with self.part.open("ab") as file:
                yield Progress(self.target.name, done, total)
                while chunk := self._read(response, done, total):
                    file.write(chunk)
                    done += len(chunk)
                    yield Progress(self.target.name, done, total)
        if total is not None and done < total:
            raise self._broken(done, total)

    def _answer(self) -> Any:
        """The response: the rest, the whole file, or that nothing is left. Another rest makes us ask for the whole."""
        response = self._open(self._headers())
        span = str(response.headers.get("Content-Range", ""))
        expected = {
            http.client.PARTIAL_CONTENT: rf"bytes {self.size}-\d+/\d+",
            http.client.REQUESTED_RANGE_NOT_SATISFIABLE: rf"bytes \*/{self.size}",
        }
        if response.status in expected and not re.fullmatch(expected[response.status], span):
            response.close()
            return self._open({})
        return response

    def _headers(self) -> dict[str, str]:
        """Ask for the rest of the same version; for the whole file if there is nothing to go on with."""
        try:
            tag = parse_json(read_text(self.tag))
            version = str(tag["version"]) if tag["url"] == self.url else ""
        except (FileNotFoundError, ValueError, LookupError, TypeError):
            version = ""
        return {"Range": f"bytes={self.size}-", "If-Range": version} if self.size and version else {}

    def _open(self, headers: dict[str, str]) -> Any:
        host = urlsplit(self.url).netloc
        by_hand = f"Get {self.target.name} in another way and put it into {self.target.parent}."
        try:
            return urlopen(Request(self.url, headers={"User-Agent": "ccvr", **headers}), timeout=TIMEOUT)
        except HTTPError as error:
            if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
                return error
            error.close()
            raise DataError(f"{host} answered {error.code} {error.reason} for {self.url}. {by_hand}") from error
        except NETWORK_ERRORS as error:
            reason = " ".join(str(getattr(error, "reason", error)).split())
            raise DataError(f"cannot reach {host} ({reason}). Check the network, or: {by_hand}") from error

    def _begin(self, headers: Mapping[str, str]) -> None:
        """Delete the bytes so far; those to come are of the version in ``headers``."""
        self.discard()
        self.target.parent.mkdir(parents=True, exist_ok=True)
        etag = headers.get("ETag", "")
        version = headers.get("Last-Modified", "") if not etag or etag.startswith("W/") else etag
        self.tag.write_text(json.dumps({"url": self.url, "version": version}), encoding="utf-8")

    def _read(self, response: Any, done: int, total: int | None) -> bytes:
        try:
            return bytes(response.read(CHUNK))
        except NETWORK_ERRORS as error:
            raise self._broken(done, total) from error

    def _broken(self, done: int, total: int | None) -> DataError:
        of = f" of {total}" if total is not None else ""
        return DataError(
            f"the connection to {urlsplit(self.url).netloc} broke after {done}{of} bytes of {self.target.name}. "
            "Run the command again; it goes on from there."
        )
