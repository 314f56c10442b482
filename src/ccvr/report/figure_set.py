"""Figures of runs, drawn: for the page and as files."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ccvr.core.errors import RunError
from ccvr.report.figures.panel import Panel
from ccvr.report.figures.table import FIGURES, FigureRow
from ccvr.report.palette import look
from ccvr.report.panel_files import named, save_panels
from ccvr.report.runs import RunFiles
from ccvr.report.svg import inline, num_values

ROOM = 4_500_000
"""Bytes of a page for its figures. Ten runs have 5 MB for all."""
ELSEWHERE = "See to its disk and permissions, or name another page: -o FILE"


@dataclass(frozen=True)
class Drawn:
    """One figure and its panels, at least one."""

    row: FigureRow
    panels: tuple[Panel, ...]

    def named(self) -> Iterator[tuple[str, Panel]]:
        """The panels by the names of their files, without ending; one that stands alone is the figure."""
        alone = len(self.panels) == 1
        yield from named(self.row.id, (replace(each, name="") if alone else each for each in self.panels))


def draw(runs: Sequence[RunFiles]) -> list[Drawn]:
    """Every figure that the runs have the data for."""
    with look():
        found = [Drawn(row, tuple(_panels(row, runs))) for row in FIGURES]
    return [each for each in found if each.panels]


def inlined(drawn: Sequence[Drawn], room: int = ROOM) -> dict[str, list[str]]:
    """Figure → SVG of its panels, in ``room`` together: if need be, those with most values on hover lose them."""
    found = {each.row.id: _svg(each, telling=True) for each in drawn}
    for each in sorted(drawn, key=lambda each: sum(num_values(panel.figure) for panel in each.panels), reverse=True):
        if sum(len(svg.encode()) for panels in found.values() for svg in panels) <= room:
            break
        found[each.row.id] = _svg(each, telling=False)
    return found


def _svg(each: Drawn, *, telling: bool) -> list[str]:
    return [
        inline(panel.figure, f"{each.row.id}-{number}", panel.alt, telling=telling)
        for number, panel in enumerate(each.panels)
    ]


def _panels(row: FigureRow, runs: Sequence[RunFiles]) -> list[Panel]:
    try:
        return row.draw(runs)
    except (LookupError, TypeError, ValueError) as error:
        raise RunError(
            f'the figure "{row.title}" cannot be drawn: the files of a run do not fit together ({error!r}). '
            "Run `ccvr analyze` on the runs again."
        ) from error


def save_figures(drawn: Sequence[Drawn], folder: Path, kinds: Sequence[str]) -> list[Path]:
    """Each panel as a file of each kind. Those that an earlier report left are replaced."""
    return save_panels((each for one in drawn for each in one.named()), folder, kinds, remedy=ELSEWHERE)
