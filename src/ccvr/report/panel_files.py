"""Panels as files: called what they show, and in the place of those that an earlier call left."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path

from ccvr.core.run import write_atomically, writing
from ccvr.report.figures.panel import Panel
from ccvr.report.svg import save_bytes

MAX_LETTERS = 60
"""Of a file's name: in the longest alphabet they and the rest are still a name that disks take."""
ANY = r"[\w-]+"


def named(figure: str, panels: Iterable[Panel]) -> Iterator[tuple[str, Panel]]:
    """The panels by the names of their files, without ending: the figure, then what sets a panel apart.

    Two of the same name, also for disks that take a for A, are numbered.
    """
    taken: set[str] = set()
    for panel in panels:
        name = re.sub(r"[\W_]+", "-", panel.name.lower()).strip("-")[:MAX_LETTERS].rstrip("-")
        first = f"{figure}-{name}" if name else figure
        chosen = first if first not in taken else next(n for i in count(2) if (n := f"{first}-{i}") not in taken)
        taken.add(chosen)
        yield chosen, panel


def save_panels(
    panels: Iterable[tuple[str, Panel]], folder: Path, kinds: Sequence[str], *, replaces: str = ANY, remedy: str
) -> list[Path]:
    """Each panel as a file of each kind: svg, png, pdf. Of those that an earlier call left, the ones whose names match
    ``replaces`` are removed.
    """
    paths = []
    for name, panel in panels:
        for kind in kinds:
            path = folder / f"{name}.{kind}"
            write_atomically(path, save_bytes(panel.figure, kind), remedy=remedy)
            paths.append(path)
    if kinds:
        _forget_others(folder, [path.name for path in paths], rf"({replaces})\.({'|'.join(kinds)})", remedy)
    return paths


def _forget_others(folder: Path, names: Sequence[str], replaced: str, remedy: str) -> None:
    """Remove what an earlier call wrote, as listed in .written: the folder may hold files of the user's, too."""
    written, ours = folder / ".written", re.compile(replaced)
    with writing(written, remedy):
        before = written.read_bytes().decode(errors="replace").splitlines() if written.is_file() else []
        for name in set(filter(ours.fullmatch, before)) - set(names):
            (folder / name).unlink(missing_ok=True)
    kept = [name for name in before if not ours.fullmatch(name)]
    write_atomically(written, "".join(f"{name}\n" for name in [*kept, *names]).encode(), remedy=remedy)
