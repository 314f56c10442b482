"""Runs that are killed, starved and cut off at random moments, and resumed: do they end in the same bits?

    make soak MINUTES=5        or   python -m tests.adversary.soak --minutes 5 --seed 1 --no-flower

A trial starts a command in a process of its own, breaks it at a random moment of a phase, gives `ccvr resume` or the
same command again, and compares every file that must not depend on the moment with those of a run left alone. It ends
with a table, one line of JSON, and exit code 1 if anything differed.
"""

import argparse
import contextlib
import importlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from ccvr.algorithms.spec import TrainingSpec
from ccvr.calibration.spec import CalibrationSpec
from ccvr.cli.main import main
from ccvr.core.run import RunFolder
from ccvr.data.catalogue import load
from ccvr.data.spec import DataSpec, PartitionSpec
from ccvr.experiment.spec import Spec, to_toml
from ccvr.report.page import is_current
from ccvr.training.checkpoint import read_checkpoint
from tests.end_to_end.test_resume import contents

SPEC = Spec(
    threads=1,
    workers=1,
    data=DataSpec(validation=0.15),
    partition=PartitionSpec(num_clients=4, alpha=0.5),
    training=TrainingSpec(
        algorithm="moon", rounds=4, local_epochs=1, batch_size=256, client_fraction=0.75, step="torch"
    ),
    calibration=CalibrationSpec(methods=("ccvr,num_virtual=20,epochs=2", "lda", "oracle,epochs=1")),
)
QUIET = ["--quiet", "--no-report"]
CALIBRATE = ["calibrate", "--method", "ncm", "lda,shrinkage=oas", "--overwrite", "--deploy", "lda"]
ANALYZE = ["analyze", "--only", "confusion", "norms", "separability"]
MEGABYTE = 2**20


@dataclass
class Row:
    """What came of one phase or fault."""

    trials: int = 0
    broken: int = 0
    """Commands that the trial ended; the others were done before."""
    resumed: int = 0
    same: int = 0
    failures: list[str] = field(default_factory=list)


class Attempt:
    """A command in a process of its own. It is a fork, so that nobody waits for imports."""

    def __init__(self, *argv: str | Path, before: Callable[[], object] = lambda: None) -> None:
        self.said = tempfile.TemporaryFile()  # noqa: SIM115
        self.status: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            os.dup2(self.said.fileno(), 1)
            os.dup2(self.said.fileno(), 2)
            sys.argv = ["ccvr", *map(str, argv)]
            code = 1
            try:
                before()
                main()
                code = 0
            except SystemExit as stop:
                code = stop.code if isinstance(stop.code, int) else 1
            except BaseException as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr)
            finally:
                sys.stdout.flush()
                os._exit(code)

    def has_ended(self) -> bool:
        if self.status is None:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = status if done else None
        return self.status is not None

    def kill(self) -> None:
        if not self.has_ended():
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """The exit code; below 0 the signal."""
        while not self.has_ended():
            time.sleep(0.005)
        return os.waitstatus_to_exitcode(self.status)

    def words(self) -> str:
        self.said.seek(0)
        return self.said.read().decode(errors="replace").strip()


@dataclass(frozen=True)
class Phase:
    """A part of a command: the command, and the files that are there when it begins and when it ends."""

    argv: tuple[str, ...]
    begins: str = ""
    ends: str = ""
    reference: str = "bare"
    again: tuple[str, ...] = ("resume", *QUIET)
    starts_from: str = ""


PHASES = {
    "before the first file": Phase(("run",), "", "spec.toml"),
    "rounds": Phase(("run",), "rounds.jsonl", "checkpoints/round-000004.safetensors"),
    "statistics": Phase(("run",), "checkpoints/round-000004.safetensors", "heads/ccvr.safetensors"),
    "heads": Phase(("run",), "heads/ccvr.safetensors", "results.json"),
    "report": Phase(("resume", "--quiet"), "", "report.html", "whole", ("resume", "--quiet"), "bare"),
    "calibrate": Phase((*CALIBRATE, *QUIET), "", "", "calibrated", (*CALIBRATE, *QUIET), "bare"),
    "personalise": Phase(("personalise", *QUIET), "", "", "personalised", ("personalise", *QUIET), "bare"),
    "analyze": Phase((*ANALYZE, "--quiet"), "", "", "analyzed", (*ANALYZE, "--quiet"), "bare"),
}


