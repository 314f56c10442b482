"""`ccvr personalise`: models of the clients' own, from the command to what is shown."""

import json
import os
import re
import shutil
import signal
import time
from pathlib import Path

import pytest
from rich.console import Console

from ccvr.cli.progress import RunProgress
from ccvr.core.run import RunFolder
from tests.cli.conftest import Command, Launch
from tests.cli.test_finished import results_of


@pytest.fixture
def own(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, to be written."""
    shutil.copytree(finished, tmp_path / "own")
    return tmp_path / "own"


def test_from_the_command_to_what_is_shown(own: Path, ccvr: Command) -> None:
    code, out, err = ccvr("personalise", own, "--method", "finetune,epochs=1", "prior")
    assert (code, err) == (0, "")
    rows, shared = results_of(own)["personal"], results_of(own)["client_accuracy"]
    assert [(label, row["head"]) for label, row in rows.items()] == [("finetune", "uncalibrated"), ("prior", "ccvr")]
    for label, row in rows.items():
        assert row["accuracy"]["mean"] > shared[row["head"]]["mean"], "on clients with few classes"
        assert len(row["clients"]) == results_of(own)["num_clients"] == 3
        assert f"{label}: client 3/3" in out
        mean, worst = (f"{row['accuracy'][key]:.2f} ({shared[row['head']][key]:.2f})" for key in ("mean", "worst"))
        for text in (out, ccvr("show", own).out):
            line = next(line for line in text.splitlines() if line.startswith(f"│ {label} "))
            assert mean in line
            assert worst in line
    assert json.loads(ccvr("show", own, "--json").out)[str(own)]["personal"] == rows
    page = (own / "report.html").read_text(encoding="utf-8")
    assert 'id="own-models"' in page
    assert 'id="figure-own"' in page
    assert "ccvr personalise" in page, "how to repeat it"


def test_again_it_has_nothing_to_do(own: Path, ccvr: Command) -> None:
    ccvr("personalise", own, "--method", "prior", "--quiet", "--no-report")
    before = {path: path.read_bytes() for path in own.rglob("*") if path.is_file()}
    code, out, err = ccvr("personalise", own, "--method", "prior", "--no-report")
    assert (code, err) == (0, "")
    assert "prior is there already, made in the same way" in out
    assert {path: path.read_bytes() for path in own.rglob("*") if path.is_file()} == before


def test_silence(own: Path, ccvr: Command) -> None:
    assert ccvr("personalise", own, "--method", "prior", "--quiet", "--no-report") == (0, "", "")
    assert not (own / "report.html").exists()


def test_two_runs_are_shown_with_their_names(own: Path, finished: Path, ccvr: Command) -> None:
    ccvr("personalise", own, "--method", "prior", "--quiet", "--no-report")
    out = ccvr("show", finished, own).out
    assert re.search(rf"│ {re.escape(str(own))} +│ prior +│ ccvr ", out)


def test_a_kill_loses_no_finished_method(own: Path, launch: Launch, ccvr: Command) -> None:
    words = ("personalise", own, "--no-report", "--method", "prior", "finetune,epochs=300")
    process = launch(*words)
    ends = time.monotonic() + 60
    while "personal" not in results_of(own) and process.poll() is None and time.monotonic() < ends:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(60)
    assert list(results_of(own)["personal"]) == ["prior"]
    code, out, err = ccvr("personalise", own, "--no-report", "--method", "prior", "finetune,epochs=1")
    assert (code, err) == (0, "")
    assert "prior is there already" in out
    assert list(results_of(own)["personal"]) == ["prior", "finetune"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["--method", "priors"],
            'UnknownName: no personalisation "priors". Did you mean "prior"? Known: finetune, prior.',
        ),
        (["--head", "lda"], 'RunError: {} has no head "lda". It has: uncalibrated, ccvr, oracle.'),
        (["--method"], "UsageError: --method names no method. Give some, for example prior, or leave it out."),
        (
            ["--head="],
            "UsageError: --head is empty. Give the label of a head, for example uncalibrated, or leave it out.",
        ),
        (["--method", "finetune,epochs=0"], "SpecError: finetune: epochs is 0; give at least 1."),
        (
            ["--method", "finetune,lr=1e30"],
            r"TrainingError: client 0 diverged in round 2: its loss is nan. Lower the learning rate (1e+30).",
        ),
    ],
)
def test_mistakes_are_one_line(words: list[str], line: str, own: Path, ccvr: Command) -> None:
    before = RunFolder(own).results.read_bytes()
    code, _, err = ccvr("personalise", own, "--no-report", *words)
    assert (code, err) == (2, line.format(own) + "\n")
    assert RunFolder(own).results.read_bytes() == before


def test_a_run_that_is_not_finished(own: Path, ccvr: Command) -> None:
    RunFolder(own).results.unlink()
    code, out, err = ccvr("personalise", own)
    assert (code, out) == (2, "")
    assert err == f"RunError: {own / 'results.json'} is missing. Finish the run with `ccvr resume {own}`.\n"


def test_no_run(ccvr: Command) -> None:
    line = "RunError: gone is not a run: it has no spec.toml. Give a folder that `ccvr run` made.\n"
    assert ccvr("personalise", "gone") == (2, "", line)


def test_an_error_in_the_users_own_code_names_its_line(own: Path, ccvr: Command, tmp_path: Path) -> None:
    (tmp_path / "own_way.py").write_text(
        "from dataclasses import dataclass\n"
        "from ccvr.training.personalisation import Personalisation\n"
        "@dataclass(frozen=True)\n"
        "class Fails(Personalisation):\n"
        "    def personalise(self, start):\n"
        "        return 1 / 0\n"
    )
    code, _, err = ccvr("personalise", own, "--method", "own_way:Fails", "--no-report")
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith(f"ZeroDivisionError in {tmp_path / 'own_way.py'}:6: division by zero.")


def test_progress_without_a_terminal_has_at_most_five_lines(capsys: pytest.CaptureFixture[str]) -> None:
    for clients, numbers in {3: [1, 2, 3], 10: [2, 4, 6, 8, 10], 100: [20, 40, 60, 80, 100]}.items():
        with RunProgress(Console(), quiet=False) as progress:
            for number in range(1, clients + 1):
                progress.client("prior", number, clients)
        assert capsys.readouterr().out.splitlines() == [f"prior: client {each}/{clients}" for each in numbers]
