"""rounds.jsonl is read line by line, with bounds."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ccvr.core import history
from ccvr.core.errors import RunError
from ccvr.core.history import MAX_LINES
from ccvr.core.run import RunFolder


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


@pytest.mark.parametrize(
    ("line", "fact"),
    [
        ("[1]", "its content is a list, not an object"),
        ('{"round": 1, "accuracy": 101}', "accuracy is 101, not between -1e-06 and 100"),
        ('{"round": 1, "accuracy": NaN}', "accuracy is nan, not a finite number"),
        ('{"round": 1, "clients": [{}]}', 'clients[0] has no "client"'),
        (
            '{"round": 1, "clients": [{"client": 0, "head_row_norms": ["x"]}]}',
            "clients[0]['head_row_norms'][0] is 'x', not a finite number",
        ),
        ('{"round": 1, "own": 1e999}', "own is inf, not a finite number"),
        ("[" * 200_001, "it holds more than 200,000 lists"),
        ("[" * 100_000, "it is nested deeper than 50 levels"),
        ("\x00", "Expecting value"),
    ],
)
def test_a_damaged_line_is_one_line_that_names_file_line_key_and_value(line: str, fact: str, folder: RunFolder) -> None:
    folder.rounds.write_text(f'{{"round": 1}}\n{line}\n')
    with pytest.raises(RunError) as error:
        folder.read_rounds()
    message = str(error.value)
    assert message.startswith(f"{folder.rounds} is damaged: line 2: {fact}")
    assert message.endswith("Restore it, or delete it to go on without what it holds.")


def test_a_file_that_is_too_long_is_not_read(folder: RunFolder) -> None:
    with folder.rounds.open("w") as file:
        file.write('{"round": 1}\n' * (MAX_LINES + 1))
    with pytest.raises(RunError, match="it has more than 100,000 lines"):
        folder.read_rounds()
    folder.rounds.write_text(f'{{"round": 1, "own": [{"0," * 10**6}0]}}\n')
    with pytest.raises(RunError, match="line 1: it holds more than"):
        folder.read_rounds()


def test_many_values_are_not_held_but_a_stopped_run_goes_on(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_NUMBERS", 20)
    for number in (1, 2, 3):
        folder.append_round({"round": number, "own": list(range(9))})
    with pytest.raises(RunError, match="it holds more than 20 values"):
        folder.read_rounds()
    folder.forget_rounds_after(1)
    assert [record["round"] for record in folder.read_rounds()] == [1]


def test_a_line_without_end_is_not_read(folder: RunFolder) -> None:
    folder.rounds.touch()
    os.truncate(folder.rounds, 2**25)
    with pytest.raises(RunError, match="line 1 is longer than 16,777,216 bytes"):
        folder.read_rounds()


@pytest.mark.parametrize(
    ("found", "fact"),
    [
        ({"command": "rm"}, "command is 'rm', not a list"),
        ({"calibrated": [{"commit": []}]}, "calibrated[0]['commit'] is a list, not text"),
        ({"versions": {"torch": {}}}, "versions['torch'] is an object, not text"),
    ],
)
def test_damaged_provenance_is_one_line(found: Any, fact: str, folder: RunFolder) -> None:
    folder.provenance.write_text(json.dumps(found))
    with pytest.raises(RunError) as error:
        folder.read_provenance()
    remedy = "Delete it to go on without a record of the start."
    assert str(error.value) == f"{folder.provenance} is damaged: {fact}. {remedy}"


def test_half_a_character_is_written_as_json_and_comes_back(folder: RunFolder) -> None:
    folder.write_json(folder.provenance, {"command": ["\ud800", "ü"]})
    assert folder.read_provenance() == {"command": ["\ud800", "ü"]}