class Soak:
    """The references, and one trial after the other."""

    def __init__(self, room: Path, seed: int) -> None:
        self.room, self.rng, self.rows = room, random.Random(seed), dict[str, Row]()
        self.spec = room / "spec.toml"
        self.spec.write_text(to_toml(SPEC))
        self.seconds: dict[str, float] = {}
        self.bare = room / "bare"
        self.seconds["run"] = self._alone("run", self.spec, "--out", self.bare, *QUIET)
        self._phase_lengths()
        self.references = {"bare": contents(self.bare)}
        for name in ("report", "calibrate", "personalise", "analyze"):
            phase, path = PHASES[name], shutil.copytree(self.bare, room / name)
            self.seconds[name] = self._alone(phase.argv[0], path, *phase.argv[1:])
            self.references[phase.reference] = contents(path)

    def _alone(self, *argv: str | Path) -> float:
        started, attempt = time.perf_counter(), Attempt(*argv)
        if code := attempt.wait():
            sys.exit(f"ccvr {' '.join(map(str, argv))}, left alone, ended with {code}: {attempt.words()}")
        return time.perf_counter() - started

    def _phase_lengths(self) -> None:
        """How long each phase of a run takes, from the times of its files."""
        start = self.spec.stat().st_mtime
        for name in ("before the first file", "rounds", "statistics", "heads"):
            phase = PHASES[name]
            first = (self.bare / phase.begins).stat().st_mtime if phase.begins not in ("", "rounds.jsonl") else start
            self.seconds[name] = max(0.02, (self.bare / phase.ends).stat().st_mtime - first)

    @contextlib.contextmanager
    def trial(self, name: str) -> Iterator[tuple[Row, Path]]:
        row, path = self.rows.setdefault(name, Row()), self.room / f"trial-{name.replace(' ', '-')}"
        row.trials += 1
        try:
            yield row, path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def kill(self, name: str) -> None:
        """Kill a command in one of its phases, and go on."""
        phase = PHASES[name]
        with self.trial(name) as (row, path):
            if phase.starts_from:
                shutil.copytree(self.bare, path)
                attempt = Attempt(phase.argv[0], path, *phase.argv[1:])
            else:
                attempt = Attempt(*phase.argv, self.spec, "--out", path, *QUIET)
            while phase.begins and not (path / phase.begins).exists() and not attempt.has_ended():
                time.sleep(0.001)
            time.sleep(self.rng.uniform(0, self.seconds[name]))
            attempt.kill()
            row.broken += attempt.wait() == -signal.SIGKILL
            self.finish(row, path, phase)

    def finish(self, row: Row, path: Path, phase: Phase) -> None:
        """Go on, and compare."""
        if (path / "spec.toml").is_file():
            attempt = Attempt(phase.again[0], path, *phase.again[1:])
        else:
            attempt = Attempt("run", self.spec, "--out", path, *QUIET)
        if code := attempt.wait():
            row.failures.append(f"resumed, it ended with {code}: {attempt.words()[-300:]}")
            return
        row.resumed += 1
        found, expected = contents(path), self.references[phase.reference]
        differing = sorted(key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key))
        results = RunFolder(path).read_results()
        if phase.reference == "whole" and not is_current(path / "report.html", RunFolder(path)):
            differing.append("report.html")
        if [each for each in differing if each != "spec.toml"] or RunFolder(path).changed_files(results):
            row.failures.append(f"other bits: {', '.join(differing)}")
        else:
            row.same += 1

    def fault(self, name: str) -> None:
        with self.trial(name) as (row, path):
            FAULTS[name](self, row, path)

    def run_with(self, row: Row, path: Path, **options: Callable[[], object]) -> Attempt:
        return Attempt("run", self.spec, "--out", path, *QUIET, **options)

    def require_one_line(self, row: Row, attempt: Attempt) -> None:
        """A fault that we can tell of ends a command with exit code 2 and one line."""
        code, words = attempt.wait(), attempt.words()
        row.broken += code != 0
        if code not in (0, 2) or "\n" in words:
            row.failures.append(f"exit code {code}, not one line: {words[-300:]}")


