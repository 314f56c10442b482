"""ccvr analyze: what it says, and what it does with runs that are not as it would like."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ccvr.core.run import RunFolder
from ccvr.data.spec import PartitionSpec
from ccvr.experiment.analyses import ANALYSES
from ccvr.experiment.pipeline import run
from tests.cli.conftest import TINY, Command


@pytest.fixture
def own(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, to be written."""
    return Path(shutil.copytree(finished, tmp_path / "own"))


def kept(path: Path) -> set[str]:
    return {file.stem for file in (path / "analysis").glob("*")}


def test_each_analysis_is_a_line_and_a_file(own: Path, ccvr: Command) -> None:
    code, out, err = ccvr("analyze", "own", "--only", "confusion", "norms", "separability")
    assert (code, err) == (0, "")
    assert [line.split(": ")[:2] for line in out.splitlines()] == [
        ["own", name] for name in ("confusion", "norms", "separability")
    ]
    assert kept(own) == {"confusion", "norms", "separability"}
    assert ccvr("analyze", "own", "--only", "norms", "--quiet") == (0, "", "")


def test_what_cannot_be_done_is_left_out_unless_it_was_asked_for(
    own: Path, ccvr: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openTSNE", None)  # as if it were not installed
    reason = 't-SNE needs openTSNE, which is not installed. Run: pip install "ccvr[tsne]"'
    code, _, err = ccvr("analyze", "own", "--quiet")
    assert (code, err) == (0, f"own: tsne is left out: {reason}\n")
    assert kept(own) == set(ANALYSES) - {"tsne"}
    assert ccvr("analyze", "own", "--only", "tsne") == (2, "", f"AnalysisError: {reason}\n")


def test_one_client_has_nobody_to_be_compared_with(tmp_path: Path, ccvr: Command) -> None:
    spec = replace(TINY, partition=PartitionSpec(kind="iid", num_clients=1))
    run(spec, tmp_path / "alone")
    code, out, err = ccvr("analyze", "alone", "--only", "cka")
    assert (code, out) == (2, "")
    assert err == "AnalysisError: 1 models and 355 images; give at least two models and some images.\n"


def test_unfinished_runs_are_told_and_left_out(own: Path, ccvr: Command, tmp_path: Path) -> None:
    other = Path(shutil.copytree(own, tmp_path / "other"))
    RunFolder(other).results.unlink()
    code, out, err = ccvr("analyze", "own", "other", "own/", "--only", "norms")
    assert (code, err) == (0, "other is not finished: go on with `ccvr resume other`.\n")
    assert out.count("\n") == 1, "each run once"
    code, out, err = ccvr("analyze", "own", "--only", "norms", "--against", "other")
    assert (code, out) == (2, "")
    assert err == "RunError: other/results.json is missing. Finish the run with `ccvr resume other`.\n"


def test_the_other_runs_cka_is_found_once_and_named(own: Path, ccvr: Command, tmp_path: Path) -> None:
    other = Path(shutil.copytree(own, tmp_path / "other"))
    code, out, err = ccvr("analyze", "own", "--only", "norms", "--against", "other")
    assert (code, err) == (0, "")
    assert "own: cka-against: mean CKA " in out
    assert kept(other) == {"cka"}
    before = RunFolder(other).analysis("cka").stat().st_mtime_ns
    assert ccvr("analyze", "own", "--only", "norms", "--against", "other", "--quiet") == (0, "", "")
    assert RunFolder(other).analysis("cka").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "RunError: no run named. Give run folders: ccvr analyze runs/*"),
        (["gone"], "RunError: gone is not a run: it has no spec.toml. Give a folder that `ccvr run` made."),
        (["own", "--points", "3"], "UsageError: --points is 3; give a number from 4 to 10000."),
        (["own", "--only", "ck"], 'UnknownName: no analysis "ck". Did you mean "cka"? Known: '),
        (["own", "--against", "gone"], "RunError: gone is not a run"),
    ],
)
def test_mistakes_are_one_line(argv: list[str], said: str, own: Path, ccvr: Command) -> None:
    code, out, err = ccvr("analyze", *argv)
    assert (code, out) == (2, "")
    assert err.startswith(said)
    assert err.count("\n") == 1
    assert kept(own) == set()


@pytest.mark.parametrize("clients", [None, [{"client": 99, "head_row_norms": [1.0] * 10}], [{"client": 0}]])
def test_damaged_rounds_are_one_line(clients: object, own: Path, ccvr: Command) -> None:
    (own / "rounds.jsonl").write_text(json.dumps({"round": 1, "clients": clients}) + "\n")
    code, out, err = ccvr("analyze", "own", "--only", "norms")
    assert (code, out) == (2, "")
    assert err.startswith("RunError: own/rounds.jsonl does not fit the run (")
    assert err.count("\n") == 1
    (own / "rounds.jsonl").unlink()
    assert ccvr("analyze", "own", "--only", "norms", "--quiet") == (0, "", "")
    assert ccvr("report", "own", "--quiet") == (0, "", "")
