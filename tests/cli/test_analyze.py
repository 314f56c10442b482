"""ccvr analyze: what it says, and what it does with runs that are not as it would like."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ccvr.core.arrays import Array, arrays_to_bytes, read_arrays
from ccvr.core.run import RunFolder, write_atomically
from ccvr.data.spec import PartitionSpec
from ccvr.experiment.pipeline import run
from ccvr.inspection.analyses import ANALYSES
from ccvr.inspection.analyze import Analyzed, analyze
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


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only three analyses, one of which cannot be done."""
    monkeypatch.setattr(ANALYSES, "_rows", {name: ANALYSES[name] for name in ("tsne", "norms", "confusion")})
    monkeypatch.setitem(sys.modules, "openTSNE", None)  # as if it were not installed


REASON = 't-SNE needs openTSNE, which is not installed. Run: pip install "ccvr[tsne]"'


@pytest.mark.usefixtures("three")
def test_what_cannot_be_done_is_left_out_unless_it_was_asked_for(own: Path, ccvr: Command) -> None:
    code, _, err = ccvr("analyze", "own", "--quiet")
    assert (code, err) == (0, f"own: tsne is left out: {REASON}\n")
    assert kept(own) == {"norms", "confusion"}
    code, out, err = ccvr("analyze", "own", "--only", "tsne", "norms")
    assert (code, err) == (2, f"own: tsne failed: {REASON}\n")
    assert out.startswith("own: norms: ")


@pytest.mark.usefixtures("three")
def test_what_is_damaged_fails_and_costs_nothing_else(own: Path, ccvr: Command) -> None:
    (own / "rounds.jsonl").write_text("[]\n")
    code, _, err = ccvr("analyze", "own", "--quiet")
    assert code == 2, "nobody asked for it by name, but the run is not as it should be"
    assert [line.split(": ")[1] for line in err.splitlines()] == ["tsne is left out", "norms failed"]
    assert kept(own) == {"confusion"}


def test_a_bad_run_does_not_keep_others_from_it(own: Path, ccvr: Command, tmp_path: Path) -> None:
    for name in ("lost", "locked", "last"):
        shutil.copytree(own, tmp_path / name)
    shutil.rmtree(tmp_path / "lost" / "checkpoints")
    with RunFolder(tmp_path / "locked").locked():
        code, out, err = ccvr("analyze", "lost", "own", "locked", "last", "--only", "norms")
    assert code == 2
    assert [line.split(": ")[0] for line in out.splitlines()] == ["own", "last"]
    first, second = err.splitlines()
    assert first.startswith("lost cannot be analysed: lost has lost the checkpoint of its last round")
    assert second.startswith("locked cannot be analysed: locked is being written by another process")
    assert kept(own) == kept(tmp_path / "last") == {"norms"}


def test_one_client_has_nobody_to_be_compared_with(tmp_path: Path, ccvr: Command) -> None:
    spec = replace(TINY, partition=PartitionSpec(kind="iid", num_clients=1))
    run(spec, tmp_path / "alone")
    code, out, err = ccvr("analyze", "alone", "--only", "cka")
    assert (code, out) == (2, "")
    assert err == "alone: cka failed: 1 models and 355 samples; give at least two models and some samples.\n"


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
    assert err.startswith("own: norms failed: own/rounds.jsonl ")
    assert err.endswith(("Delete it to go on without it.\n", "or delete it to go on without what it holds.\n"))
    assert err.count("\n") == 1
    (own / "rounds.jsonl").unlink()
    assert ccvr("analyze", "own", "--only", "norms", "--quiet") == (0, "", "")
    assert ccvr("report", "own", "--quiet") == (0, "", "")


@pytest.fixture(scope="module")
def plane(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What the finished run looks like in the plane."""
    pytest.importorskip("openTSNE")
    folder = RunFolder(Path(shutil.copytree(finished, tmp_path_factory.mktemp("plane") / "run")))
    (done,) = analyze(folder, ["tsne"])
    assert isinstance(done, Analyzed)
    return folder.analysis("tsne").read_bytes()


class TestAfterCalibrate:
    """What a run keeps of its heads follows them."""

    @pytest.fixture
    def analysed(self, own: Path, plane: bytes) -> Path:
        write_atomically(RunFolder(own).analysis("tsne"), plane)
        return own

    def agreement(self, own: Path) -> dict[str, float]:
        arrays, about = read_arrays(RunFolder(own).analysis("tsne"))
        assert len(arrays["points"]) == 355, "all test samples"
        return {about["after"]: 100 * float((arrays["after"] == arrays["truth"]).mean())}

    def deployed(self, own: Path) -> dict[str, float]:
        results = RunFolder(own).read_results()
        return {results["deployed"]: pytest.approx(results["accuracy"][results["deployed"]], abs=1e-3)}

    def test_the_plane_shows_the_head_of_the_headline(self, analysed: Path, ccvr: Command) -> None:
        before = read_arrays(RunFolder(analysed).analysis("tsne"))[0]
        worse = "ccvr,num_virtual=3,epochs=1,lr=0.5,label=ccvr"
        assert self.agreement(analysed) == self.deployed(analysed)
        first = self.agreement(analysed)
        assert ccvr("calibrate", "own", "--method", worse, "--overwrite", "--quiet") == (0, "", "")
        assert self.agreement(analysed) == self.deployed(analysed) != first
        assert ccvr("calibrate", "own", "--method", "lda", "--deploy", "lda", "--quiet") == (0, "", "")
        assert self.agreement(analysed) == self.deployed(analysed)
        page = (analysed / "report.html").read_text()
        (found,) = self.agreement(analysed).values()
        assert f"predicted after (lda); {found:.1f} % agree" in page
        assert "predicted after (ccvr)" not in page
        after = read_arrays(RunFolder(analysed).analysis("tsne"))[0]
        for name in ("points", "samples", "truth", "before"):
            assert np.array_equal(before[name], after[name])

    def test_without_a_report_what_is_there_follows_and_no_more(self, analysed: Path, ccvr: Command) -> None:
        argv = ("--method", "lda", "--deploy", "lda", "--no-report", "--quiet")
        assert ccvr("calibrate", "own", *argv) == (0, "", "")
        assert self.agreement(analysed) == self.deployed(analysed)
        assert kept(analysed) == {"tsne"}
        assert not (analysed / "report.html").exists()

    @pytest.mark.parametrize("samples", [np.array([9999]), np.array([0.5])])
    def test_points_that_do_not_fit_cost_themselves_only(self, samples: Array, own: Path, ccvr: Command) -> None:
        path = RunFolder(own).analysis("tsne")
        path.parent.mkdir()
        path.write_bytes(arrays_to_bytes({"points": np.zeros((1, 2)), "samples": samples}, {}))
        code, _, err = ccvr("calibrate", "own", "--method", "lda", "--quiet", "--no-report")
        assert code == 0
        assert err.startswith("Figures are missing: tsne: own/analysis/tsne.safetensors does not fit the run (")
        assert err.count("\n") == 1
        assert "lda" in RunFolder(own).read_results()["accuracy"]
