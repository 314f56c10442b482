"""The run folder: every path in it, and atomic writes."""

import contextlib
import errno
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ccvr.core.errors import RunError, RunInUse
from ccvr.core.files import digest_of, own_file, parse_json, read_text
from ccvr.core.history import Provenance, each_round, read_rounds
from ccvr.core.results import Results, check_results
from ccvr.core.schema import mistyped
from ccvr.core.trust import Trust

if os.name == "posix":
    import fcntl


RESUME = "See to its disk and permissions, then `ccvr resume` the run"


def write_atomically(path: Path, content: bytes, *, remedy: str = RESUME) -> None:
    """Write a file atomically: a reader finds the old content or the new, also after a crash or a power cut."""
    part = path.with_name(f".{path.name}.part")
    with writing(path, remedy):
        try:
            make_folder(path.parent)
            with open(part, "wb", opener=own_file) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
            sync_folder(path.parent)
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink()
            raise


def make_folder(path: Path) -> None:
    """Create a folder and its parents where they are missing; they stay after a power cut."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for each in missing:
        sync_folder(each.parent)


def sync_folder(path: Path) -> None:
    """Put on disk which files a folder has: a rename is lost in a power cut until then."""
    if os.name != "posix":
        return  # other systems cannot open a folder
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except PermissionError:
        return  # a folder that may be written, not read
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that have no such call
            raise
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def writing(path: Path, remedy: str = RESUME) -> Iterator[None]:
    """Turn an OSError, as of a full disk or a forbidden folder, into a RunError."""
    try:
        yield
    except OSError as error:
        raise RunError(f"{path} cannot be written ({error.strerror}). {remedy}.") from error


OWN = {
    *("spec.toml", "provenance.json", "partition.safetensors", "rounds.jsonl", "results.json", "model.safetensors"),
    *("checkpoints", "memories", "statistics", "heads", "analysis", "missing.json", "personal.json"),
    *("report.html", "figures", "tensorboard"),
}
"""Everything that a run folder holds."""


LABEL = re.compile(r"[\w+-][\w.+-]{0,199}")
"""Of a head: a file name, and no path."""
LOCK = ".lock"
"""The file that a process locks while it writes a run."""


def _is_own(name: str) -> bool:
    """Whether a run made the file or folder of that name. Hidden files of others stay where they are."""
    return name in OWN or (name.startswith(".") and name.endswith(".part"))


def _looks_empty(path: Path) -> bool:
    """Hidden files do not count: a start that was killed at once leaves one."""
    return all(entry.name.startswith(".") for entry in path.iterdir())


@dataclass(frozen=True)
class _Part:
    """The path of a file or folder in a run folder."""

    name: str

    def __get__(self, folder: "RunFolder", owner: type) -> Path:
        return folder.path / self.name


@dataclass(frozen=True)
class RunFolder:
    """The paths of one run, and its JSON files."""

    path: Path
    trust: Trust = False
    """Which code that is not ours may be imported because a file of the run names it."""
    spec = _Part("spec.toml")
    provenance = _Part("provenance.json")
    partition = _Part("partition.safetensors")
    rounds = _Part("rounds.jsonl")
    client_states = _Part("memories")
    results = _Part("results.json")
    absent = _Part("missing.json")
    personal = _Part("personal.json")
    model = _Part("model.safetensors")
    tensorboard = _Part("tensorboard")

    def checkpoint(self, round: int) -> Path:
        return self.path / "checkpoints" / f"round-{round:06d}.safetensors"

    def checkpoints(self) -> list[Path]:
        """All checkpoints, oldest first."""
        return sorted((self.path / "checkpoints").glob("round-*.safetensors"))

    def statistics(self, name: str) -> Path:
        return self.path / "statistics" / f"{name}.safetensors"

    def analysis(self, name: str) -> Path:
        return self.path / "analysis" / f"{name}.safetensors"

    def head(self, label: str) -> Path:
        """The file of a head.

        Raises:
            RunError: the label could name a file elsewhere.
        """
        if not LABEL.fullmatch(label):
            raise RunError(
                f'"{label}" in {self.path} is no label of a head. Labels have letters, digits and + - . _ alone.'
            )
        return self.path / "heads" / f"{label}.safetensors"

    @classmethod
    def create(cls, path: Path, *, overwrite: bool = False) -> "RunFolder":
        """Create a run folder; with ``overwrite`` a run that is already there is deleted."""
        folder = cls(path)
        try:
            folder.require_room(overwrite=overwrite)
            make_folder(path)
            if not folder._is_free():
                with folder.locked():
                    folder._delete()
        except OSError as error:
            raise RunError(f"{path} cannot be created ({error.strerror or error}). Choose another --out.") from error
        return folder

    def _delete(self) -> None:
        """Delete what the run holds. A kill leaves a run that is not finished, and that may be replaced again."""
        entries = {entry.name: entry for entry in self.path.iterdir() if _is_own(entry.name)}
        first, last = [self.results.name, "checkpoints"], [self.spec.name]
        order = [*first, *sorted(entries.keys() - {*first, *last}), *last]
        for entry in (entries[name] for name in order if name in entries):
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()

    def _is_free(self) -> bool:
        return not self.path.exists() or (self.path.is_dir() and _looks_empty(self.path))

    def require_room(self, *, overwrite: bool = False) -> None:
        """Refuse what ``create`` would, and change nothing."""
        if self._is_free():
            return
        if self.path.is_symlink():
            raise RunError(f"{self.path} is a link to a run, which is not replaced. Choose another --out.")
        if not self.spec.is_file():
            raise RunError(f"{self.path} exists and is not a run. Choose another --out.")
        if not overwrite:
            raise RunError(
                f"{self.path} holds a run already. Continue it with `ccvr resume {self.path}`, "
                "replace it with --overwrite, or choose another --out."
            )
        foreign = sorted(entry.name for entry in self.path.iterdir() if entry.name not in OWN and entry.name[0] != ".")
        if foreign:
            raise RunError(f'{self.path} holds "{foreign[0]}", which is not part of a run. Choose another --out.')
        with self.locked():
            pass  # no process writes it

    @classmethod
    def open(cls, path: Path, *, trust: Trust = False) -> "RunFolder":
        folder = cls(path, trust)
        if not folder.spec.is_file():
            raise RunError(f"{path} is not a run: it has no spec.toml. Give a folder that `ccvr run` made.")
        folder._require_no_links()
        return folder

    def _require_no_links(self) -> None:
        """Refuse folders elsewhere: of what a run does not name any more, files are deleted."""
        for name in sorted(OWN):
            if (self.path / name).is_symlink() and (self.path / name).is_dir():
                raise RunError(f"{self.path / name} is a link to another folder. Put a folder in its place.")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep every other process from writing into this run; a killed process holds nothing."""
        lock = self.path / LOCK
        with writing(lock, "See to its disk and permissions, then give the command again"):
            file = open(lock, "a", opener=own_file)  # noqa: SIM115
        with file:
            self._lock(file)
            self._require_no_links()
            yield

    def _lock(self, file: IO[str]) -> None:
        if os.name == "posix":
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise RunInUse(f"{self.path} is being written by another process. Wait for it to end.") from error

    def write_json(self, path: Path, content: Any) -> None:
        text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        write_atomically(path, text.encode(errors="backslashreplace"))  # half a character becomes JSON's own escape

    def read_json(self, path: Path, remedy: str = "Restore or delete it.", schema: Any = None) -> Any:
        """The content of a JSON file, checked against a ``schema`` where one is given."""
        try:
            content = parse_json(read_text(path))
        except FileNotFoundError as error:
            raise RunError(f"{path} is missing. Finish the run with `ccvr resume {self.path}`.") from error
        except (OSError, ValueError) as error:
            raise RunError(f"{path} cannot be read ({error}). {remedy}") from error
        if schema is not None and (fact := mistyped(content, schema)):
            raise RunError(f"{path} is damaged: {fact}. {remedy}")
        return content

    def read_provenance(self) -> dict[str, Any]:
        """Where the run comes from. Raises RunError where the file does not fit the schema."""
        remedy = "Delete it to go on without a record of the start."
        found: dict[str, Any] = self.read_json(self.provenance, remedy, Provenance)
        return found

    def read_results(self) -> Results:
        """Read results.json. Raises RunError where it does not fit the schema or a head lacks a score."""
        remedy = (
            f"Delete it and make it again with `ccvr resume {self.path}`; "
            "calibrations that were added with `ccvr calibrate` must be added again."
        )
        return check_results(self.read_json(self.results, remedy), self.results, remedy)

    def changed_files(self, results: Results) -> list[Path]:
        """The heads and the model that are missing or not those that results.json is about.

        A kill between two writes leaves such files. Results of old versions tell of none.
        """
        digests, paths = results.get("files", {}), [self.model, *map(self.head, results["accuracy"])]
        return [path for path in paths if digests.get(self.name_of(path), now := digest_of(path)) != now]

    def require_unchanged(self, results: Results) -> None:
        """Refuse heads, or a model, of which results.json does not tell."""
        if changed := self.changed_files(results):
            raise RunError(
                f"{changed[0]} is not the file that results.json is about: a command was killed, or it is damaged. "
                f"Make it again with `ccvr resume {self.path}`."
            )

    def name_of(self, path: Path) -> str:
        """The name of a file of the run in results.json."""
        return path.relative_to(self.path).as_posix()

    def write_results(self, results: Results) -> None:
        """Write results.json, which marks the run as finished."""
        self.write_json(self.results, results)

    def append_round(self, record: dict[str, Any]) -> None:
        """Add one line to rounds.jsonl."""
        with writing(self.rounds), open(self.rounds, "a", encoding="utf-8", opener=own_file) as file:
            file.write(json.dumps(record, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def read_rounds(self) -> list[dict[str, Any]]:
        """The records of all rounds; a last line that a crash cut short is left out."""
        if not self.rounds.exists():
            return []
        with self._reading_rounds():
            return read_rounds(self.rounds)

    def forget_rounds_after(self, round: int) -> None:
        """Drop the records of rounds that no checkpoint has; they will be trained again."""
        with self._reading_rounds():
            records = each_round(self.rounds) if self.rounds.exists() else ()
            kept = [json.dumps(record) + "\n" for record, _ in records if record["round"] <= round]
        write_atomically(self.rounds, "".join(kept).encode())

    @contextlib.contextmanager
    def _reading_rounds(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            raise RunError(
                f"{self.rounds} is damaged: {error}. Restore it, or delete it to go on without what it holds."
            ) from error
