"""`ccvr tune` from end to end on the embedded digits."""

import json
from pathlib import Path

import pytest

from ccvr.cli.tune import split
from ccvr.experiment.spec import read_spec
from tests.cli.conftest import Command

SMALL = ("--training.rounds", "1", "--training.local-epochs", "1", "--workers", "1", "--partition.num-clients", "3")


def test_fields_are_told_from_options() -> None:
    fields, own = split(["--training.lr", "0.1", "-1", "--out", "x", "--seed=3", "--data.augment", "True", "--quiet"])
    assert fields == {"training.lr": ["0.1", "-1"], "seed": ["3"], "data.augment": ["True"]}
    assert own == ["--out", "x", "--quiet"]


def test_a_dry_run_names_the_candidates_and_trains_nothing(ccvr: Command, tmp_path: Path) -> None:
    code, out, err = ccvr("tune", "digits-a0.1-fedavg", *SMALL, "--training.lr", "0.01", "0.1", "--dry-run")
    assert (code, err) == (0, "")
    images = 1442  # of the embedded digits, in one epoch
    some, every = 2 * round(images * 0.85), images
    assert out.splitlines()[:4] == [
        "training.lr 0.01",
        "training.lr 0.1",
        f"2 trainings without 15% of the samples: {some:,} samples",
        f"then the best one with all: at most {every:,} samples",
    ]
    assert out.splitlines()[4].startswith(f"in all, training samples: {some + every:,} (about ")
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


def test_the_held_out_part_is_given_back_also_where_a_spec_file_holds_some_out(ccvr: Command, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text("[data]\nvalidation = 0.2\n[training]\nlr = 0.3\n")
    code, _, err = ccvr("tune", "s.toml", *SMALL, "--training.lr", "0.0001", "0.1", "--out", "v", "--quiet")
    assert (code, err) == (0, "")
    assert read_spec(tmp_path / "v" / "retrained-training.lr=0.1" / "spec.toml").data.validation == 0.0
    kept = json.loads((tmp_path / "v" / "tuning.json").read_text())
    assert kept["chosen"] == {"training.lr": 0.1}
    assert (kept["given"]["training"]["lr"], kept["given"]["data"]["validation"]) == (0.3, 0.2)
    assert kept["given"]["training"]["rounds"] == 1


def test_a_head_that_is_selected_by_what_is_held_out_cannot_be_the_last(ccvr: Command, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text('[data]\nvalidation = 0.2\n[calibration]\ndeploy = "select"\n')
    code, out, err = ccvr("tune", "s.toml", *SMALL, "--training.lr", "0.01", "0.1")
    assert (code, out) == (2, "")
    assert err == (
        'SpecError: calibration.deploy is "select", but the last training holds nothing out. Name a head instead.\n'
    )
    assert not (tmp_path / "tuning").exists()


@pytest.mark.parametrize("words", [["--help"], ["digits-a0.1-fedavg", "--training.lr", "1", "2", "-h"]])
def test_help_wherever_it_is_asked_for(words: list[str], ccvr: Command) -> None:
    code, out, _ = ccvr("tune", *words)
    assert code == 0
    assert "--training.algorithm fedprox,mu=0.001 fedprox,mu=0.01" in " ".join(out.split())
