"""Checksums of data files: published ones, and our own record where none is published."""

import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ccvr.core.errors import DataError
from ccvr.core.files import parse_json, read_text


@dataclass(frozen=True)
class Record:
    """The SHA-256 that a file had when it was first downloaded, in a small JSON file beside it."""

    sha256: str
    recorded: str

    @staticmethod
    def path(target: Path) -> Path:
        return target.with_name(f"{target.name}.sha256.json")

    @classmethod
    def read(cls, target: Path) -> "Record | None":
        path = cls.path(target)
        if not path.exists():
            return None
        try:
            fields = parse_json(read_text(path))
            return cls(sha256=str(fields["sha256"]), recorded=str(fields["recorded"]))
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise DataError(
                f"{path} is not a record of a checksum. Delete it; the next download writes a new one."
            ) from error

    def write(self, target: Path) -> None:
        fields = {"file": target.name, "sha256": self.sha256, "recorded": self.recorded}
        self.path(target).write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")


def digest(path: Path, algorithm: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def verify(file: Path, target: Path, md5: str | None, *, remedy: str = "Delete it and download it again") -> str:
    """How far ``file``, which is or becomes ``target``, can be trusted; an error if its checksum is another."""
    if md5 is not None:
        found = digest(file, "md5")
        if found != md5:
            raise DataError(f"{file} has MD5 {found}, published is {md5}. {remedy}.")
        return "verified"
    record = Record.read(target)
    if record is None:
        return "unverified (no record)"
    found = digest(file, "sha256")
    if found != record.sha256:
        raise DataError(
            f"{file} has SHA-256 {found}, but {record.sha256} was recorded on {record.recorded}. "
            f"{remedy}, or delete {Record.path(target)} if its publisher has changed it."
        )
    return f"unverified (recorded {record.recorded})"


def record_first(target: Path) -> None:
    """Keep the SHA-256 of a file just downloaded, unless there is a record already."""
    if not Record.path(target).exists():
        Record(digest(target, "sha256"), datetime.now(UTC).date().isoformat()).write(target)
