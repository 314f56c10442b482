"""Names of heads, classes, data sets, clients and folders that would steer a terminal, a page or a spreadsheet."""

import json
from pathlib import Path

import pytest

from ccvr.comparison.arms import Arm, ArmRun, Comparison
from ccvr.core.errors import RunError
from tests.adversary.calling import Called, call, inside
from tests.report.conftest import results, spec, write_run
from tests.report.hostile import HOSTILE

NAMES = ["\x1b]0;taken\x07", "\x9b31m\u202e", "a\nb\r\x00", "[red]x[/red] :smile:", "=1+1", "\ud800", *HOSTILE]
ROW = {"method": "prior", "options": {}, "accuracy": {"mean": 9.0, "worst": 9.0, "p10": 9.0}, "clients": [9.0] * 4}


@pytest.fixture
def named(tmp_path: Path) -> Path:
    """Two runs in a folder and a comparison, in which everything is called NAMES."""
    said = results(class_names=NAMES[:3], deployed=NAMES[0])
    for key in ("accuracy", "per_class_recall", "client_accuracy", "calibrations"):
        said[key][NAMES[0]] = said[key].pop("ccvr")
        said[key] |= dict.fromkeys(NAMES, said[key]["oracle"])
    said["personal"] = {name: {**ROW, "head": NAMES[0]} for name in NAMES}
    write_run(tmp_path / "a\x1b[31m", made=spec(data__name=NAMES[1]), said=said)
    write_run(tmp_path / "b", made=spec(training__algorithm=NAMES[0]))
    run = ArmRun(0, {"uncalibrated": 50.0, **dict.fromkeys(NAMES, 60.0)}, NAMES[0], {NAMES[1]: 70.0}, 10, 1.0)
    arms = tuple(Arm(name, (run,)) for name in NAMES)
    comparison = Comparison(NAMES[0], NAMES[1], (0, 1), arms, {"data": {"name": NAMES[2]}})
    (tmp_path / "comparison.json").write_bytes(comparison.to_bytes())
    return tmp_path


COMMANDS = (
    ("show", "a\x1b[31m", "b"),
    ("show", "a\x1b[31m", "--partition"),
    ("show", "a\x1b[31m", "--json"),
    ("report", "a\x1b[31m", "b", "-o", "page\x1b.html"),
    *(("compare", "comparison.json", "--format", name) for name in ("terminal", "markdown", "csv", "latex")),
    ("compare", "comparison.json", "--json"),
    ("evaluate", "a\x1b[31m"),
    ("resume", "a\x1b[31m"),
    ("show", "gone\x1b[31m\n"),
)


@pytest.mark.parametrize("argv", COMMANDS, ids=range(len(COMMANDS)))
def test_every_line_is_printable(argv: tuple[str, ...], named: Path) -> None:
    with inside(named):
        done = call(*argv)
    assert done.faults(60) == []
    assert done.out or done.err


def test_json_on_the_terminal_is_what_is_kept(named: Path) -> None:
    with inside(named):
        done: Called = call("compare", "comparison.json", "--json")
    assert json.loads(done.out) == json.loads((named / "comparison.json").read_text())


def test_a_link_to_another_folder_in_a_run_is_refused(named: Path) -> None:
    (named / "others").mkdir()
    (named / "b" / "memories").symlink_to(named / "others")
    with inside(named):
        done = call("show", "b")
    assert done.code == 2
    assert done.err == f"{RunError.__name__}: b/memories is a link to another folder. Put a folder in its place.\n"
