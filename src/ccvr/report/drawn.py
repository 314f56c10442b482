"""Figures of runs, drawn: for the page and as files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ccvr.core.errors import RunError
from ccvr.core.run import write_atomically
from ccvr.report.figures.panel import Panel
from ccvr.report.figures.table import FIGURES, Row
from ccvr.report.palette import look
from ccvr.report.runs import RunFiles
from ccvr.report.svg import save_bytes


@dataclass(frozen=True)
class Drawn:
    """One figure and its panels, at least one."""

    row: Row
    panels: tuple[Panel, ...]


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
    """Each panel as a file of each kind: svg, png, pdf."""
    paths = []
    for each in drawn:
        for number, panel in enumerate(each.panels, start=1):
            name = each.row.id if len(each.panels) == 1 else f"{each.row.id}-{number}"
            for kind in kinds:
                path = folder / f"{name}.{kind}"
                write_atomically(path, save_bytes(panel.figure, kind))
                paths.append(path)
    return paths
