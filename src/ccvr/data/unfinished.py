"""A download that is not whole yet."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Unfinished:
    """The bytes of ``target`` that are here so far, in TARGET.part, and in TARGET.part.json which version they are of.

    Without the version a file that changed on the server would be glued together from two.
    """

    target: Path
    url: str

    @property
    def path(self) -> Path:
        return self.target.with_name(f"{self.target.name}.part")

    @property
    def tag(self) -> Path:
        return self.target.with_name(f"{self.target.name}.part.json")

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def headers(self) -> dict[str, str]:
        """Ask for the rest of the same version; for all of it if there is nothing to go on with."""
        version = self._version()
        return {"Range": f"bytes={self.size}-", "If-Range": version} if self.size and version else {}

    def _version(self) -> str:
        try:
            fields = json.loads(self.tag.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return ""  # nothing known: begin again
        return str(fields.get("version", "")) if isinstance(fields, dict) and fields.get("url") == self.url else ""

    def begin(self, headers: Mapping[str, str]) -> None:
        """Forget what is here; the bytes to come are of the version in ``headers``."""
        self.discard()
        self.target.parent.mkdir(parents=True, exist_ok=True)
        etag = headers.get("ETag", "")
        version = headers.get("Last-Modified", "") if not etag or etag.startswith("W/") else etag
        self.tag.write_text(json.dumps({"url": self.url, "version": version}), encoding="utf-8")

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)
        self.tag.unlink(missing_ok=True)

    def finish(self) -> None:
        """Make the file appear under its name, all at once."""
        self.path.replace(self.target)
        self.tag.unlink(missing_ok=True)
