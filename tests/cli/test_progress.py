import io

import pytest
from rich.console import Console

from ccvr.cli.progress import RunProgress, duration


def show(*, terminal: bool, quiet: bool = False, done: int = 0) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=120, color_system=None, legacy_windows=False)
    with RunProgress(console, quiet=quiet) as progress:
        progress.begin(done, 3)
        for number in range(done + 1, 4):
            accuracy = None if number == 2 else 50.0 + number
            progress.round(number, 3, accuracy=accuracy, loss=1 / number, samples=3000, seconds=2.0)
        progress.say("ccvr: [bold]accuracy[/bold] 60.00 %")
    return out.getvalue()


def test_plain_lines_where_there_is_no_terminal() -> None:
    assert show(terminal=False).splitlines() == [
        "round 1/3  accuracy 51.00 %  loss 1.000  1,500 samples/s  2.0 s, 4 s left",
        "round 2/3  loss 0.500  1,500 samples/s  2.0 s, 2 s left",
        "round 3/3  accuracy 53.00 %  loss 0.333  1,500 samples/s  2.0 s, 0 s left",
        "ccvr: [bold]accuracy[/bold] 60.00 %",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.4, "59 s"), (59.6, "1:00 min"), (185, "3:05 min"), (3599, "59:59 min"), (7385, "2:03 h")],
)
def test_a_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize("terminal", [True, False])
def test_the_time_left_is_told_by_the_last_five_rounds_however_long_they_are(terminal: bool) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=120, color_system=None, legacy_windows=False)
    with RunProgress(console, quiet=False) as progress:
        progress.begin(0, 100)
        for number, seconds in enumerate((9999.0, 50.0, 50.0, 60.0, 70.0, 70.0), start=1):
            progress.round(number, 100, accuracy=None, loss=0.5, samples=10, seconds=seconds)
    assert "1:34 h left" in out.getvalue()  # 94 rounds of a minute


def test_a_narrow_window_keeps_what_matters() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, color_system=None, legacy_windows=False)
    with RunProgress(console, quiet=False) as progress:
        progress.begin(0, 100)
        progress.round(12, 100, accuracy=51.23, loss=1.234, samples=500_000, seconds=40.0)
    for fact in ("12/100", "58:40 min left", "accuracy 51.23 %", "12,500 samples"):
        assert fact in out.getvalue(), fact


def test_a_resumed_run_says_so() -> None:
    assert show(terminal=False, done=2).splitlines() == [
        "resuming after round 2 of 3",
        "round 3/3  accuracy 53.00 %  loss 0.333  1,500 samples/s  2.0 s, 0 s left",
        "ccvr: [bold]accuracy[/bold] 60.00 %",
    ]


def test_a_long_line_is_not_wrapped() -> None:
    out = io.StringIO()
    with RunProgress(Console(file=out, width=20), quiet=False) as progress:
        progress.say("word " * 20)
    assert out.getvalue().count("\n") == 1


@pytest.mark.parametrize("terminal", [True, False])
def test_nothing_when_quiet(terminal: bool) -> None:
    assert show(terminal=terminal, quiet=True, done=1) == ""


def test_bars_on_a_terminal() -> None:
    shown = show(terminal=True)
    assert "━" in shown
    assert "3/3" in shown
    assert "0 s left  accuracy 53.00 %  1,500 samples/s  loss 0.333" in shown
    assert "round 3/3" not in shown
    assert "ccvr: [bold]accuracy[/bold] 60.00 %" in shown


def test_the_bar_of_a_resumed_run_starts_where_it_was() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120, color_system=None, legacy_windows=False)
    with RunProgress(console, quiet=False) as progress:
        progress.begin(2, 3)
    assert "2/3" in out.getvalue()
    assert "resuming after round 2 of 3" in out.getvalue()


def test_an_error_ends_the_bar_and_goes_on() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120)
    with pytest.raises(ZeroDivisionError), RunProgress(console, quiet=False):
        1 / 0  # noqa: B018
    assert out.getvalue().endswith("\x1b[?25h")  # the cursor is back


def test_a_round_without_time_is_no_division_by_zero() -> None:
    out = io.StringIO()
    with RunProgress(Console(file=out, width=120), quiet=False) as progress:
        progress.round(1, 1, accuracy=None, loss=0.0, samples=0, seconds=0.0)
    assert out.getvalue() == "round 1/1  loss 0.000  0 samples/s  0.0 s, 0 s left\n"
