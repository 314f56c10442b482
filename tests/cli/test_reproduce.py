"""`ccvr reproduce` from end to end on digits-sized cells, and from records alone."""

import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ccvr.core.run import RunFolder
from ccvr.experiment.pipeline import run
from ccvr.reproduction.cells import SCALES
from tests.cli.conftest import TINY, Command
from tests.reproduction import digits
from tests.reproduction.made import trained, write_records

CELL = "cifar10-a0.1-fedavg"
PAPER = SCALES["paper"]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    digits.install(monkeypatch)


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both cells of the table, trained."""
    path = tmp_path_factory.mktemp("cells")
    for cell in (digits.PLAIN, digits.PROX):
        run(cell.at(digits.TINY, 0), path / "quick" / f"{cell.name}-s0")
    return path


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.usefixtures("small")
def test_a_table_is_trained_and_printed(ccvr: Command, tmp_path: Path) -> None:
    code, out, err = ccvr("reproduce", "table9", "--scale", "quick", "--format", "csv")
    assert code == 0
    assert "/2] digits-fedavg, seed 0, quick (2 × 1): reproduction/quick/digits-fedavg-s0" in err
    results = RunFolder(tmp_path / "reproduction" / "quick" / "digits-fedavg-s0").read_results()
    accuracy = results["accuracy"]
    found = {(row["cell"], row["head"]): row for row in rows(out)}
    assert len(found) == 5
    entry = found["digits-fedavg", "ccvr-m50"]
    assert float(entry["mean"]) == accuracy["ccvr-m50"]
    assert float(entry["gain"]) == pytest.approx(accuracy["ccvr-m50"] - accuracy["uncalibrated"], abs=1e-4)
    assert float(entry["difference"]) == pytest.approx(accuracy["ccvr-m50"] - 94.0, abs=1e-4)
    assert (entry["seeds"], entry["scale"], entry["std"]) == ("1", "quick (2 × 1)", "")
    again = ccvr("reproduce", "table9", "--scale", "quick", "--format", "csv")
    assert (again.code, again.out, again.err) == (0, out, ""), "nothing is left to do"


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("form", ["terminal", "markdown", "latex"])
def test_formats_of_the_same_table(form: str, ccvr: Command, cells: Path) -> None:
    code, out, _ = ccvr("reproduce", "table9", "--budget", "0", "--out", cells, "--format", form)
    assert code == 0
    for cell, algorithm in ((digits.PLAIN, "FedAvg"), (digits.PROX, "FedProx")):
        accuracy = RunFolder(cells / "quick" / f"{cell.name}-s0").read_results()["accuracy"]
        for head, method in (("uncalibrated", algorithm), ("ccvr", f"{algorithm} + CCVR")):
            paper = digits.TABLE.entries[cell.name, head]
            assert paper is not None
            (line,) = [line for line in out.splitlines() if re.search(rf"{re.escape(method)}(?! \+|,)", line)]
            assert f"{paper.mean:.2f}" in line
            assert f"{accuracy[head]:.2f}" in line
            assert f"{accuracy[head] - paper.mean:.2f}".lstrip("-") in line
    assert {"terminal": "──", "markdown": "|---|", "latex": r"\toprule"}[form] in out


@pytest.mark.usefixtures("small")
def test_records_stand_in_for_runs(ccvr: Command, cells: Path, tmp_path: Path) -> None:
    table = ("reproduce", "table9", "--budget", "0", "--format", "csv")
    direct = ccvr(*table, "--out", cells).out
    code, out, _ = ccvr("reproduce", "--record", "--out", cells)
    assert (code, out.splitlines()) == (
        0,
        ["results/quick/digits-fedavg-s0.json", "results/quick/digits-fedprox-s0.json"],
    )
    assert all(path.stat().st_size < 30_000 for path in (tmp_path / "results").rglob("*.json"))
    recorded = json.loads((tmp_path / "results" / "quick" / "digits-fedavg-s0.json").read_text())
    assert (recorded["scale"], recorded["seed"], len(recorded["rounds"])) == ("quick (2 × 1)", 0, 2)
    assert ccvr(*table, "--out", "nowhere").out == direct
    assert ccvr(*table, "--out", "nowhere", "--results", "nowhere").out != direct


@pytest.mark.usefixtures("small")
def test_recording_some_of_the_runs(ccvr: Command, cells: Path, tmp_path: Path) -> None:
    shutil.copytree(cells, tmp_path / "runs")
    (tmp_path / "runs" / "quick" / "digits-fedprox-s0" / "results.json").unlink()
    assert ccvr("reproduce", "--record", "--out", "runs").out == "results/quick/digits-fedavg-s0.json\n"
    assert (
        ccvr("reproduce", "--record", "--out", cells, "--cells", "*prox").out
        == "results/quick/digits-fedprox-s0.json\n"
    )
    nothing = ccvr("reproduce", "--record", "--out", cells, "--scale", "half")
    assert (nothing.code, nothing.out) == (2, "")


def test_a_run_of_no_cell_is_recorded_under_its_own_name(ccvr: Command, finished: Path) -> None:
    assert ccvr("reproduce", "--record", "--out", finished.parent).out == "results/1x1/run-s0.json\n"


@pytest.mark.usefixtures("small")
def test_a_record_of_another_training_is_replaced_and_that_is_said(ccvr: Command, cells: Path, tmp_path: Path) -> None:
    again = ("reproduce", "--record", "--out", cells, "--cells", "*avg", "--quiet")
    assert ccvr(*again) == (0, "", "")
    path = tmp_path / "results" / "quick" / "digits-fedavg-s0.json"
    kept = json.loads(path.read_text())
    for part in ("accuracy", "per_class_recall", "client_accuracy", "calibrations"):
        kept["results"][part]["lda"] = kept["results"][part]["ccvr"]
    path.write_text(json.dumps(kept))
    assert ccvr(*again) == (0, "", "")
    assert "lda" in json.loads(path.read_text())["results"]["accuracy"], "of the same training nothing is lost"
    kept["rounds"][0]["accuracy"] += 1
    path.write_text(json.dumps(kept))
    said = "the record of another training is replaced; gone with it: lda."
    assert ccvr(*again) == (0, "", f"results/quick/digits-fedavg-s0.json: {said}\n")
    assert "lda" not in json.loads(path.read_text())["results"]["accuracy"]


def test_runs_of_no_cell_with_folders_of_one_name_are_two_records(ccvr: Command, tmp_path: Path) -> None:
    for folder, seed in (("a", 0), ("b", 0)):
        spec = replace(TINY, seed=seed, partition=replace(TINY.partition, num_clients=3 + (folder == "b")))
        run(spec, tmp_path / "out" / folder / "run")
    paths = ["results/1x1/run-s0.json", "results/1x1/run-2-s0.json"]
    assert ccvr("reproduce", "--record", "--out", "out").out.splitlines() == paths
    assert ccvr("reproduce", "--record", "--out", "out").out.splitlines() == paths, "and so ever after"
    clients = [json.loads((tmp_path / path).read_text())["spec"]["partition"]["num_clients"] for path in paths]
    assert clients == [3, 4]


@pytest.mark.usefixtures("small")
def test_cells_without_a_pattern_are_a_mistake_and_not_all(ccvr: Command, tmp_path: Path) -> None:
    for line in (["table9"], ["--record"], ["table9", "--list"]):
        code, out, err = ccvr("reproduce", *line, "--scale", "quick", "--cells")
        assert (code, out) == (2, "")
        assert err.startswith("UsageError: --cells has no value. Give patterns, ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("small")
def test_a_scale_may_be_numbers(ccvr: Command, cells: Path) -> None:
    table = ("reproduce", "table9", "--budget", "0", "--format", "csv", "--out", cells)
    assert ccvr(*table, "--scale", "2x1").out == ccvr(*table, "--scale", "quick").out
    assert ccvr(*table, "--scale", "2x2").out != ccvr(*table, "--scale", "quick").out
    code, _, err = ccvr(*table, "--scale", "2x0")
    assert code == 2
    assert err == (
        'UnknownName: no scale "2x0". Known: half, paper, quick; or give rounds and local epochs, as 10x1.\n'
    )


@pytest.mark.usefixtures("small")
def test_all_csv_is_one_table(ccvr: Command, cells: Path) -> None:
    code, out, err = ccvr(
        "reproduce",
        *["table9", "figure15", "table8", "--claims"],
        "--budget",
        "0",
        "--out",
        cells,
        "--format",
        "csv",
        "--cells",
        "digits-*",
        "cifar10-a0.1-fedavg",
    )
    assert code == 0
    assert "figure15: Label distributions" in err
    found = rows(out)
    assert list(dict.fromkeys(row["table"] for row in found)) == ["table9", "claims", "comparisons"]
    assert all(None not in row and None not in row.values() for row in found), "each has as many cells as headers"


@pytest.mark.usefixtures("small")
def test_a_budget_of_nothing_begins_nothing(ccvr: Command, tmp_path: Path) -> None:
    code, out, err = ccvr("reproduce", "table9", "--budget", "0")
    assert (code, err) == (0, "Nothing of ours is in reproduction or results; the paper's numbers stand alone.\n")
    assert "ours: nothing yet" in " ".join(out.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("small")
def test_a_cell_without_data_is_said_and_the_rest_is_made(ccvr: Command, tmp_path: Path) -> None:
    code, out, err = ccvr("reproduce", "table7", "--scale", "quick", "--quiet", "--format", "csv")
    assert code == 0, "all that can be made here is made"
    assert err == "Left out: cells of cinic10, which is not here (1): `ccvr data get cinic10`.\n"
    assert [row["cell"] for row in rows(out)] == ["digits-fedavg"], "of the other there is nothing to show"
    again = ccvr("reproduce", "table7", "--scale", "quick", "--format", "csv")
    assert (again.code, again.err) == (0, err)


@pytest.mark.usefixtures("small")
def test_where_no_cell_has_its_data_nothing_is_well(ccvr: Command) -> None:
    code, _, err = ccvr("reproduce", "table7", "--scale", "quick", "--quiet", "--format", "csv", "--cells", "nowhere*")
    assert code == 2
    assert err.startswith("RunError: not all could be made: nowhere-fedavg, seed 0, quick (2 × 1): ")
    assert "ccvr data get cinic10" in err


def test_interrupted_in_the_middle_the_same_command_goes_on(tmp_path: Path) -> None:
    script = (  # a shell's background job ignores Ctrl-C, and so would its children
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import pytest; from tests.reproduction import digits; from ccvr.cli.main import main\n"
        "from ccvr.reproduction.cells import Scale\n"
        "patch = pytest.MonkeyPatch(); digits.TINY = Scale(8, 1); digits.install(patch); main()"
    )
    argv = [sys.executable, "-c", script, "reproduce", "table9", "--scale", "quick", "--cells", "*avg"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "200"}
    process = subprocess.Popen(argv, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("round 2/8"):
            process.send_signal(signal.SIGINT)
            break
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert err.endswith("stopped. The same command goes on where it was.\n")
    folder = RunFolder(tmp_path / "reproduction" / "quick" / "digits-fedavg-s0")
    done = len(folder.read_rounds())
    assert 2 <= done < 8
    again = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200, check=True)
    assert f"resuming after round {done} of 8" in again.stderr
    assert folder.results.is_file()


# --- the paper's own tables, from records -----------------------------------------------------------------------------


def test_mixed_scales_are_said_in_every_row(ccvr: Command, tmp_path: Path) -> None:
    write_records(
        tmp_path / "results",
        trained(CELL, {"uncalibrated": 56.75, "ccvr": 61.99}),
        trained(CELL, {"uncalibrated": 58.0}, scale=PAPER),
    )
    _, out, _ = ccvr("reproduce", "table2", "--budget", "0", "--format", "csv", "--cells", CELL)
    assert [(row["head"], row["scale"], row["mean"]) for row in rows(out)] == [
        ("uncalibrated", "paper (100 × 10)", "58.0"),
        ("ccvr", "quick (10 × 5)", "61.99"),
        ("oracle", "", ""),
    ]
    _, out, _ = ccvr("reproduce", "table2", "--budget", "0", "--format", "markdown", "--cells", CELL)
    assert "ours: paper (100 × 10), quick (10 × 5); scales are mixed" in out
    _, out, _ = ccvr("reproduce", "table2", "--budget", "0", "--format", "csv", "--cells", CELL, "--scale", "quick")
    assert [row["mean"] for row in rows(out)] == ["56.75", "61.99", ""]


def test_two_seeds_of_which_one_lacks_a_head(ccvr: Command, tmp_path: Path) -> None:
    write_records(
        tmp_path / "results",
        trained(CELL, {"uncalibrated": 50.0, "ccvr": 56.0}),
        trained(CELL, {"uncalibrated": 60.0}, seed=1),
    )
    _, out, _ = ccvr("reproduce", "table2", "--budget", "0", "--format", "csv", "--cells", CELL)
    assert [(row["mean"], row["seeds"]) for row in rows(out)] == [("55.0", "2"), ("56.0", "1"), ("", "0")]


def test_a_folder_of_results_may_hold_anything_else(ccvr: Command, tmp_path: Path) -> None:
    write_records(tmp_path / "results", trained(CELL, {"uncalibrated": 50.0}))
    (tmp_path / "results" / "theirs.json").write_text('{"format": "theirs"}')
    (tmp_path / "results" / "empty.json").touch()
    (tmp_path / "results" / "digits-fedavg-s0.json").touch()
    table = ("reproduce", "table2", "--budget", "0", "--format", "csv", "--cells", CELL)
    assert rows(ccvr(*table).out)[0]["mean"] == "50.0"
    record = tmp_path / "results" / "0.json"
    record.write_text(record.read_text()[:300])
    (tmp_path / "reproduction" / "notes").mkdir(parents=True)
    (tmp_path / "reproduction" / "notes" / "spec.toml").write_text("x = 1\n")
    code, out, err = ccvr(*table)
    assert code == 0
    assert [row["mean"] for row in rows(out)] == [""] * 3
    alien, damaged, empty = err.splitlines()
    assert alien.startswith('Left out: reproduction/notes/spec.toml: no field "x".')
    assert damaged.startswith("Left out: results/0.json is not a record of a run (")
    assert empty.startswith("Left out: results/digits-fedavg-s0.json has the name of a record and is none.")


def test_claims_on_ours_and_on_published(ccvr: Command, tmp_path: Path) -> None:
    write_records(tmp_path / "results", trained(CELL, {"uncalibrated": 50.0, "ccvr": 49.0, "oracle": 51.0}))
    code, out, err = ccvr("reproduce", "--claims", "--format", "markdown")
    assert (code, err) == (0, "")
    assert "| 1. CCVR improves every algorithm at every alpha | quick | 1 | 0 of 1 | does not hold | holds |" in out
    assert "| -1.00 : 0 | does not hold | +4.13 : 0 | holds |" in out
    assert "| 51.00 : 49.00 | holds | 64.70 : 62.68 | holds |" in out


def test_the_list_says_what_everything_costs(ccvr: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ccvr.experiment.cost.seconds_per_sample", lambda spec: 1e-4)
    code, out, err = ccvr("reproduce", "table1", "figure5", "figure15", "--list", "--format", "csv", "--seeds", "3")
    assert (code, err) == (0, "")
    found = {row["id"]: row for row in rows(out) if row["table"] == "list"}
    assert list(found) == ["table1", "figure5", "figure15", "all"]
    names = [row["cell"] for row in rows(out) if row["table"] == "cells"]
    assert (len(names), names.count("cifar10-a0.05-fedavg-clsnorm-clsprox")) == (36, 3)
    assert (found["table1"]["cells"], found["table1"]["million samples"]) == ("36", "1800.0")
    assert found["figure5"]["cells"] == "3"
    assert "CINIC-10" in found["figure5"]["what"]
    assert found["all"]["cells"] == "36", "figure5's cells are table1's"
    hours = {name: float(row["hours"]) for name, row in found.items()}
    assert hours["table1"] == pytest.approx(1800e6 * 1e-4 / 3600)
    assert hours["figure5"] == pytest.approx(150e6 * 1e-4 / 3600, abs=0.005)
    assert hours["figure15"] == 0, "who owns what needs no training"


@pytest.mark.usefixtures("small")
def test_the_list_says_what_is_trained_recorded_and_without_data(ccvr: Command, cells: Path, tmp_path: Path) -> None:
    ccvr("reproduce", "--record", "--out", cells, "--cells", "*avg")
    shutil.copytree(cells / "quick" / "digits-fedprox-s0", tmp_path / "runs" / "x")
    _, out, _ = ccvr("reproduce", "table9", "table7", "--list", "--scale", "quick", "--out", "runs", "--format", "csv")
    counts = ("trained", "recorded", "without data")
    found = {row["id"] or row["cell"]: tuple(int(row[name]) for name in counts) for row in rows(out)}
    assert found == {
        "table9": (1, 1, 0),
        "table7": (0, 1, 1),
        "all": (1, 1, 1),
        "digits-fedavg": (0, 1, 0),
        "digits-fedprox": (1, 0, 0),
        "nowhere-fedavg": (0, 0, 1),
    }
    shown = ccvr("reproduce", "table9", "table7", "--list", "--scale", "quick", "--out", "runs").out
    assert "without data" in " ".join(shown.split())


def test_a_figure_has_both_curves(ccvr: Command, tmp_path: Path) -> None:
    heads = {f"ccvr-m{number}": 60.0 + number / 1000 for number in (50, 100, 500, 1000, 2000)}
    write_records(tmp_path / "results", trained(CELL, {"uncalibrated": 50.0, **heads}))
    code, out, err = ccvr("reproduce", "figure7", "--budget", "0", "--cells", CELL, "--figures", "svg", "png")
    assert (code, err) == (0, "")
    assert "paper (100 × 10): 58.55, 61.07, 61.43, 62.29, 62.59, 62.68" in out
    assert "ours (10 × 5): 50.00, 60.05, 60.10, 60.50, 61.00, 62.00" in out
    assert (
        "50 virtual features per class raise the accuracy. Ours shows it: FedAvg, α = 0.1, quick scale (+10.05)" in out
    )
    picture = (tmp_path / "reproduction" / "figures" / "figure7-a0-1.svg").read_text()
    for text in ("Figure 7: Virtual features per class, FedAvg", "FedAvg, CIFAR-10, α = 0.1", "paper (100 × 10)"):
        assert text in picture
    assert (tmp_path / "reproduction" / "figures" / "figure7-a0-1.png").is_file()


def test_files_of_a_figure_take_the_place_of_its_earlier_ones_and_of_no_others(ccvr: Command, tmp_path: Path) -> None:
    swept = {"uncalibrated": 50.0, "ccvr-m50": 60.0}
    write_records(tmp_path / "results", trained(CELL, swept), trained("cifar10-a0.5-fedavg", swept))
    folder = tmp_path / "reproduction" / "figures"
    for arguments in (["figure7", "--cells", "*-a0.1-*"], ["figure14", "--cells", CELL]):
        assert ccvr("reproduce", *arguments, "--budget", "0")[0] == 0
    (folder / "figure7-mine.svg").write_text("the user's")
    written = {".written", "figure7-mine.svg", "figure14-a0-1-fedavg.svg"}
    assert {path.name for path in folder.iterdir()} == {*written, "figure7-a0-1.svg"}
    assert ccvr("reproduce", "figure7", "--cells", "*-a0.5-*", "--budget", "0")[0] == 0
    assert {path.name for path in folder.iterdir()} == {*written, "figure7-a0-5.svg"}


def test_a_figure_in_words_alone_writes_nothing(ccvr: Command, tmp_path: Path) -> None:
    write_records(tmp_path / "results", trained(CELL, {"uncalibrated": 50.0, "ccvr-m50": 60.0}))
    code, out, _ = ccvr("reproduce", "figure7", "--budget", "0", "--cells", CELL, "--format", "markdown", "--figures")
    assert code == 0
    assert out.startswith(
        "**figure7**: Virtual features per class, FedAvg.\n\n- FedAvg, CIFAR-10, α = 0.1: Test accuracy"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["results"]


def test_a_figure_that_lacks_its_cells_says_so(ccvr: Command, tmp_path: Path) -> None:
    code, out, _ = ccvr("reproduce", "figure5", "--budget", "0")
    assert code == 0
    assert "CINIC-10 is not to be had here" in out
    assert f"No cell has what it takes.\n  Not there: {CELL}" in out
    assert list(tmp_path.iterdir()) == []
