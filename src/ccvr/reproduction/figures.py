"""The cells of a figure, chosen and drawn."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ccvr.core.errors import DataError, RunError
from ccvr.core.results import empty_results
from ccvr.core.run import RunFolder
from ccvr.experiment.setup import prepare
from ccvr.report.figures.panel import Panel, entitle
from ccvr.report.palette import look
from ccvr.report.panel_files import named, save_panels
from ccvr.report.runs import RunFiles
from ccvr.reproduction.cells import CELLS, Cell, Scale
from ccvr.reproduction.comparison import TableRow, compare, method_of, setting_of
from ccvr.reproduction.heads import BEFORE
from ccvr.reproduction.items import Item
from ccvr.reproduction.paper_checks import FINDINGS
from ccvr.reproduction.paper_figures import DRAWS, Plate, Shown
from ccvr.reproduction.run_index import RunIndex

MISFIT = LookupError, TypeError, ValueError
"""Errors of drawing where the files of a run do not fit together."""
REMAKE = "delete its analysis folder, or its record, and make it again"
ELSEWHERE = "See to its disk and permissions, or use another --out"


@dataclass(frozen=True)
class Drawing:
    """The panels of a figure, what the paper sees in it and whether ours show it, and the cells that it lacks."""

    id: str
    panels: list[Panel]
    findings: list[str]
    lacks: list[str]

    def save(self, folder: Path, kinds: Sequence[str]) -> list[Path]:
        """Each panel as a file of each kind: svg, png, pdf; they replace what an earlier call left of the figure."""
        if not self.panels:
            return []
        panels = named(self.id, self.panels)
        return save_panels(panels, folder, kinds, replaces=rf"{self.id}(-[\w-]+)?", remedy=ELSEWHERE)


def described(item: Item, drawing: Drawing, paths: Sequence[Path], *, markdown: bool = False) -> list[str]:
    """A figure in words, line by line: what it shows, what the paper sees in it, its files, what is not there."""
    parts = [panel.alt for panel in drawing.panels] or ["No cell has what it takes."]
    parts += drawing.findings
    parts += [f"Files: {', '.join(map(str, paths))}"] if paths else []
    parts += [f"Not there: {', '.join(drawing.lacks)}"] if drawing.lacks else []
    title = f"{item.id}: {item.title}." + (f" {item.remark}." if item.remark else "")
    if markdown:
        return [f"**{item.id}**{title.removeprefix(item.id)}", "", *(f"- {part}" for part in parts), ""]
    return [title, *(f"  {part}" for part in parts)]


def draw(item: Item, cells: Sequence[str], trainings: RunIndex, scale: Scale | None, data_root: Path | None) -> Drawing:
    """A figure from what there is of some of its cells, at every scale that there is or at one."""
    wanted = [CELLS[name] for name in item.cells if name in cells]
    shown = [
        run
        for cell in wanted
        for run in (_runs(cell, item, trainings, scale) if item.trains else _owners(cell, trainings, data_root))
    ]
    rows = _rows(item, wanted, trainings, scale)
    there = {run.cell for run in shown}
    lacks = [row.cell for row in rows if row.ours is None] + [cell.name for cell in wanted if cell.name not in there]
    with look():
        plates, findings, damaged = _drawn(item, shown, rows)
        panels = [_entitled(plate, item) for plate in plates]
    return Drawing(item.id, panels, findings, list(dict.fromkeys([*lacks, *damaged])))


def _drawn(item: Item, runs: Sequence[Shown], rows: Sequence[TableRow]) -> tuple[list[Plate], list[str], list[str]]:
    """Panels, findings, and a run without which alone they can be made: its files do not fit together."""
    try:
        return (*_attempt(item, runs, rows), [])
    except MISFIT as error:
        for run in runs:
            with contextlib.suppress(*MISFIT):
                rest = [each for each in runs if each is not run]
                return (*_attempt(item, rest, rows), [f"{run.cell} ({run.files.folder.path} is damaged: {REMAKE})"])
        raise RunError(
            f"{item.id} cannot be drawn: the files of several cells do not fit together ({error!r}), of "
            f"{', '.join(str(run.files.folder.path) for run in runs)}. In those that are damaged, {REMAKE}."
        ) from error


def _attempt(item: Item, runs: Sequence[Shown], rows: Sequence[TableRow]) -> tuple[list[Plate], list[str]]:
    plates = DRAWS[item.id](runs, rows) if runs or rows else []
    return plates, [finding.text(runs, rows) for finding in FINDINGS.get(item.id, ()) if plates]


def _entitled(plate: Plate, item: Item) -> Panel:
    """A panel with a title and a description, named like its file."""
    panel, about = plate.panel, " · ".join(filter(None, [plate.about, plate.panel.name]))
    figure = f"Figure {item.id.removeprefix('figure')}: {item.title}"
    entitle(panel.figure, f"Counterpart on CIFAR-10 of {figure}" if item.counterpart else figure, about)
    return Panel(panel.figure, f"{about}: {panel.alt}", f"{_apart(plate.of, item.cells)} {panel.name}")


def _apart(name: str, cells: Sequence[str]) -> str:
    """What the name of a cell has that not all cells of the figure have."""
    shared = set.intersection(*(set(each.split("-")) for each in cells))
    return "-".join(part for part in name.split("-") if part not in shared)


def _rows(item: Item, cells: Sequence[Cell], trainings: RunIndex, scale: Scale | None) -> list[TableRow]:
    """Entries of the figure at every scale that has them, those of a cell on the same seeds; what none has, once."""
    rows: list[TableRow] = []
    for cell in cells:
        entries = {key: paper for key, paper in item.entries.items() if key[0] == cell.name}
        whole = trainings.whole(cell, item.heads(cell.name))
        chosen = [scale] if scale else whole.scales(cell)
        found = [row for each in chosen for row in compare(entries, whole, each) if row.ours]
        there = {(row.cell, row.head) for row in found}
        lacking = {key: paper for key, paper in entries.items() if key not in there}
        own = [*found, *compare(lacking, whole, scale)]
        rows += sorted(own, key=lambda row: list(entries).index((row.cell, row.head)))
    return rows


def _runs(cell: Cell, item: Item, trainings: RunIndex, scale: Scale | None) -> Iterator[Shown]:
    """Of every scale, the largest first, the first seed that has the analyses of a figure."""
    method, setting = method_of(cell, BEFORE), setting_of(cell)
    alike = len({setting_of(CELLS[name]) for name in item.cells}) == 1
    for each in [scale] if scale else trainings.scales(cell):
        for trained in trainings.seeds(cell, each).values():
            if all(name in trained.files.analyses for name in item.analyses):
                files = replace(trained.files, name=method if alike else f"{method}, {setting}")
                yield Shown(cell.name, method, setting, each, files)
                break


def _owners(cell: Cell, trainings: RunIndex, data_root: Path | None) -> list[Shown]:
    """Who owns what, from any training of the cell, or drawn now; nothing without both."""
    for each in trainings.scales(cell):
        for trained in trainings.seeds(cell, each).values():
            return [Shown(cell.name, "", setting_of(cell), None, trained.files)]
    try:
        setup = prepare(replace(cell.spec, data=replace(cell.spec.data, root=data_root)))
    except DataError:
        return []
    nothing = empty_results(setup.dataset.class_names, cell.spec.partition.num_clients)
    files = RunFiles(cell.name, RunFolder(Path()), {}, nothing, [], {}, setup.label_counts, {})
    return [Shown(cell.name, "", setting_of(cell), None, files)]
