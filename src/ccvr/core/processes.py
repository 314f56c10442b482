"""Child processes that start quietly, are not waited for without end, and do not outlive us."""

import multiprocessing
import os
import pickle
import select
import signal
import socket
import struct
import sys
import threading
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any


@contextmanager
def bare_start() -> Iterator[None]:
    """Processes that start in this block do not run the user's script again, and never get its Ctrl-C."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        with _heard_later(), _masked() if hasattr(signal, "pthread_sigmask") else nullcontext():
            yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def _heard_later() -> Iterator[None]:
    """Hold Ctrl-C back until the block ends, whichever thread gets it; only the main thread can."""
    before, heard = signal.getsignal(signal.SIGINT), list[int]()
    if before is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if heard:
            signal.raise_signal(signal.SIGINT)


@contextmanager
def _masked() -> Iterator[None]:
    """Processes that start in this block never get Ctrl-C: they inherit the mask."""
    resource_tracker.ensure_running()  # which would let it through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def send(pipe: Connection, message: object) -> None:
    """Pickled by the C library: the pipe's own pickler costs ten times as much for a small message."""
    pipe.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))


def receive(pipe: Connection) -> Any:
    """What our own process at the other end sent."""
    return pickle.loads(pipe.recv_bytes())


def readable(pipes: Sequence[Connection], seconds: float) -> list[Connection]:
    """Those that can be read, or have been closed, as soon as there is one."""
    if not hasattr(select, "poll"):
        ready = wait(pipes, seconds)
        return [pipe for pipe in pipes if pipe in ready]
    poll = select.poll()  # without what selectors does around it
    for pipe in pipes:
        poll.register(pipe.fileno(), select.POLLIN)
    found = {number for number, _ in poll.poll(seconds * 1000)}
    return [pipe for pipe in pipes if pipe.fileno() in found]


def limit(pipe: Connection, seconds: float) -> None:
    """Let the pipe raise BlockingIOError when the other side stops in the midst of a message (not on Windows)."""
    if hasattr(socket, "AF_UNIX"):
        value = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
        with socket.socket(fileno=os.dup(pipe.fileno())) as same:
            same.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)
            same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)


def ending(code: int | None) -> str:
    """How a process with this exit code ended: "exit code 1", "signal SIGKILL"."""
    if code is None or code >= 0:
        return f"exit code {code}"
    known = {number.value: number.name for number in signal.Signals}
    return f"signal {known.get(-code, -code)}"


def end_with_parent() -> None:
    """Wait until the parent is no more, and end this process: for a thread of a child that is at work."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    while parent.is_alive() and os.getppid() == parent.pid:  # it seems alive as long as a fork of it is
        parent.join(1.0)
    os._exit(1)
