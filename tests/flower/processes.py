"""Flower's programs for tests: free ports, their own FLWR_HOME, and none left when a test ends."""

import contextlib
import datetime
import ipaddress
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from ssl import create_default_context
from typing import Any

import tomli_w
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ccvr.flower.launch import SILENT, Link, free_port
from ccvr.flower.stopping import end_all

ROOT = Path(__file__).parents[2]
TRIAL = Path(__file__).with_name("bundle")
PATH = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
LIMIT = 1800
"""Seconds that anything may take at all; only a machine that hangs gets there."""


def environment(home: Path, **more: str) -> dict[str, str]:
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, **SILENT, "FLWR_HOME": str(home), "PYTHONPATH": PATH, "PATH": programs, **more}


def flwr(link: Link, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("flwr")
    return subprocess.run(
        [program, *arguments], env=link.environment, capture_output=True, text=True, timeout=LIMIT, check=False
    )


def command(environment: dict[str, str], *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """`ccvr …` until it ends."""
    started = start_command(environment, *arguments)
    out, err = started.communicate(timeout=LIMIT)
    return subprocess.CompletedProcess(started.args, started.returncode, out, err)


def start_command(environment: dict[str, str], *arguments: str | Path) -> subprocess.Popen[str]:
    """`ccvr …` in a process of its own, which heeds signals even where this one does not."""
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); sys.argv[0] = 'ccvr'; "
    code += "signal.signal(signal.SIGHUP, signal.SIG_DFL); from ccvr.cli.main import main; main()"
    call = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(call, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run_app(link: Link, app: Path, folder: Path, /, **config: Any) -> str:
    """`flwr run` until the app has ended; its log."""
    file = folder / "config.toml"
    file.write_text(tomli_w.dumps(config))
    done = flwr(link, "run", app, link.name, "--stream", "--run-config", file, *link.settings)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def try_cases(link: Link, folder: Path, *cases: dict[str, Any]) -> dict[str, Any]:
    """What came of each case, by name."""
    folder.mkdir(exist_ok=True)
    (folder / "cases.json").write_text(json.dumps([{"faults": {}, **case} for case in cases]))
    log = run_app(link, TRIAL, folder, scratch=str(folder))
    for case in cases:
        assert (folder / f"{case['name']}.json").is_file(), log
    return {case["name"]: json.loads((folder / f"{case['name']}.json").read_text()) for case in cases}


# --- a deployment -----------------------------------------------------------------------------------------------------


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for the loopback that is its own authority, and its key."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "certificate.pem", folder / "key.pem"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    encoding = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    paths[1].write_bytes(key.private_bytes(*encoding))
    return paths


@dataclass
class Deployment:
    """One SuperLink and its SuperNodes on the loopback."""

    home: Path
    secure: bool
    database: bool
    port: int = field(default_factory=free_port)
    link_process: subprocess.Popen[bytes] | None = None
    nodes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.certificate, self.key = certificate(self.home)
        safety = {"root-certificates": str(self.certificate)} if self.secure else {"insecure": True}
        connection = {"address": f"127.0.0.1:{self.port}", **safety}
        (self.home / "config.toml").write_text(tomli_w.dumps({"superlink": {"loopback": connection}}))

    @property
    def link(self) -> Link:
        return Link("loopback", environment(self.home))

    def _start(self, name: str, *arguments: str | Path) -> subprocess.Popen[bytes]:
        with (self.home / f"{name}.log").open("ab") as log:
            program = Path(sys.executable).with_name(arguments[0])
            command = [program, *arguments[1:]]
            return subprocess.Popen(
                command, env=environment(self.home), stdout=log, stderr=subprocess.STDOUT, cwd=self.home
            )

    def start_link(self) -> None:
        files = "--ssl-ca-certfile", self.certificate, "--ssl-certfile", self.certificate, "--ssl-keyfile", self.key
        where = ["--host", "127.0.0.1", "--port", str(self.port)]
        where += ["--database", self.home / "link.db"] if self.database else []
        self.link_process = self._start(
            "link", "flower-superlink", *where, *(files if self.secure else ("--insecure",))
        )
        self.await_health()

    def await_health(self) -> None:
        scheme, trust = ("https", create_default_context(cafile=self.certificate)) if self.secure else ("http", None)
        for _ in range(10 * LIMIT):
            assert self.link_process.poll() is None, (self.home / "link.log").read_text()
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{scheme}://127.0.0.1:{self.port}/health", timeout=5, context=trust).close()
                return
            time.sleep(0.1)
        raise AssertionError("the SuperLink is not healthy")

    def start_node(self, number: int, total: int) -> None:
        safety = ("--root-certificates", self.certificate) if self.secure else ("--insecure",)
        who = "--node-config", f"partition-id={number} num-partitions={total}"
        where = "--superlink", f"127.0.0.1:{self.port}", "--port", str(free_port())
        self.nodes.append(self._start(f"node{number}", "flower-supernode", *where, *safety, *who))

    def stop(self) -> None:
        started = [process for process in (*self.nodes, self.link_process) if process is not None]
        for process in started:
            process.terminate()
        for process in started:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        await_nobody(self.home, but="flwr-clientapp")
        end_all(f"FLWR_HOME={self.home}")  # Flower's client of a run that ended before it began asks its node for ever
        await_nobody(self.home)


@contextlib.contextmanager
def deployed(home: Path, *, number: int = 2, secure: bool = True, database: bool = False) -> Iterator[Deployment]:
    deployment = Deployment(home, secure, database)
    try:
        deployment.start_link()
        for k in range(number):
            deployment.start_node(k, number)
        yield deployment
    finally:
        deployment.stop()


def alive(home: Path) -> list[str]:
    """Command lines of all processes with that folder in their environment, as FLWR_HOME or TMPDIR.

    The dead that nobody has buried have no environment.
    """
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and f"={home}\0".encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


def await_nobody(home: Path, *, but: str = "nobody") -> None:
    """Flower's processes notice within seconds that their parent is gone."""
    for _ in range(600):
        left = [each for each in alive(home) if but not in each]
        if not left:
            return
        time.sleep(0.1)
    raise AssertionError(f"left behind: {left}")


def await_file(path: Path) -> None:
    for _ in range(10 * LIMIT):
        if path.exists():
            return
        time.sleep(0.1)
    raise AssertionError(f"{path} was never written")
