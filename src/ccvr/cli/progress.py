"""Progress of a run: bars on a terminal, plain lines elsewhere, silence on request."""

import statistics
from collections import deque
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from ccvr.core.errors import printable
from ccvr.core.terminal import MAX_LINE, cell

BESIDE = 28
"""Width of the bar, the count and the time elapsed."""
RECENT = 5
"""Rounds from which the time left is estimated."""


def duration(seconds: float) -> str:
    """45 s, 3:05 min, 2:03 h."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60}:{whole % 60:02} min" if whole < 3600 else f"{whole // 3600}:{whole // 60 % 60:02} h"


class RunProgress:
    """Shows rounds, and clients, as they end. Use as a context manager."""

    def __init__(self, console: Console, *, quiet: bool) -> None:
        self.console = console
        self.quiet = quiet
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        if console.is_terminal and not quiet:
            self._bar = Progress(
                BarColumn(bar_width=8),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[facts]}", markup=False),
                console=console,
            )

    def __enter__(self) -> "RunProgress":
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def begin(self, done: int, rounds: int) -> None:
        if done:
            self.say(f"resuming after round {done} of {rounds}")
        if self._bar:
            self._task = self._bar.add_task("", total=rounds, completed=done, facts="")

    def round(
        self, number: int, rounds: int, *, accuracy: float | None, loss: float, samples: int, seconds: float
    ) -> None:
        score = [] if accuracy is None else [f"accuracy {accuracy:.2f} %"]
        fit, speed = f"loss {loss:.3f}", f"{samples / max(seconds, 1e-9):,.0f} samples/s"
        self._recent.append(seconds)
        left = f"{duration(statistics.mean(self._recent) * (rounds - number))} left"
        if self._bar and self._task is not None:
            facts = [left, *score, speed, fit]
            while len("  ".join(facts)) > self.console.width - BESIDE and len(facts) > 1:
                facts.pop()
            self._bar.update(self._task, completed=number, facts="  ".join(facts))
        else:
            self.say("  ".join([f"round {number}/{rounds}", *score, fit, speed, f"{seconds:.1f} s, {left}"]))

    def client(self, label: str, number: int, clients: int) -> None:
        """One more client is done; without a bar, a line for each fifth of them."""
        if self._bar:
            if number == 1:
                self._task = self._bar.add_task("", total=clients, facts=cell(label))
            if self._task is not None:
                self._bar.update(self._task, completed=number)
        elif 5 * number // clients > 5 * (number - 1) // clients:
            self.say(f"{label}: client {number}/{clients}")

    def say(self, line: str) -> None:
        """One line, above the bars where there are any."""
        if not self.quiet:
            self.console.print(printable(line, MAX_LINE), markup=False, highlight=False, soft_wrap=True)
