"""Analyses of a finished run, kept in it."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ccvr.core.arrays import arrays_to_bytes, read_arrays
from ccvr.core.errors import AnalysisError
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


@dataclass(frozen=True)
class LeftOut:
    """One analysis cannot be done on this run."""

    name: str
    reason: str


def analyze(
    folder: RunFolder, names: Sequence[str] = (), *, against: RunFolder | None = None, points: int = POINTS
) -> Iterator[Analyzed | LeftOut]:
    """Run the named analyses, or all that can be done; ``against`` is a run, say with iid clients, whose CKA is put
    beside. It is found once, and kept in that run, too.
    """
    if against is not None:
        against.read_results()  # a run that is not finished is told now, not after an hour
    wanted = [(name, ANALYSES[name]) for name in names or ANALYSES]
    with folder.locked():
        subject = Subject(reopen(folder), points)
        for name, find in wanted:
            started = time.perf_counter()
            try:
                yield _kept(folder, name, find(subject), started)
            except AnalysisError as error:
                if names:
                    raise
                yield LeftOut(name, str(error))
    if against is not None:
        started = time.perf_counter()
        found = _cka_of(against, points)
        with folder.locked():
            yield _kept(folder, AGAINST, found, started)


def _cka_of(folder: RunFolder, points: int) -> Found:
    """What the run has of it, or finds now."""
    if not folder.analysis("cka").is_file():
        list(analyze(folder, ["cka"], points=points))
    arrays, about = read_arrays(folder.analysis("cka"))
    about = {**about, "run": folder.path.resolve().name}
    return Found(arrays, about, f"mean CKA {about['mean'][0]:.2f} (first layer) … {about['mean'][-1]:.2f} (head)")


def _kept(folder: RunFolder, name: str, found: Found, started: float) -> Analyzed:
    again = "See to its disk and permissions, then `ccvr analyze` the run again"
    write_atomically(folder.analysis(name), arrays_to_bytes(found.arrays, found.about), remedy=again)
    return Analyzed(name, found.headline, time.perf_counter() - started)
