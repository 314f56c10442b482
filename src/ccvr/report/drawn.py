"""Figures of runs, drawn: for the page and as files."""

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ccvr.core.errors import RunError
from ccvr.core.run import write_atomically, writing
from ccvr.report.figures.panel import Panel
from ccvr.report.figures.table import FIGURES, Row
from ccvr.report.palette import look
from ccvr.report.runs import RunFiles
from ccvr.report.svg import save_bytes

OURS = re.compile(r"[\w-]+\.(svg|png|pdf)")
ELSEWHERE = "See to its disk and permissions, or name another page: -o FILE"


@dataclass(frozen=True)
class Drawn:
    """One figure and its panels, at least one."""

    row: Row
    panels: tuple[Panel, ...]

    def named(self) -> Iterator[tuple[str, Panel]]:
        """The panels by the names of their files, without ending."""
        for number, panel in enumerate(self.panels, start=1):
            yield self.row.id if len(self.panels) == 1 else f"{self.row.id}-{number}", panel


def draw(runs: Sequence[RunFiles]) -> list[Drawn]:
    """Every figure that the runs have the data for."""
    with look():
        found = [Drawn(row, tuple(_panels(row, runs))) for row in FIGURES]
    return [each for each in found if each.panels]


def _panels(row: Row, runs: Sequence[RunFiles]) -> list[Panel]:
    try:
        return row.draw(runs)
    except (LookupError, TypeError, ValueError) as error:
        raise RunError(
            f'the figure "{row.title}" cannot be drawn: the files of a run do not fit together ({error!r}). '
            "Run `ccvr analyze` on the runs again."
        ) from error


def save_figures(drawn: Sequence[Drawn], folder: Path, kinds: Sequence[str]) -> list[Path]:
    """Each panel as a file of each kind: svg, png, pdf. Files of an earlier report that this one lacks are removed."""
    paths = []
    for each in drawn:
        for name, panel in each.named():
            for kind in kinds:
                path = folder / f"{name}.{kind}"
                write_atomically(path, save_bytes(panel.figure, kind), remedy=ELSEWHERE)
                paths.append(path)
    _forget_others(folder, [path.name for path in paths])
    return paths


def _forget_others(folder: Path, names: Sequence[str]) -> None:
    """Remove what an earlier report wrote. A list says what that was: the folder may hold files of the user's, too."""
    written = folder / ".written"
    with writing(written, ELSEWHERE):
        before = written.read_bytes().decode(errors="replace").splitlines() if written.is_file() else []
        for name in set(filter(OURS.fullmatch, before)) - set(names):
            (folder / name).unlink(missing_ok=True)
        if before and not names:
            written.unlink()
            with contextlib.suppress(OSError):
                folder.rmdir()  # if nothing else is in it
    if names:
        write_atomically(written, "".join(f"{name}\n" for name in names).encode(), remedy=ELSEWHERE)
