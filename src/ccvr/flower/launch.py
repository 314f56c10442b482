"""Start a run on Flower from our command: on a SuperLink that the user has, or on one of our own that simulates."""

import contextlib
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.request
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen

import tomli_w

from ccvr.core.errors import CcvrError, FederationError, SpecError
from ccvr.core.run import RunFolder
from ccvr.core.terminal import say
from ccvr.core.trust import Trust
from ccvr.experiment.events import Event, Events, Finished
from ccvr.experiment.pipeline import require_names
from ccvr.experiment.spec import Spec, to_toml
from ccvr.flower.engine import require_no_oracles
from ccvr.flower.log_protocol import event_of
from ccvr.flower.stopping import end, end_all, ignore_signals, stop_on_signals

BUNDLE = Path(__file__).parent / "bundle"
START_LIMIT = 120.0
"""Seconds that a SuperLink of our own may take to be ready."""
MAX_LETTERS = 25
"""Longest path of a temporary folder that leaves room for Ray's sockets, whose paths have at most 107 letters."""
MAX_WORDS = 300
"""Letters of Flower's output that an error quotes."""
SILENT = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # else Flower installs packages by itself
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""Flower and Ray install nothing and send nothing over the network."""


@dataclass(frozen=True)
class Link:
    """A SuperLink connection by its name in Flower's configuration, and the environment in which Flower finds it."""

    name: str
    environment: dict[str, str]
    settings: tuple[str, ...] = ()
    is_ours: bool = False
    """Whether this process started the SuperLink and ends it, with all that it runs."""


