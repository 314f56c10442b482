"""The command line, as a call in this process and as a process of its own."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from ccvr.algorithms.spec import TrainingSpec
from ccvr.calibration.spec import CalibrationSpec
from ccvr.cli.main import main
from ccvr.data.spec import PartitionSpec
from ccvr.experiment.pipeline import run
from ccvr.experiment.spec import Spec

SCRIPT = Path(sys.executable).with_name("ccvr")
TINY = Spec(
    threads=1,
    workers=1,
    partition=PartitionSpec(num_clients=3, alpha=0.5),
    training=TrainingSpec(rounds=1, local_epochs=1, step="torch"),  # kernels would take longer to compile
    calibration=CalibrationSpec(methods=("ccvr,num_virtual=20,epochs=2", "oracle,epochs=1")),
)


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


Command = Callable[..., Outcome]


@pytest.fixture
def ccvr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """`ccvr …` in an empty folder and this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("CCVR_DATA", str(tmp_path / "no-data"))

    def call(*argv: str | Path) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["ccvr", *map(str, argv)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        return Outcome(code, *capsys.readouterr())

    return call


# A shell's background job, which a test run may be, ignores Ctrl-C, and so would all its children.
HEED_INTERRUPTS = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
)

Launch = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """`ccvr …` in an empty folder and a process of its own."""
    with ExitStack() as processes:

        def start(*argv: str | Path) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [sys.executable, "-c", HEED_INTERRUPTS, SCRIPT, *argv],
                cwd=tmp_path,
                env={**os.environ, "COLUMNS": "200"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            processes.enter_context(process)
            processes.callback(process.kill)
            return process

        yield start


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, to be read."""
    path = tmp_path_factory.mktemp("finished") / "run"
    run(TINY, path)
    return path
