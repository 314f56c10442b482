"""The end of what we started: all of it, also when the end comes early and twice."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

SIGNALS = [signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGHUP") if name in signal.Signals.__members__]
"""What ends a run early: Ctrl-C, a supervisor, a terminal that is closed."""
GRACE = 5.0
"""Seconds in which a process may end by itself."""
PROCESSES = Path("/proc")


@contextlib.contextmanager
def heeding_signals() -> Iterator[None]:
    """The first signal raises, so that what we started is ended; those after it do not disturb that."""
    if threading.current_thread() is not threading.main_thread():
        yield  # others get no signals
        return
    before = {each: signal.getsignal(each) for each in SIGNALS}
    heeded = [each for each in SIGNALS if before[each] is not signal.SIG_IGN]  # as nohup wants it
    try:
        for each in heeded:
            signal.signal(each, _stop)
        yield
    finally:
        for each in heeded:
            signal.signal(each, before[each])


def _stop(number: int, frame: FrameType | None) -> None:
    deaf()
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)


def deaf() -> None:
    """From now on signals change nothing, where they were heeded."""
    for each in SIGNALS:
        if signal.getsignal(each) is _stop:
            signal.signal(each, signal.SIG_IGN)


def end(process: subprocess.Popen[Any]) -> None:
    process.terminate()
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # what the kernel does not let go of is not waited for
            process.wait(GRACE)


def can_end_all() -> bool:
    """Whether this system shows us the environment of others."""
    return PROCESSES.is_dir()


def end_all(variable: str) -> None:
    """End all processes with that NAME=VALUE in their environment and all that they started, as far as we see them.

    Flower and Ray start sessions of their own that outlive those who started them; the environment they inherit.
    """
    deadline, found = time.monotonic() + GRACE, processes_with(variable)
    _send(signal.SIGTERM, found)
    while found and time.monotonic() < deadline:
        time.sleep(0.1)
        found = still_there(found) | processes_with(variable)
    deadline = time.monotonic() + GRACE
    while found and time.monotonic() < deadline:  # what the kernel does not let go of is not waited for
        _send(signal.SIGKILL, found)
        time.sleep(0.1)
        found = still_there(found) | processes_with(variable)


@dataclass(frozen=True)
class Process:
    """One that runs now; its start tells it apart from a later one of the same number."""

    number: int
    parent: int
    start: int


def processes_with(variable: str) -> set[Process]:
    """Those with the variable, and their children: Ray's agents write their titles over their environment."""
    running, mark = _running(), f"{variable}\0".encode()
    found = {each for each in running if mark in _read(each.number, "environ")}
    while more := {each for each in running - found if each.parent in {one.number for one in found}}:
        found |= more
    return {each for each in found if each.number != os.getpid()}


def still_there(processes: set[Process]) -> set[Process]:
    there = {(each.number, each.start) for each in _running()}
    return {each for each in processes if (each.number, each.start) in there}


def _running() -> set[Process]:
    """All that are neither ended nor waiting to be buried."""
    found = set()
    for entry in PROCESSES.iterdir() if can_end_all() else ():
        fields = _read(int(entry.name), "stat").rpartition(b")")[2].split() if entry.name.isdigit() else []
        if fields and fields[0] not in (b"Z", b"X"):
            found.add(Process(int(entry.name), int(fields[1]), int(fields[19])))
    return found


def _read(number: int, name: str) -> bytes:
    """Nothing of one that has ended or is somebody else's."""
    with contextlib.suppress(OSError):
        return (PROCESSES / str(number) / name).read_bytes()
    return b""


def _send(number: signal.Signals, processes: set[Process]) -> None:
    for each in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(each.number, number)
