"""`ccvr tune` from end to end on the embedded digits."""

import json
from pathlib import Path

import pytest

from ccvr.cli.tune import split
from tests.cli.conftest import Command

SMALL = ("--training.rounds", "1", "--training.local-epochs", "1", "--workers", "1", "--partition.num-clients", "3")


def test_fields_are_told_from_options() -> None:
    fields, own = split(["--training.mu", "0.1", "-1", "--out", "x", "--seed=3", "--data.augment", "True", "--quiet"])
    assert fields == {"training.mu": ["0.1", "-1"], "seed": ["3"], "data.augment": ["True"]}
    assert own == ["--out", "x", "--quiet"]


def test_a_dry_run_names_the_candidates_and_trains_nothing(ccvr: Command, tmp_path: Path) -> None:
    code, out, err = ccvr("tune", "digits-a0.1-fedavg", *SMALL, "--training.lr", "0.01", "0.1", "--dry-run")
    assert (code, err) == (0, "")
    assert out.splitlines()[:3] == [
        "training.lr 0.01",
        "training.lr 0.1",
        "2 trainings without 15% of the images, then one with all, each of:",
    ]
    assert list(tmp_path.iterdir()) == []


def test_the_chosen_is_shown_and_kept(ccvr: Command, tmp_path: Path) -> None:
    code, out, err = ccvr("tune", "digits-a0.1-fedavg", *SMALL, "--training.lr", "0.0001", "0.1")
    assert code == 0
    assert "[1/2] training.lr 0.0001" in err
    assert "Chosen: training.lr 0.1. Test accuracy" in out
    assert "Recorded: tuning/digits-a0.1-fedavg/tuning.json" in out
    kept = json.loads((tmp_path / "tuning" / "digits-a0.1-fedavg" / "tuning.json").read_text())
    for candidate in kept["candidates"]:
        assert f"{candidate['validation_accuracy']:.2f}" in out
    quiet = ccvr("tune", "digits-a0.1-fedavg", *SMALL, "--training.lr", "0.0001", "0.1", "--quiet")
    assert quiet == (0, "", ""), "all is there"


@pytest.mark.parametrize("words", [["--help"], ["digits-a0.1-fedavg", "--training.lr", "1", "2", "-h"]])
def test_help_wherever_it_is_asked_for(words: list[str], ccvr: Command) -> None:
    code, out, _ = ccvr("tune", *words)
    assert code == 0
    assert "--training.mu 0.001 0.01 0.1" in out
