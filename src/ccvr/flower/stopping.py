"""The end of what we started: all of it, also when the end comes early and twice."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
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
        process.wait()


def can_end_all() -> bool:
    """Whether this system shows us the environment of others."""
    return PROCESSES.is_dir()


def end_all(variable: str) -> None:
    """End all processes with that NAME=VALUE in their environment, as far as we see it.

    Children of children start sessions of their own and outlive those who started them; the environment they inherit.
    """
    deadline = time.monotonic() + GRACE
    _send(signal.SIGTERM, variable)
    while processes_with(variable) and time.monotonic() < deadline:
        time.sleep(0.1)
    while _send(signal.SIGKILL, variable):
        time.sleep(0.1)


def _send(number: signal.Signals, variable: str) -> list[int]:
    found = processes_with(variable)
    for process in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)
    return found


def processes_with(variable: str) -> list[int]:
    """Others than this one; the dead that nobody has buried have no environment."""
    found = []
    for entry in PROCESSES.iterdir() if can_end_all() else ():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and f"{variable}\0".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return [process for process in found if process != os.getpid()]
