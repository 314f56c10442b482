"""`ccvr …` in this process, and what an adversary must never get out of it."""

import contextlib
import io
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from ccvr.cli.main import main

MAX_MEMORY = 200 * 2**20
"""Bytes above the start."""
MAX_SECONDS = 2.0
"""Processor time above that of the undamaged command."""
STUCK = 60
"""Seconds after which a call is interrupted: it waits for something that will not come."""
MAX_LINES = 12
ERROR = re.compile(r"(?m)^[A-Z]\w+(Error|Name|Failed|InUse): ")


@dataclass(frozen=True)
class Called:
    """What a call printed and took."""

    code: int
    out: str
    err: str
    seconds: float
    memory: int

    def faults(self, usual: float) -> list[str]:
        """What must never be; ``usual`` is the time of the same command on undamaged files."""
        found = {
            f"exit code {self.code}": self.code not in (0, 2),
            f"{len(ERROR.findall(self.err))} errors": len(ERROR.findall(self.err)) > 1,
            "no word about the error": self.code == 2 and not self.err.strip(),
            f"{self.err.count(chr(10))} lines of errors": self.err.count("\n") > MAX_LINES,
            "a traceback": "Traceback" in self.err,
            "a warning": bool(re.search(r"\w+Warning: ", self.err)),
            "unprintable output": not (self.out + self.err).replace("\n", "").isprintable(),
            f"{self.seconds:.1f} s": self.seconds > usual + MAX_SECONDS,
            f"{self.memory / 2**20:.0f} MB": self.memory > MAX_MEMORY,
        }
        return [fault for fault, is_there in found.items() if is_there]


class Stuck(BaseException):
    pass


def call(*argv: str | Path) -> Called:
    """Run a command; exceptions that would be tracebacks give the code 1."""
    out, err = io.StringIO(), io.StringIO()
    code, path, before = 0, list(sys.path), _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
    started = time.process_time()
    with (
        mock.patch.object(sys, "argv", ["ccvr", *map(str, argv)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        _alarm(),
    ):
        try:
            main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        except Stuck:
            code = -1
        except BaseException as error:
            import traceback

            last = traceback.extract_tb(error.__traceback__)[-3:]
            where = " < ".join(f"{Path(each.filename).name}:{each.lineno}" for each in reversed(last))
            code = 1
            err.write(f"Traceback: {type(error).__name__}: {str(error)[:200]!r} at {where}\n")
    sys.path[:] = path
    seconds = time.process_time() - started
    return Called(code, out.getvalue(), err.getvalue(), seconds, _memory("VmHWM") - before)


@dataclass(frozen=True)
class Read:
    """What reading a file gave, or the error, and what it took."""

    found: object
    error: BaseException | None
    seconds: float
    memory: int

    def faults(self, *allowed: type[BaseException]) -> list[str]:
        text = str(self.error or "")
        found = {
            f"{type(self.error).__name__}: {text[:200]!r}": self.error is not None
            and not isinstance(self.error, allowed),
            "an unprintable error": not text.isprintable(),
            "a long error": len(text) > 2_500,
            f"{self.seconds:.1f} s": self.seconds > MAX_SECONDS,
            f"{self.memory / 2**20:.0f} MB": self.memory > MAX_MEMORY,
        }
        return [fault for fault, is_there in found.items() if is_there]


def measured(read: Callable[[], object]) -> Read:
    """Call a reader, and keep what it raises."""
    before, found, error = _memory("VmRSS"), None, None
    Path("/proc/self/clear_refs").write_text("5")
    started = time.process_time()
    with _alarm():
        try:
            found = read()
        except BaseException as raised:
            error = raised
    return Read(found, error, time.process_time() - started, _memory("VmHWM") - before)


@contextlib.contextmanager
def _alarm() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise Stuck

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(STUCK)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _memory(key: str) -> int:
    """VmRSS or VmHWM, in bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return int(line.split()[1]) * 1024


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Work in a folder, with little virtual memory: what asks for too much fails at once."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with contextlib.chdir(folder), mock.patch.dict(os.environ, {"COLUMNS": "200", "CCVR_DATA": str(folder / "none")}):
        yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def tree(folder: Path, *except_for: str) -> dict[str, tuple[int, ...]]:
    """Every file of a folder with what changes when it is written."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.name not in except_for and path.name != ".lock":
            about = path.lstat()
            found[str(path.relative_to(folder))] = (about.st_mode, about.st_size, about.st_mtime_ns, about.st_ino)
    return found
