import multiprocessing
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Connection

import pytest

from ccvr.core.processes import ending, limit, readable, receive, send


@pytest.mark.parametrize(
    ("code", "text"),
    [(0, "exit code 0"), (3, "exit code 3"), (None, "exit code None"), (-9, "signal SIGKILL"), (-40, "signal 40")],
)
def test_how_a_process_ended(code: int | None, text: str) -> None:
    assert ending(code) == text


def test_messages_arrive_as_they_were_sent() -> None:
    ours, theirs = multiprocessing.Pipe()
    for message in (("result", {"x": [1.5, None]}), 7):
        send(ours, message)
        assert receive(theirs) == message


def test_those_that_can_be_read_and_those_that_are_closed() -> None:
    (one, other), (two, far) = multiprocessing.Pipe(), multiprocessing.Pipe()
    started = time.monotonic()
    assert readable([one, two], 0.05) == []
    assert time.monotonic() - started >= 0.05
    send(far, 1)
    assert readable([one, two], 60.0) == [two]
    other.close()
    assert readable([one, two], 60.0) == [one, two]


class Foreign:
    """A pipe of another make, as on Windows, where there is no poll either."""

    def __init__(self, pipe: Connection) -> None:
        self.fileno = pipe.fileno


def test_it_knows_pipes_of_any_make(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(select, "poll")
    ours, theirs = multiprocessing.Pipe()
    foreign = Foreign(ours)
    send(theirs, 1)
    assert readable([foreign], 60.0) == [foreign]  # type: ignore[list-item]


def test_it_waits_for_the_first() -> None:
    ours, theirs = multiprocessing.Pipe()
    threading.Timer(0.2, send, (theirs, 1)).start()
    assert readable([ours], 60.0) == [ours]


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="pipes are sockets on Unix alone")
class TestLimit:
    @staticmethod
    def pipe() -> tuple[Connection, Connection]:
        ours, theirs = multiprocessing.Pipe()
        limit(ours, 0.3)
        return ours, theirs

    def test_a_message_that_is_not_read(self) -> None:
        ours, _theirs = self.pipe()
        with pytest.raises(BlockingIOError):
            send(ours, bytes(10_000_000))

    def test_a_message_that_does_not_end(self) -> None:
        ours, theirs = self.pipe()
        os.write(theirs.fileno(), (1000).to_bytes(4, "big") + b"the beginning")
        assert readable([ours], 60.0) == [ours]
        with pytest.raises(BlockingIOError):
            receive(ours)

    def test_a_message_in_time(self) -> None:
        ours, theirs = self.pipe()
        reader = threading.Timer(0.1, receive, (theirs,))
        reader.start()
        send(ours, bytes(10_000_000))
        reader.join()


STARTS = """
import multiprocessing, os, signal, threading, time
from ccvr.core.processes import bare_start
signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Thread(target=time.sleep, args=(3.0,), daemon=True).start()  # which the signal may be given to
try:
    with bare_start():
        child = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(1.0,))
        child.start()
        os.killpg(0, signal.SIGINT)  # while the child imports, if it could be
        time.sleep(0.2)
        print("held back", flush=True)
except KeyboardInterrupt:
    print("heard")
child.join()
print(child.exitcode)
"""


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="signals can be held back on Unix alone")
def test_ctrl_c_while_processes_start_is_the_parent_s_alone() -> None:
    """A script without a main guard, too."""
    done = subprocess.run(
        [sys.executable, "-c", STARTS], capture_output=True, text=True, timeout=60, check=False, start_new_session=True
    )
    assert (done.stdout, done.stderr) == ("held back\nheard\n0\n", "")
