"""Killed between any two writes, a command goes on: by itself, or by `ccvr resume`.

What a kill leaves on disk is what is there at that moment. So a command runs once, with a copy of its folder taken
before each call that changes a name or puts bytes on disk; and every copy is brought to its end.
"""

import os
import shutil

import pytest

from ccvr.algorithms.spec import TrainingSpec
from ccvr.calibration.methods import parse_calibration
from ccvr.calibration.spec import CalibrationSpec
from ccvr.cli.follow import follow
from ccvr.core.arrays import read_about
from ccvr.core.run import RunFolder
from ccvr.data.spec import PartitionSpec
from ccvr.experiment.personalisations import parse_personalisations
from ccvr.experiment.personalise import personalise_run
from ccvr.experiment.pipeline import calibrate_again, resume, start
from ccvr.experiment.spec import Spec
from ccvr.inspection.analyze import MADE_FROM, analyze, heads_digest
from ccvr.report.page import is_current
from tests.end_to_end.test_resume import contents

SPEC = Spec(
    threads=1,
    workers=1,
    partition=PartitionSpec(num_clients=2, alpha=5.0),
    training=TrainingSpec(algorithm="moon", rounds=2, local_epochs=1, batch_size=512, step="torch"),
    calibration=CalibrationSpec(methods=("ncm", "lda")),
)
DURABLE = ("replace", "fsync", "unlink", "rmdir")
"""Calls after which the disk has something else than before, or must have it."""


class Copies:
    """Copies of a folder before each call that matters, and at the end; of those with the same files the first."""

    def __init__(self, folder, room, monkeypatch):
        self.folder, self.room, self.found, self._seen = folder, room, [], set()
        self._is_copying = False
        for name in DURABLE:
            monkeypatch.setattr(os, name, self._before(getattr(os, name)))

    def _before(self, call):
        def called(*arguments, **options):
            self.take()
            return call(*arguments, **options)

        return called

    def take(self):
        if self._is_copying or not self.folder.is_dir():
            return
        self._is_copying = True  # copying must not be copied
        files = sorted(path for path in self.folder.rglob("[!.]*") if path.is_file())
        state = hash(tuple((str(path), path.read_bytes()) for path in files))
        if state not in self._seen:
            self._seen.add(state)
            self.found.append(shutil.copytree(self.folder, self.room / f"{len(self.found):03}"))
        self._is_copying = False


def copies_of(folder, command, room, monkeypatch):
    """What kills of a command can leave in its folder."""
    room.mkdir()
    with monkeypatch.context() as patch:
        copies = Copies(folder, room, patch)
        command(folder)
        copies.take()
    return copies.found


PAGES = 2
"""Of the last copies, in which a command draws its page. Drawing takes seconds, so others go on without it."""


def quietly(events, path, report=False):
    follow(events, RunFolder(path), quiet=True, report=report)


def begin(path):
    quietly(start(SPEC, path), path)


def go_on(path, report=True):
    quietly(resume(RunFolder(path)), path, report)


def require_finished(path, page=True):
    """Results, heads, model, analyses and page that are about each other."""
    run = RunFolder(path)
    results = run.read_results()
    assert run.changed_files(results) == []
    assert set(results["files"]) == {
        "model.safetensors",
        *(f"heads/{label}.safetensors" for label in results["accuracy"]),
    }
    for name in ("confusion", "norms"):
        about = read_about(run.analysis(name))
        assert about[MADE_FROM] == heads_digest(run, results), name
        assert about["heads"] == list(results["accuracy"]), name
    assert is_current(path / "report.html", run) or not page


def without_times(path):
    found = contents(path)
    return {name: found[name] for name in found if not name.startswith("spec")}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("finished") / "run"
    begin(path)
    go_on(path)
    return path


