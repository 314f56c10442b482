"""Ends every process that a run on Flower started, also when signals arrive early and twice."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

import psutil

SIGNALS = [signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGHUP") if name in signal.Signals.__members__]
"""What ends a run early: Ctrl-C, a supervisor, a terminal that is closed."""
GRACE = 5.0
"""Seconds in which a process may end by itself."""


@contextlib.contextmanager
def stop_on_signals() -> Iterator[None]:
    """The first signal raises an exception in this block, so that its processes are ended; later ones are ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield  # other threads get no signals
        return
    before = {each: signal.getsignal(each) for each in SIGNALS}
    handled = [each for each in SIGNALS if before[each] is not signal.SIG_IGN]  # nohup ignores SIGHUP
    try:
        for each in handled:
            signal.signal(each, _stop)
        yield
    finally:
        for each in handled:
            signal.signal(each, before[each])


def _stop(number: int, frame: FrameType | None) -> None:
    ignore_signals()
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)


def ignore_signals() -> None:
    """Ignore the signals of ``stop_on_signals`` until its block ends."""
    for each in SIGNALS:
        if signal.getsignal(each) is _stop:
            signal.signal(each, signal.SIG_IGN)


def end(process: subprocess.Popen[Any]) -> None:
    process.terminate()
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel may not release it
            process.wait(GRACE)


def end_all(variable: str) -> None:
    """End all processes with that NAME=VALUE in their environment, and all that they started.

    Flower and Ray start sessions of their own, which outlive their parents. Their environment is inherited.
    """
    found = processes_with(variable)
    for stop in (psutil.Process.terminate, psutil.Process.kill):
        deadline, stopped = time.monotonic() + GRACE, set[psutil.Process]()
        while found and time.monotonic() < deadline:
            for each in found - stopped:
                with contextlib.suppress(psutil.Error):
                    stop(each)
            stopped |= found
            time.sleep(0.1)
            found = still_running(found) | processes_with(variable)


def processes_with(variable: str) -> set[psutil.Process]:
    """The processes with the variable, and their children: Ray's agents write their titles over their environment."""
    name, _, value = variable.partition("=")
    found = set[psutil.Process]()
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # it has ended, or belongs to another user
            if each.environ().get(name) == value:
                found |= {each, *each.children(recursive=True)}
    return {each for each in still_running(found) if each.pid != os.getpid()}


def still_running(processes: set[psutil.Process]) -> set[psutil.Process]:
    """Those that have not ended. Ended children whose parent has not waited for them are left out."""
    found = set[psutil.Process]()
    for each in processes:
        with contextlib.suppress(psutil.Error):
            if each.is_running() and each.status() != psutil.STATUS_ZOMBIE:
                found.add(each)
    return found