def launch(spec: Spec, out: Path, *, overwrite: bool = False, resume: bool = False, trust: Trust = False) -> Events:
    """The events of a run on Flower; ``out`` is its folder, on the machine where the SuperLink is.

    Code that the spec names is imported by the server and by clients that are simulated here. On other machines each
    client decides (docs/flower.md). A run that is resumed is read there; ``trust`` is about the code that it names.
    """
    require_names(spec)
    spec, token = replace(spec, data=spec.data.anchored()), f"ccvr-{secrets.token_hex(8)}"
    config = {
        "spec": to_toml(spec),
        "out": str(out.expanduser().absolute()),
        "overwrite": overwrite,
        "resume": resume,
        "trust": trust is True,
        "events": token,
        "command": json.dumps([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }
    if not spec.flower.superlink and not resume:
        RunFolder(out.expanduser()).require_room(overwrite=overwrite)  # a federation's is where its SuperLink is
    with stop_on_signals(), _link(spec) as link, tempfile.TemporaryDirectory(prefix="ccvr-") as folder:
        file = Path(folder) / "run.toml"
        file.write_text(tomli_w.dumps(config), encoding="utf-8")
        yield from _events(link, file, token)


def _link(spec: Spec) -> contextlib.AbstractContextManager[Link]:
    if name := spec.flower.superlink:
        require_no_oracles(spec)
        if _address(name).startswith(":local"):
            raise SpecError(
                f'flower.superlink is "{name}", for which Flower starts a SuperLink that does not end. '
                "Leave it out: then the simulation has one of its own."
            )
        return contextlib.nullcontext(Link(name, _environment()))
    if spec.device != "cpu":
        raise SpecError(f'device is "{spec.device}"; our simulation on Flower uses the CPU alone. Use --device cpu.')
    return simulation(spec.partition.num_clients, spec.processes(spec.partition.num_clients))


def _address(name: str) -> str:
    """The address of a SuperLink in Flower's configuration, "" if unknown; without a configuration there is `local`."""
    file = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr", "config.toml")
    try:
        connection = tomllib.loads(file.read_text(encoding="utf-8"))["superlink"][name]
        return str(connection.get("address", ":local:" if "options" in connection else ""))
    except FileNotFoundError:
        return ":local:" if name == "local" else ""
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return ""  # Flower says what is wrong


def _environment(**more: str) -> dict[str, str]:
    """The environment of this process, with Flower's programs on the path: they start each other by name."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, **SILENT, "PATH": path, **more}


@contextlib.contextmanager
def simulation(num_clients: int, processes: int) -> Iterator[Link]:
    """Start a SuperLink on this machine that simulates clients; it ends with the block, and so do all its processes."""
    parent = None if len(tempfile.gettempdir()) <= MAX_LETTERS else "/tmp"
    with tempfile.TemporaryDirectory(prefix="ccvr-", dir=parent, ignore_cleanup_errors=True) as home:
        environment = _environment(FLWR_HOME=home, RAY_TMPDIR=home, CCVR_TRUST="1")  # clients of our own spec
        environment.pop("RAY_ADDRESS", None)  # of a Ray that is not ours
        port = free_port()
        settings = {"superlink": {"ccvr": {"address": f"127.0.0.1:{port}", "insecure": True}}}
        Path(home, "config.toml").write_text(tomli_w.dumps(settings), encoding="utf-8")
        command = [
            _program("flower-superlink"),
            "--simulation",
            "--insecure",
            "--host",
            "127.0.0.1",
            "--port",
            f"{port}",
        ]
        said, process = Path(home, "superlink.log"), None
        try:
            with said.open("w") as log:
                process = Popen(command, env=environment, stdout=log, stderr=STDOUT, start_new_session=True)
            _await_health(port, process, said)
            sizes = f"num-supernodes={num_clients} client-resources-num-cpus=1 init-args-num-cpus={processes}"
            yield Link("ccvr", environment, ("--federation-config", sizes), is_ours=True)
        finally:
            ignore_signals()
            end_all(f"FLWR_HOME={home}")
            if process is not None:
                end(process)


def _events(link: Link, config: Path, token: str) -> Iterator[Event]:
    """The events of our run in Flower's log, until the run ends."""
    command = [_program("flwr"), "run", str(BUNDLE), link.name, "--stream", "--run-config", str(config), *link.settings]
    process = Popen(
        command,
        env=link.environment,
        stdout=PIPE,
        stderr=STDOUT,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,  # Ctrl-C reaches this process alone
    )
    assert process.stdout is not None
    number, is_over, is_finished, said = "", False, False, deque[str](maxlen=200)
    try:
        for line in process.stdout:
            if os.environ.get("CCVR_TRACEBACK"):
                say(line.rstrip("\n"), error=True)
            said.append(line)
            number = found[1] if (found := re.search(r"started run (\d+)", line)) else number
            event = event_of(line, token)
            is_over = is_over or isinstance(event, Finished | CcvrError)
            if isinstance(event, CcvrError):
                raise event
            if event is not None:
                is_finished = isinstance(event, Finished)
                yield event
        is_over = True  # or its log broke off; Flower knows
    finally:
        if not is_over:
            ignore_signals()
            if number and not link.is_ours:
                _flwr(link, "stop", number, link.name)
        process.stdout.close()
        end(process)
    if not is_finished:
        status = _flwr(link, "list", "--run-id", number, link.name) if number else ""
        if re.search(r'"status": "(starting|running)', status):
            raise FederationError(
                f"Flower's log broke off, and its run {number} goes on. Follow it with `flwr log {number} {link.name}`."
            )
        raise FederationError(f"Flower ended without a result: {_last_words(said)} CCVR_TRACEBACK=1 shows all it says.")


def _flwr(link: Link, *arguments: str) -> str:
    """The output of a command of Flower's; empty if it takes too long."""
    command = [_program("flwr"), *arguments, "--format", "json"]
    try:
        # In a session of its own, which a second Ctrl-C does not reach.
        done = subprocess.run(
            command, env=link.environment, capture_output=True, text=True, timeout=60, start_new_session=True
        )
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout


def _last_words(lines: Iterable[str]) -> str:
    """The exception behind all others in Flower's log, the newest error, or what its command printed in a box."""
    plain = [re.sub(r"\x1b\[\d*m", "", line).strip("│╭╮╰╯─ \n") for line in lines]
    raised = [line for line in plain if re.match(r"[\w.]*(Error|Exception): ", line)]
    errors = [line.partition(":")[2].strip() for line in plain if line.startswith("ERROR")]
    words = raised[:1] or errors[-1:] or [line for line in plain if not line.startswith(("INFO", "WARNING"))]
    text = " ".join(" ".join(words).split())
    if len(text) > MAX_WORDS:
        text = f"… {text[-MAX_WORDS:].partition(' ')[2]}"
    return text.rstrip(".") + "."


def _program(name: str) -> str:
    """The path of a program of Flower's; one beside this Python comes first."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        raise FederationError(f'{name} is not on the path. Install Flower: pip install "ccvr[flower]".')
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_health(port: int, process: Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
            return
        time.sleep(0.2)
    words = _last_words(log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:])
    raise FederationError(f"Flower's SuperLink did not start: {words}")
