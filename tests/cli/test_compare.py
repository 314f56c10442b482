"""`ccvr compare` from end to end on the embedded digits."""

import csv
import io
import json
import shutil
from pathlib import Path
from statistics import mean, stdev

import pytest

from tests.cli.conftest import Command

TINY = (
    *("--training.rounds", "1", "--training.local-epochs", "1", "--training.step", "torch", "--workers", "1"),
    *("--partition.num-clients", "3", "--calibration.methods", "lda", "--out", "here"),
)
TWO = ("compare", "digits-a0.1", "--algorithms", "fedavg", "fedprox,mu=0.1", *TINY)


def test_a_comparison_is_trained_shown_kept_and_shown_again(ccvr: Command, tmp_path: Path) -> None:
    code, out, err = ccvr(*TWO, "--seeds", "2")
    assert code == 0
    assert "[4/4] fedprox,mu=0.1, seed 1: here/digits-a0.1-fedprox-mu=0.1-s1" in err
    kept = json.loads((tmp_path / "here" / "comparison.json").read_text())
    accuracy = [
        json.loads((tmp_path / "here" / f"digits-a0.1-fedavg-s{seed}" / "results.json").read_text())["accuracy"]["lda"]
        for seed in (0, 1)
    ]
    assert [run["accuracy"]["lda"] for run in kept["arms"][0]["runs"]] == accuracy
    assert f"{mean(accuracy):.2f}±{stdev(accuracy):.2f}" in out
    assert "Nothing can be said about noise" in out
    assert str(tmp_path) not in json.dumps(kept)
    page = (tmp_path / "here" / "comparison.html").read_text()
    assert f"{mean(accuracy):.2f} ± {stdev(accuracy):.2f}" in page

    assert ccvr(*TWO, "--seeds", "2", "--quiet") == (0, _tables(out), ""), "all is done"
    (tmp_path / "here" / "comparison.html").unlink()
    assert ccvr("compare", "here", "--quiet") == (0, _tables(out), "")
    assert (tmp_path / "here" / "comparison.html").is_file()

    code, shown, _ = ccvr("compare", "here", "--record", "--json")
    assert (code, json.loads(shown)) == (0, kept)
    assert sorted(path.name for path in (tmp_path / "results" / "1x1").iterdir()) == sorted(
        f"digits-a0.1-{name}-s{seed}.json" for name in ("fedavg", "fedprox-mu=0.1") for seed in (0, 1)
    )
    code, table, _ = ccvr("compare", "results/comparisons/here.json", "--format", "csv")
    rows = [row for row in csv.DictReader(io.StringIO(table)) if row["table"] == "algorithms"]
    assert next(float(row["after"]) for row in rows) == pytest.approx(mean(accuracy))


def _tables(out: str) -> str:
    """What is printed without the paths at the end."""
    return out[: out.index("Page: ")]


def test_an_algorithm_that_cannot_train_the_model_is_refused_before_any_run(ccvr: Command, tmp_path: Path) -> None:
    code, _, err = ccvr("compare", "digits-a0.1", "--algorithms", "fedavg", "fedbn", *TINY, "--seeds", "1")
    assert code == 2
    assert err.startswith("SpecError: fedbn keeps normalisation layers with the clients, and the model has none.")
    assert not (tmp_path / "here").exists()


def test_a_budget_that_ends_says_how_to_go_on(ccvr: Command, tmp_path: Path) -> None:
    code, out, err = ccvr(*TWO, "--seeds", "1", "--budget", "0")
    assert (code, err) == (0, "The budget is spent; runs left: 2. The same command goes on.\n")
    assert "Runs that are not finished: fedavg (1), fedprox,mu=0.1 (1)." in out
    assert ccvr("compare", "here")[0] == 0
    code, out, _ = ccvr(*TWO, "--seeds", "1")
    assert code == 0
    assert "Nothing can be said about noise: that takes 3 seeds of two algorithms." in out


def test_a_dry_run_names_the_runs_and_trains_nothing(ccvr: Command, tmp_path: Path) -> None:
    code, out, err = ccvr(*TWO, "--seeds", "1", "--dry-run")
    assert (code, err) == (0, "")
    assert out.startswith("fedavg, seed 0: here/digits-a0.1-fedavg-s0 (new)\n")
    assert "2 trainings from their start, training samples: 2,884 (about " in out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--algorithms", "fedavg"],
            "UsageError: --algorithms names 1; give at least two, the one to",
        ),
        (["digits-a0.1"], "UsageError: --algorithms names 0; give at least two"),
        (["--algorithms", "fedavg", "moon", "--seeds", "0"], "UsageError: --seeds is 0; give at least 1."),
        (
            ["--algorithms", "fedavg", "moon", "--training.algorithm", "moon"],
            "UsageError: --training.algorithm",
        ),
        (["--algorithms", "fedavg", "moon", "--budget", "soon"], 'UsageError: --budget is "soon"'),
        (["--algorithms", "fedavg", "mono"], 'UnknownName: no algorithm "mono". Did you mean "moon"?'),
        (["."], "RunError: comparison.json is no comparison"),
        ([".", "--seeds", "5"], "UsageError: --seeds does not fit a comparison that is only shown again"),
    ],
)
def test_mistakes(words: list[str], said: str, ccvr: Command, tmp_path: Path) -> None:
    code, out, err = ccvr("compare", *words)
    assert (code, out) == (2, "")
    assert err.startswith(said)
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_only_read_and_a_folder_keeps_what_its_runs_lost(ccvr: Command, tmp_path: Path) -> None:
    assert ccvr(*TWO, "--seeds", "1", "--quiet")[0] == 0
    path = tmp_path / "here" / "comparison.json"
    kept = path.read_bytes()
    (tmp_path / "mail").mkdir()
    (tmp_path / "mail" / "comparison.json").write_bytes(kept)
    code, shown, _ = ccvr("compare", "mail/comparison.json")
    assert code == 0
    assert "not finished" not in shown
    assert (tmp_path / "mail" / "comparison.json").read_bytes() == kept
    shutil.rmtree(tmp_path / "here" / "digits-a0.1-fedprox-mu=0.1-s0")
    for words in (["compare", "here"], [*TWO[:3], "fedavg", "scaffold", *TINY, "--seeds", "1", "--budget", "0"]):
        code, shown, _ = ccvr(*words)
        assert code == 0
        assert json.loads(path.read_text())["arms"][-1] == json.loads(kept)["arms"][1], "the run of fedprox"


def test_records_of_the_same_name_stand_beside_each_other(ccvr: Command, tmp_path: Path) -> None:
    for folder, rounds in (("a/x", "1"), ("b/x", "2"), ("a/x", "1")):
        words = [*TWO, "--seeds", "1", "--quiet", "--record", "--out", folder, "--training.rounds", rounds]
        assert ccvr(*words)[0] == 0
    found = sorted(path.name for path in (tmp_path / "results" / "comparisons").iterdir())
    assert found == ["x-2.json", "x.json"]
