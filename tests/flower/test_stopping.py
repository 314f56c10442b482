"""What we started ends with us: children in sessions of their own, after a second signal, and on machines far away."""

import contextlib
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ccvr.core.errors import RunError
from ccvr.experiment.events import Finished, HeadScored
from ccvr.flower import launch, stopping
from ccvr.flower.launch import Link, _events
from ccvr.flower.log_protocol import as_json
from ccvr.flower.superlink import within

pytestmark = pytest.mark.flower

# --- processes --------------------------------------------------------------------------------------------------------

STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if sys.argv[1:]:
    bare = {name: value for name, value in os.environ.items() if name != "FLWR_HOME"}
    for environment in (os.environ, bare):
        subprocess.Popen([sys.executable, "-c", sys.argv[1]], start_new_session=True, env=environment)
os.write(1, b"ready\\n")  # at once: others write there, too
time.sleep(600)
"""


@contextlib.contextmanager
def started(*call, **how):
    """A process that ends with the block, also when the block fails."""
    with subprocess.Popen(call, **how) as process:
        try:
            yield process
        finally:
            process.kill()


def test_children_that_left_and_hear_nothing_are_ended(tmp_path, monkeypatch):
    """Also one without the variable: Ray's agents write their titles over their environment."""
    monkeypatch.setattr(stopping, "GRACE", 0.2)
    variable, environment = f"FLWR_HOME={tmp_path}", {**os.environ, "FLWR_HOME": str(tmp_path)}
    call = sys.executable, "-c", STUBBORN, STUBBORN
    with started(*call, env=environment, stdout=subprocess.PIPE) as process:
        assert [process.stdout.readline() for _ in range(3)] == [b"ready\n"] * 3
        found = stopping.processes_with(variable)
        assert len(found) == 3
        stopping.end_all(variable)
        left = stopping.still_running(found)
        for each in left:
            each.kill()
        assert left == set()
    assert process.returncode == -signal.SIGKILL


def test_others_are_left_alone(tmp_path):
    environment = {**os.environ, "FLWR_HOME": f"{tmp_path}/more"}
    with started("sleep", "600", env=environment) as process:
        stopping.end_all(f"FLWR_HOME={tmp_path}")
        assert process.poll() is None


# --- signals ----------------------------------------------------------------------------------------------------------

STOPPING = """
import os, signal, sys, time
from ccvr.flower.stopping import ignore_signals, stop_on_signals
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever starts this may ignore them
signal.signal(signal.SIGHUP, signal.SIG_DFL)
try:
    with stop_on_signals():
        try:
            if sys.argv[2] == "error":
                raise ValueError
            print("ready", flush=True)
            for _ in range(6000):
                time.sleep(0.1)  # a signal just before a sleep does not end it
        finally:
            if sys.argv[2] == "error":
                ignore_signals()
            for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                os.kill(os.getpid(), each)
            print("ended all", flush=True)
except (KeyboardInterrupt, ValueError) as error:
    print(type(error).__name__)
    os.kill(os.getpid(), signal.SIGTERM)  # as deadly as before
    print("still here")
"""


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("SIGINT", -signal.SIGTERM, "ended all\nKeyboardInterrupt\n"),
        ("SIGTERM", 128 + signal.SIGTERM, "ended all\n"),
        ("SIGHUP", 128 + signal.SIGHUP, "ended all\n"),
    ],
)
def test_the_first_signal_stops_and_others_do_not_disturb(name, code, said):
    call = sys.executable, "-u", "-c", STOPPING, name, ""
    with started(*call, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(getattr(signal, name))
        assert process.stdout.read() == said
        assert process.wait(60) == code


def test_no_signal_disturbs_the_end_after_an_error():
    done = subprocess.run([sys.executable, "-u", "-c", STOPPING, "SIGINT", "error"], capture_output=True, text=True)
    assert done.stdout == "ended all\nValueError\n"
    assert done.returncode == -signal.SIGTERM


def test_signals_that_are_ignored_stay_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with stopping.stop_on_signals():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is stopping._stop
    finally:
        signal.signal(signal.SIGHUP, before)


# --- a run on somebody's SuperLink ------------------------------------------------------------------------------------

TOKEN = "ccvr-0123456789abcdef"
SCORED, FINISHED = HeadScored("lda", 50.0, 0.1, []), Finished({"accuracy": {}})
FLWR = """#!/bin/sh
echo "$@" >> "$HERE/calls"
case "$1" in run) cat "$HERE/said"; test ! -e "$HERE/goes-on" || exec sleep 1000 ;; esac
"""


@pytest.fixture
def link(tmp_path, monkeypatch):
    """A SuperLink whose `flwr` says what is in a file, and keeps what it was asked."""
    program = tmp_path / "flwr"
    program.write_text(FLWR)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(launch, "_program", lambda name: str(program))
    return Link("far", {**os.environ, "HERE": str(tmp_path)})


def say(folder: Path, *what, goes_on: bool = True) -> None:
    lines = ["🎊 Successfully started run 7", "ccvr: {}", *(f"{TOKEN} {as_json(each)}" for each in what)]
    (folder / "said").write_text("\n".join(lines) + "\n")
    if goes_on:
        (folder / "goes-on").touch()


def stopped(folder: Path) -> list[str]:
    return [line for line in (folder / "calls").read_text().splitlines() if line.startswith("stop")]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, BrokenPipeError, None])
def test_a_run_far_away_is_stopped_whatever_ends_us(error, link, tmp_path):
    say(tmp_path, SCORED)
    events = _events(link, tmp_path / "run.toml", TOKEN)
    with pytest.raises(error) if error else contextlib.nullcontext(), contextlib.closing(events):
        assert next(events) == SCORED
        if error:
            raise error
    assert stopped(tmp_path) == ["stop 7 far --format json"]


def test_what_flower_raises_in_a_thread_ends_the_waiting():
    """As its processes do when their SuperLink is gone: whoever waits for an answer frees the run folder at once."""
    never, started = threading.Event(), time.monotonic()

    def stop(*_):
        raise KeyboardInterrupt

    def hang():
        signal.raise_signal(signal.SIGUSR1)  # not in the thread that waits
        never.wait()

    before = signal.signal(signal.SIGUSR1, stop)
    try:
        with pytest.raises(KeyboardInterrupt):
            within(60, hang)
    finally:
        never.set()
        signal.signal(signal.SIGUSR1, before)
    assert time.monotonic() - started < 30


def test_a_run_that_ended_is_not_stopped(link, tmp_path):
    say(tmp_path, SCORED, FINISHED, goes_on=False)
    assert list(_events(link, tmp_path / "run.toml", TOKEN)) == [SCORED, FINISHED]
    assert stopped(tmp_path) == []
    say(tmp_path, RunError("it is full"), goes_on=False)
    with pytest.raises(RunError, match="it is full"):
        list(_events(link, tmp_path / "run.toml", TOKEN))
    assert stopped(tmp_path) == []
