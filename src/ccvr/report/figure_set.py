"""Figures of runs, drawn: for the page, as files and as pixels."""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from ccvr.core.arrays import Array
from ccvr.core.errors import RunError
from ccvr.report.figures.clients import owners
from ccvr.report.figures.panel import Panel
from ccvr.report.figures.table import FIGURES, FigureRow
from ccvr.report.palette import look
from ccvr.report.panel_files import named, save_panels
from ccvr.report.runs import RunFiles, read_runs
from ccvr.report.svg import inline, num_values, save_bytes

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


def draw(runs: Sequence[RunFiles], rows: Sequence[FigureRow] = FIGURES) -> list[Drawn]:
    """Every figure of the rows that the runs have the data for."""
    with look():
        found = [Drawn(row, tuple(_panels(row, runs))) for row in rows]
    return [each for each in found if each.panels]


def inlined(drawn: Sequence[Drawn], room: int = ROOM) -> dict[str, list[str]]:
    """Figure → SVG of its panels, in ``room`` together: if need be, those with most values on hover lose them."""
    found = {each.row.id: _svg(each, values=True) for each in drawn}
    for each in sorted(drawn, key=lambda each: sum(num_values(panel.figure) for panel in each.panels), reverse=True):
        if sum(len(svg.encode()) for panels in found.values() for svg in panels) <= room:
            break
        found[each.row.id] = _svg(each, values=False)
    return found


def _svg(each: Drawn, *, values: bool) -> list[str]:
    return [
        inline(panel.figure, f"{each.row.id}-{number}", panel.alt, values=values)
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


def label_distribution(label_counts: Sequence[Sequence[int]], class_names: Sequence[str]) -> Array:
    """Clients × classes: training samples. [H, W, 3] uint8."""
    with look():
        return pixels(owners(np.array(label_counts), class_names))


def figures_of(run: Path) -> Iterator[tuple[str, Array]]:
    """Every figure that a finished run has the data for: section/id, and [H, W, 3] uint8."""
    for each in draw(read_runs([run])):
        for name, panel in each.named():
            yield f"{each.row.section}/{name}", pixels(panel.figure)


def pixels(figure: Figure) -> Array:
    """The figure on white, [H, W, 3] uint8."""
    return np.asarray(Image.open(io.BytesIO(save_bytes(figure, "png"))).convert("RGB"))
