"""The cells of a figure, chosen and drawn."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ccvr.core.errors import DataError, RunError
from ccvr.core.run import RunFolder, write_atomically
from ccvr.experiment.reproduction.cells import CELLS, Cell, Scale
from ccvr.experiment.reproduction.compare import compare
from ccvr.experiment.reproduction.items import Item
from ccvr.experiment.reproduction.trained import Trainings
from ccvr.experiment.setup import prepare
from ccvr.report.comparison import Row
from ccvr.report.figures.panel import Panel
from ccvr.report.palette import look
from ccvr.report.reproduced import DRAWS
from ccvr.report.runs import RunFiles
from ccvr.report.svg import save_bytes

ELSEWHERE = "See to its disk and permissions, or use another --out"


@dataclass(frozen=True)
class Drawing:
    """The panels of a figure, and the cells that it lacks."""

    panels: list[Panel]
    lacks: list[str]

    def save(self, folder: Path, name: str, kinds: Sequence[str]) -> list[Path]:
        """Each panel as a file of each kind: svg, png, pdf."""
        paths = []
        for number, panel in enumerate(self.panels, start=1):
            for kind in kinds:
                path = folder / (f"{name}-{number}.{kind}" if len(self.panels) > 1 else f"{name}.{kind}")
                write_atomically(path, save_bytes(panel.figure, kind), remedy=ELSEWHERE)
                paths.append(path)
        return paths


def draw(
    item: Item, cells: Sequence[str], trainings: Trainings, scale: Scale | None, data_root: Path | None
) -> Drawing:
    """A figure from what there is of some of its cells."""
    wanted = [CELLS[name] for name in item.cells if name in cells]
    found = {
        cell.name: _run(cell, item, trainings, scale) if item.trains else _owners(cell, trainings, data_root)
        for cell in wanted
    }
    runs = {name: run for name, run in found.items() if run is not None}
    rows = compare({key: paper for key, paper in item.entries.items() if key[0] in cells}, trainings, scale)
    lacks = [row.cell for row in rows if row.ours is None] + [name for name in found if name not in runs]
    return Drawing(_panels(item, runs, rows), list(dict.fromkeys(lacks)))


def _panels(item: Item, runs: dict[str, RunFiles], rows: Sequence[Row]) -> list[Panel]:
    try:
        with look():
            return DRAWS[item.id](runs, rows) if runs or rows else []
    except (LookupError, TypeError, ValueError) as error:
        raise RunError(
            f"{item.id} cannot be drawn: the files of a cell do not fit together ({error!r}). Delete its analysis "
            "folder, or its record, and make it again."
        ) from error


def _run(cell: Cell, item: Item, trainings: Trainings, scale: Scale | None) -> RunFiles | None:
    """The first seed of the largest scale that has the analyses of a figure."""
    for each in [scale] if scale else trainings.scales(cell):
        for trained in trainings.seeds(cell, each).values():
            if all(name in trained.files.analyses for name in item.analyses):
                return replace(trained.files, name=f"{cell.name}, {each.label}")
    return None


def _owners(cell: Cell, trainings: Trainings, data_root: Path | None) -> RunFiles | None:
    """Who owns what: from any training of the cell, or drawn now; None without both."""
    for each in trainings.scales(cell):
        for trained in trainings.seeds(cell, each).values():
            return replace(trained.files, name=cell.name)
    try:
        setup = prepare(replace(cell.spec, data=replace(cell.spec.data, root=data_root)))
    except DataError:
        return None
    names = {"class_names": list(setup.dataset.class_names)}
    return RunFiles(cell.name, RunFolder(Path()), {}, names, [], {}, setup.label_counts, {})
