import json
from pathlib import Path

import pytest

from ccvr.cli.follow import follow
from ccvr.core.run import RunFolder
from ccvr.experiment.events import Events, Finished, HeadScored
from ccvr.experiment.pipeline import run
from tests.cli.conftest import TINY

SCORED = HeadScored("ccvr", 50.0, 0.1)


def test_a_folder_of_another_run_gets_no_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A federation's run folder is on its SuperLink's machine, whatever lies under the same path here."""
    results = run(TINY, tmp_path / "run")
    page = tmp_path / "run" / "report.html"
    other = {**json.loads(RunFolder(tmp_path / "run").results.read_text()), "num_clients": 99}
    for found, is_here in ((other, False), (results, True)):
        follow((event for event in (SCORED, Finished(found))), RunFolder(tmp_path / "run"), quiet=False, report=True)
        out = capsys.readouterr().out
        assert page.is_file() == is_here
        assert ("Report: " in out) == is_here
        assert (f"{tmp_path / 'run'}, on the machine of the SuperLink" in out) != is_here


def test_events_are_closed_when_their_reader_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not some time later: a run on Flower ends its processes then."""
    closed = []

    def events() -> Events:
        try:
            yield SCORED
        finally:
            closed.append(True)

    def fail(*_: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("ccvr.cli.follow.show", fail)
    running = events()
    with pytest.raises(BrokenPipeError):
        follow(running, RunFolder(tmp_path), quiet=True, report=False)
    assert closed == [True]
