import shutil
from pathlib import Path

from tests.cli.conftest import Command
from tests.cli.test_run import SMALL

WITH_PAGE = [word for word in SMALL if word != "--no-report"]


def test_a_run_ends_with_its_report(ccvr: Command, tmp_path: Path) -> None:
    code, out, err = ccvr("run", *WITH_PAGE, "--out", "mine")
    assert (code, err) == (0, "")
    assert "Report: mine/report.html\n" in out
    page = (tmp_path / "mine" / "report.html").read_text()
    assert page.count('<h3 id="figure-') >= 8
    assert ccvr("run", *WITH_PAGE, "--out", "mine", "--overwrite", "--quiet") == (0, "", "")


def test_a_run_without_report(ccvr: Command, tmp_path: Path) -> None:
    code, out, _ = ccvr("run", *SMALL, "--out", "mine")
    assert code == 0
    assert "Report" not in out
    assert not (tmp_path / "mine" / "report.html").exists()


def test_pages_and_figures(finished: Path, ccvr: Command, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "a")
    shutil.copytree(finished, tmp_path / "b")
    assert ccvr("report", "a") == (0, "Report: a/report.html\n", "")
    assert ccvr("report", "a", "b", "--figures", "svg") == (0, "Report: report.html\n", "")
    assert (tmp_path / "report-figures" / "accuracy.svg").is_file()
    assert ccvr("report", "a", "-o", "sub/p.html", "--figures", "png", "--quiet") == (0, "", "")
    assert (tmp_path / "sub" / "p.html").read_bytes() == (tmp_path / "a" / "report.html").read_bytes()
    assert (tmp_path / "a" / "figures" / "accuracy.png").is_file()


def test_exported_figures_stay_until_they_are_asked_for_again(finished: Path, ccvr: Command, tmp_path: Path) -> None:
    for name in "abc":
        shutil.copytree(finished, tmp_path / name)
    assert ccvr("report", "a", "--figures", "svg").code == 0
    assert ccvr("report", "a", "b", "-o", "one.html", "--figures", "svg").code == 0
    kept = [*(tmp_path / "a" / "figures").iterdir(), *(tmp_path / "one-figures").iterdir()]
    assert len(kept) > 20
    assert ccvr("calibrate", "a", "--method", "ccvr,label=more,epochs=1", "--quiet") == (0, "", "")
    assert ccvr("report", "b", "c", "-o", "two.html", "--figures", "svg").code == 0
    assert all(path.is_file() for path in kept)


def test_a_run_that_calibrates_nothing(ccvr: Command, tmp_path: Path) -> None:
    code, out, err = ccvr("run", *WITH_PAGE[: WITH_PAGE.index("--calibration.methods") + 1], "--out", "mine")
    assert (code, err) == (0, "")
    assert "Report: mine/report.html\n" in out
    assert "The model is saved without calibration." in (tmp_path / "mine" / "report.html").read_text()


def test_unfinished_runs_are_told_and_left_out(finished: Path, ccvr: Command, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "a")
    shutil.copytree(finished, tmp_path / "b")
    (tmp_path / "b" / "results.json").unlink()
    code, out, err = ccvr("report", "a", "b", "a/")
    assert (code, out) == (0, "Report: a/report.html\n")
    assert err == "b is not finished: go on with `ccvr resume b`.\n"


def test_a_page_that_cannot_be_written_costs_no_run(ccvr: Command, tmp_path: Path) -> None:
    process = ccvr("run", *SMALL, "--out", "mine", "--quiet")
    assert process.code == 0
    (tmp_path / "mine" / "report.html").mkdir()
    code, _, err = ccvr("calibrate", "mine", "--method", "ccvr,label=more,epochs=1", "--quiet")
    assert (code, err) == (0, "No report: mine/report.html is a folder. Name a file: -o mine/report.html/report.html\n")
    assert "more" in (tmp_path / "mine" / "results.json").read_text()


def test_mistakes_are_one_line(ccvr: Command, finished: Path, tmp_path: Path) -> None:
    assert ccvr("report").err == "RunError: no run named. Give run folders: ccvr report runs/*\n"
    assert ccvr("report", "gone").err.startswith("RunError: gone is not a run")
    (tmp_path / "file").touch()
    assert ccvr("report", finished, "-o", "file/page.html").err == (
        "RunError: file/page.html cannot be written (File exists). See to its disk and permissions, or name another "
        "page: -o FILE.\n"
    )
    assert ccvr("report", finished, "-o", ".").err == "RunError: . is a folder. Name a file: -o report.html\n"
