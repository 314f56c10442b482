"""`ccvr list`: every name that a spec can have, with its options."""

from pathlib import Path

import pytest

from ccvr.algorithms.table import ALGORITHMS
from ccvr.calibration.table import CALIBRATORS
from ccvr.cli.list import TABLES
from ccvr.core.methods import options_of
from ccvr.experiment.presets import PRESETS
from tests.cli.conftest import Command


def test_all_tables(ccvr: Command) -> None:
    code, out, err = ccvr("list")
    assert (code, err) == (0, "")
    assert [table for table in TABLES if table.capitalize() not in out] == []
    assert [name for name in [*ALGORITHMS, *CALIBRATORS, *PRESETS] if name not in out] == []
    said, rows = " ".join(out.split()), [*ALGORITHMS.values(), *CALIBRATORS.values()]
    options = [option for row in rows for option in options_of(row)]
    assert [each for each in options if each.name not in said or each.about not in said] == []


@pytest.mark.parametrize("table", TABLES)
def test_every_table(table: str, ccvr: Command) -> None:
    code, out, err = ccvr("list", table)
    assert (code, err) == (0, "")
    assert out


@pytest.mark.parametrize(("table", "name"), [("calibrators", name) for name in CALIBRATORS])
def test_a_calibrator_and_its_options(table: str, name: str, ccvr: Command) -> None:
    code, out, err = ccvr("list", table, name)
    assert (code, err) == (0, "")
    said = " ".join(out.split())
    for option in options_of(CALIBRATORS[name]):
        assert f"{option.name} " in said
        assert option.about in said
        assert option.default in said


def test_an_algorithm_without_options(ccvr: Command) -> None:
    out = ccvr("list", "algorithms", "fedavg").out
    assert "The average of the clients' models" in out
    assert "option" not in out


def test_fedir_begins_with_fedavg(ccvr: Command) -> None:
    line = next(line for line in ccvr("list", "algorithms").out.splitlines() if line.startswith("fedir "))
    assert "FedAvg in round 1" in line


def test_a_class_of_the_user_s_own(ccvr: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "listed.py").write_text(
        "from dataclasses import dataclass\n"
        "from ccvr.algorithms.drift import FedProx\n"
        "@dataclass(frozen=True)\n"
        "class Mine(FedProx):\n"
        '    """Nearly FedProx."""\n'
        "    strength: int = 7\n"
        '    """How strong."""\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    code, out, err = ccvr("list", "algorithms", "listed:Mine")
    assert (code, err) == (0, "")
    for said in ("Nearly FedProx.", "Weight of the proximal term.", "strength", "7", "How strong."):
        assert said in out