# --- faults -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def mounted(path: Path, options: str) -> Iterator[Path]:
    """A file system in memory, which can be full or read-only."""
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", path], check=True)
    try:
        yield path / "run"
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


def remount(path: Path, options: str) -> bool:
    return subprocess.run(["mount", "-o", f"remount,{options}", path], capture_output=True, check=False).returncode == 0


def disk_full(soak: Soak, row: Row, path: Path) -> None:
    whole = sum(each.stat().st_size for each in soak.bare.rglob("*") if each.is_file())
    with mounted(path, f"size={soak.rng.randint(4096, whole)}") as run:
        soak.require_one_line(row, soak.run_with(row, run))
        remount(path, "size=100m")
        soak.finish(row, run, PHASES["rounds"])


def read_only(soak: Soak, row: Row, path: Path) -> None:
    with mounted(path, "size=100m") as run:
        attempt = soak.run_with(row, run)
        time.sleep(soak.rng.uniform(0, soak.seconds["run"]))
        while not remount(path, "ro") and not attempt.has_ended():
            time.sleep(0.001)  # busy while a file is open for writing
        soak.require_one_line(row, attempt)
        remount(path, "rw")
        soak.finish(row, run, PHASES["rounds"])


def out_of_memory(soak: Soak, row: Row, path: Path) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = used + soak.rng.randint(0, 96 * MEGABYTE)
    attempt = soak.run_with(row, path, before=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
    row.broken += attempt.wait() != 0
    soak.finish(row, path, PHASES["rounds"])


def clock_jumps(soak: Soak, row: Row, path: Path) -> None:
    years = 3e8
    rng = random.Random(soak.rng.random())

    def jump() -> None:
        time.time = lambda: rng.uniform(0, years)

    attempt = soak.run_with(row, path, before=jump)
    time.sleep(soak.rng.uniform(0, soak.seconds["run"]))
    attempt.kill()
    row.broken += attempt.wait() == -signal.SIGKILL
    for file in path.rglob("*") if path.is_dir() else ():
        os.utime(file, (rng.uniform(0, years),) * 2)
    soak.finish(row, path, PHASES["rounds"])


def worker_killed(soak: Soak, row: Row, path: Path) -> None:
    attempt = Attempt("run", soak.spec, "--out", path, "--workers", "2", *QUIET)
    workers = list[int]()
    while not workers and not attempt.has_ended():
        workers = [pid for pid in children_of(attempt.pid) if "spawn_main" in command_of(pid)]
        time.sleep(0.01)
    time.sleep(soak.rng.uniform(0, 3 + soak.seconds["rounds"]))
    with contextlib.suppress(ProcessLookupError):
        os.kill(soak.rng.choice(workers), signal.SIGKILL)
    soak.require_one_line(row, attempt)
    soak.finish(row, path, PHASES["rounds"])


def children_of(parent: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True, check=False)
    return [int(pid) for pid in found.stdout.split()]


def command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    return ""


FAULTS = {
    "disk full": disk_full,
    "read-only disk": read_only,
    "out of memory": out_of_memory,
    "clock jumps": clock_jumps,
    "worker killed": worker_killed,
}
NEED_ROOT = ("disk full", "read-only disk")
"""They mount a file system."""


# --- Flower -----------------------------------------------------------------------------------------------------------


AS_GOOD_AS_SAME = 1e-5
"""How far weights may be apart: clients elsewhere sum in another order."""


def flower(soak: Soak, deadline: float) -> None:
    """Kill a SuperLink, then a SuperNode, in the midst of a run of two clients over the loopback."""
    from tests.flower.processes import command, deployed, start_command

    options = ["--partition.num-clients", "2", "--training.client-fraction", "1", "--training.rounds", "6"]
    options += ["--training.algorithm", "fedavg", "--calibration.methods", "lda", "--data.validation", "0"]
    alone = soak.room / "alone"
    soak._alone("run", soak.spec, *options, "--out", alone, *QUIET)
    expected = read_checkpoint(RunFolder(alone).checkpoint(6)).parameters
    for name in ("SuperLink killed", "SuperNode killed"):
        if time.monotonic() > deadline:
            return
        with soak.trial(name) as (row, path):
            home = soak.room / name.replace(" ", "-")
            home.mkdir()
            with deployed(home, secure=False) as deployment:
                environment = deployment.link.environment
                remote = ["--engine", "flower", "--flower.superlink", "loopback", "--flower.timeout", "180"]
                process = start_command(environment, "run", soak.spec, *options, *remote, "--out", path, *QUIET)
                rounds = path / "rounds.jsonl"
                while process.poll() is None and not (rounds.is_file() and rounds.read_bytes().count(b"\n") >= 1):
                    time.sleep(0.05)
                time.sleep(soak.rng.uniform(0, 5))
                (deployment.link_process if "Link" in name else deployment.nodes[0]).kill()
                was_running = process.poll() is None
                said = "".join(process.communicate(timeout=600))
                row.broken += process.returncode != 0
                if not was_running:
                    row.failures.append(f"it ended by itself with {process.returncode}: {said[-300:]}")
                    continue
            with deployed(home, secure=False) as deployment:
                done = command(deployment.link.environment, "resume", path, *QUIET)
            if done.returncode:
                row.failures.append(f"resumed, it ended with {done.returncode}: {(done.stdout + done.stderr)[-300:]}")
                continue
            row.resumed += 1
            found = read_checkpoint(RunFolder(path).checkpoint(6)).parameters
            apart = max((found[name] - tensor).abs().max().item() for name, tensor in expected.items())
            row.failures += [f"{apart:.1e} apart"] * (apart > AS_GOOD_AS_SAME)
            row.same += apart <= AS_GOOD_AS_SAME


# --- all of it --------------------------------------------------------------------------------------------------------


def soaked(arguments: argparse.Namespace) -> dict[str, Row]:
    """All phases and faults in turn, until the time is over."""
    end = time.monotonic() + 60 * arguments.minutes
    with tempfile.TemporaryDirectory(prefix="ccvr-soak-", dir=arguments.room) as room:
        soak = Soak(Path(room), arguments.seed)
        faults = [name for name in FAULTS if os.geteuid() == 0 or name not in NEED_ROOT]
        until = end if arguments.no_flower else end - 0.35 * 60 * arguments.minutes
        while time.monotonic() < until:
            for name in PHASES:
                soak.kill(name)
            for name in faults if time.monotonic() < until else ():
                soak.fault(name)
        if not arguments.no_flower:
            flower(soak, end)
        return soak.rows


def table(rows: dict[str, Row]) -> str:
    head = f"{'phase or fault':24}{'trials':>8}{'broken':>8}{'resumed':>9}{'same bits':>11}{'failures':>10}"
    lines = [
        f"{name:24}{row.trials:8}{row.broken:8}{row.resumed:9}{row.same:11}{len(row.failures):10}"
        for name, row in rows.items()
    ]
    return "\n".join([head, *lines])


def run_soak() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--room", type=Path, help="where runs are written; without it the system's temporary folder")
    parser.add_argument("--no-flower", action="store_true", help="leave Flower out")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in ("run", "resume", "calibrate", "personalise", "analyze", "report"):
        importlib.import_module(f"ccvr.cli.{name}")
    load("digits")  # so that kills fall on the work, not on imports
    started = time.monotonic()
    rows = soaked(arguments)
    minutes = (time.monotonic() - started) / 60
    print(table(rows))
    if not arguments.no_flower:
        print("Weights of runs on Flower count as the same up to 1e-5.")
    for name, row in rows.items():
        for failure in row.failures:
            print(f"{name}: {failure}")
    print(
        json.dumps(
            {"minutes": round(minutes, 1), "seed": arguments.seed, "rows": {n: asdict(r) for n, r in rows.items()}}
        )
    )
    sys.exit(any(row.failures for row in rows.values()))


if __name__ == "__main__":
    run_soak()
