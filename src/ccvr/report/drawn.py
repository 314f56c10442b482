"""Figures of runs, drawn: for the page and as files."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from ccvr.core.errors import RunError
from ccvr.core.run import write_atomically, writing
from ccvr.report.figures.panel import Panel
from ccvr.report.figures.table import FIGURES, Row
from ccvr.report.palette import look
from ccvr.report.runs import RunFiles
from ccvr.report.svg import inline, num_values, save_bytes

ROOM = 4_500_000
"""Bytes of a page for its figures. Ten runs have 5 MB for all."""
MOST_LETTERS = 60
"""Of a file's name: in the longest alphabet they and the rest are still a name that disks take."""
ELSEWHERE = "See to its disk and permissions, or name another page: -o FILE"


@dataclass(frozen=True)
class Drawn:
    """One figure and its panels, at least one."""

    row: Row
    panels: tuple[Panel, ...]

    def named(self) -> Iterator[tuple[str, Panel]]:
        """The panels by the names of their files, without ending: the figure, then what sets a panel apart.

        Two of the same name, also for disks that take a for A, are numbered.
        """
        taken: set[str] = set()
        for panel in self.panels:
            name = re.sub(r"[\W_]+", "-", panel.name.lower()).strip("-")[:MOST_LETTERS].rstrip("-")
            first = f"{self.row.id}-{name}" if name and len(self.panels) > 1 else self.row.id
            chosen = first if first not in taken else next(n for i in count(2) if (n := f"{first}-{i}") not in taken)
            taken.add(chosen)
            yield chosen, panel


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


def _panels(row: Row, runs: Sequence[RunFiles]) -> list[Panel]:
    try:
        return row.draw(runs)
    except (LookupError, TypeError, ValueError) as error:
        raise RunError(
            f'the figure "{row.title}" cannot be drawn: the files of a run do not fit together ({error!r}). '
            "Run `ccvr analyze` on the runs again."
        ) from error


def save_figures(drawn: Sequence[Drawn], folder: Path, kinds: Sequence[str]) -> list[Path]:
    """Each panel as a file of each kind: svg, png, pdf. Those that an earlier report left are replaced."""
    paths = []
    for each in drawn:
        for name, panel in each.named():
            for kind in kinds:
                path = folder / f"{name}.{kind}"
                write_atomically(path, save_bytes(panel.figure, kind), remedy=ELSEWHERE)
                paths.append(path)
    if kinds:
        _forget_others(folder, [path.name for path in paths], kinds)
    return paths


def _forget_others(folder: Path, names: Sequence[str], kinds: Sequence[str]) -> None:
    """Remove what an earlier report wrote. A list says what that was: the folder may hold files of the user's, too."""
    written, ours = folder / ".written", re.compile(rf"[\w-]+\.({'|'.join(kinds)})")
    with writing(written, ELSEWHERE):
        before = written.read_bytes().decode(errors="replace").splitlines() if written.is_file() else []
        for name in set(filter(ours.fullmatch, before)) - set(names):
            (folder / name).unlink(missing_ok=True)
    kept = [name for name in before if not ours.fullmatch(name)]
    write_atomically(written, "".join(f"{name}\n" for name in [*kept, *names]).encode(), remedy=ELSEWHERE)