@pytest.fixture
def own(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def test_a_finished_run_needs_nothing(finished):
    require_finished(finished)
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.is_file() and path.name != ".lock"}
    go_on(finished)
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_run(finished, tmp_path, monkeypatch):
    found = copies_of(tmp_path / "run", lambda path: (begin(path), go_on(path)), tmp_path / "copies", monkeypatch)
    assert len(found) > 20
    assert not (found[0] / "spec.toml").exists()
    for path in found[:-PAGES]:
        list(resume(RunFolder(path)) if (path / "spec.toml").is_file() else start(SPEC, path))
        assert not RunFolder(path).changed_files(RunFolder(path).read_results())
        assert without_results_of_analyses(path) == without_results_of_analyses(finished), path.name
    for path in found[-PAGES:]:
        go_on(path)
        require_finished(path)
        assert without_times(path) == without_times(finished)


def without_results_of_analyses(path):
    return {name: content for name, content in without_times(path).items() if not name.startswith("analysis")}


MORE = [parse_calibration("lda,shrinkage=oas,label=oas"), parse_calibration("ncm,label=again")]
CHANGED = [parse_calibration("lda,shrinkage=fixed:0.5"), parse_calibration("ncm,label=again")]


def calibrate(path, report=True):
    quietly(calibrate_again(RunFolder(path), MORE, chosen="oas"), path, report)


def overwrite(path, report=True):
    quietly(calibrate_again(RunFolder(path), CHANGED, overwrite=True, chosen="lda"), path, report)


@pytest.mark.parametrize("command", [calibrate, overwrite])
def test_calibrate(command, own, tmp_path, monkeypatch):
    found = copies_of(own, command, tmp_path / "copies", monkeypatch)
    changed = [path for path in found if RunFolder(path).changed_files(RunFolder(path).read_results())]
    assert changed, "some kill leaves a head or a model that results.json does not tell of"
    for number, path in enumerate(found):
        page = number >= len(found) - PAGES
        if page or path in changed:
            resumed = shutil.copytree(path, tmp_path / "resumed")
            go_on(resumed, page)
            require_finished(resumed, page)
            shutil.rmtree(resumed)
        command(path, page)
        require_finished(path, page)
        assert without_times(path) == without_times(own), path.name


def test_a_killed_calibration_is_brought_back_to_what_results_json_says(own, finished, tmp_path, monkeypatch):
    found = copies_of(own, overwrite, tmp_path / "copies", monkeypatch)
    path = next(path for path in found if RunFolder(path).changed_files(RunFolder(path).read_results()))
    assert RunFolder(path).head("lda").read_bytes() != RunFolder(finished).head("lda").read_bytes()
    go_on(path, report=False)
    assert without_times(path) == without_times(finished)


def personalise(path, report=True):
    methods = parse_personalisations(["prior", "prior,smoothing=3,label=smooth"])
    quietly(personalise_run(RunFolder(path), methods, head="lda"), path, report)


def test_personalise(own, tmp_path, monkeypatch):
    found = copies_of(own, personalise, tmp_path / "copies", monkeypatch)
    assert len(found) > 4
    for number, path in enumerate(found):
        page = number >= len(found) - PAGES
        personalise(path, page)
        require_finished(path, page)
        assert without_times(path) == without_times(own)


def test_analyze(own, tmp_path, monkeypatch):
    def command(path):
        assert list(analyze(RunFolder(path), ["norms", "separability"]))

    for path in copies_of(own, command, tmp_path / "copies", monkeypatch):
        command(path)
        assert without_times(path) == without_times(own)
        go_on(path, report=False)
        require_finished(path, page=False)


def test_replacing_a_run(own, tmp_path, monkeypatch):
    """A run that is half deleted is not taken for a finished one, and may be replaced again."""

    def replaced(path):
        RunFolder.create(path, overwrite=True)

    found = copies_of(own, replaced, tmp_path / "copies", monkeypatch)
    assert len(found) > 8
    for path in found[1:]:
        assert not (path / "results.json").exists()
        RunFolder(path).require_room(overwrite=True)
    half = found[len(found) // 2]
    assert (half / "spec.toml").is_file()
    list(resume(RunFolder(half)))
    assert (
        without_results_of_analyses(half)["results"]
        == without_times(shutil.copytree(found[0], tmp_path / "whole"))["results"]
    )
