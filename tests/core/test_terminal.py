"""What is printed steers no terminal and adds no line."""

import pytest

from ccvr.core.terminal import MAX_LINE, cell, say

HOSTILE = "\x1b]0;taken\x07 \x9b31m a\nb \ud800 \u202e \u2066"


def test_every_argument_is_one_printable_line(capsys: pytest.CaptureFixture[str]) -> None:
    say(HOSTILE, 7)
    say(HOSTILE, error=True)
    out, err = capsys.readouterr()
    assert out.splitlines() == [r"\x1b]0;taken\x07 \x9b31m a\nb \ud800 \u202e \u2066", "7"]
    assert err.isprintable() is False
    assert err.removesuffix("\n").isprintable()


def test_a_line_has_a_bound(capsys: pytest.CaptureFixture[str]) -> None:
    say("x" * 10 * MAX_LINE)
    assert len(capsys.readouterr().out) < MAX_LINE + 10


def test_a_cell_is_one_line() -> None:
    assert cell(HOSTILE).isprintable()
    assert cell(1.5) == "1.5"
