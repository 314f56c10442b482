"""Analyses of a finished run, kept in it."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ccvr.core.arrays import arrays_to_bytes
from ccvr.core.run import RunFolder, write_atomically
from ccvr.experiment.analyses import ANALYSES, Found, Subject
from ccvr.experiment.reopen import reopen

AGAINST = "cka-against"
POINTS = 3_000


@dataclass(frozen=True)
class Analyzed:
    """One analysis is done and kept."""

    name: str
    headline: str
    seconds: float


def analyze(
    folder: RunFolder, names: Sequence[str] = (), *, against: RunFolder | None = None, points: int = POINTS
) -> Iterator[Analyzed]:
    """Run the named analyses, or all; ``against`` is a run, say with iid clients, whose CKA is put beside."""
    wanted = [(name, ANALYSES[name]) for name in names or ANALYSES]
    with folder.locked():
        subject = Subject(reopen(folder), points)
        for name, find in wanted:
            started = time.perf_counter()
            yield _kept(folder, name, find(subject), started)
    if against is not None:
        started = time.perf_counter()
        found = ANALYSES["cka"](Subject(reopen(against), points))
        with folder.locked():
            yield _kept(folder, AGAINST, found, started)


def _kept(folder: RunFolder, name: str, found: Found, started: float) -> Analyzed:
    again = "See to its disk and permissions, then `ccvr analyze` the run again"
    write_atomically(folder.analysis(name), arrays_to_bytes(found.arrays, found.about), remedy=again)
    return Analyzed(name, found.headline, time.perf_counter() - started)
