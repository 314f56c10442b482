"""Analyses of a finished run, kept in it."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ccvr.core.arrays import arrays_to_bytes, read_arrays
from ccvr.core.errors import AnalysisError, CcvrError
from ccvr.core.run import RunFolder, write_atomically
from ccvr.experiment.finished_run import open_finished_run
from ccvr.inspection.analyses import ANALYSES, OF_HEADS, Analysis, AnalysisResult, Subject

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
    """One analysis cannot be done on this run, and nobody asked for it by its name."""

    name: str
    reason: str


@dataclass(frozen=True)
class Failed:
    """One analysis went wrong, or was asked for and cannot be done. The others go on."""

    name: str
    error: CcvrError


AnalysisEvent = Analyzed | LeftOut | Failed


def analyze(
    folder: RunFolder, names: Sequence[str] = (), *, against: RunFolder | None = None, points: int = POINTS
) -> Iterator[AnalysisEvent]:
    """Run the named analyses, or all that can be done; ``against`` is a run, say with iid clients, whose CKA is put
    beside. It is found once, and kept in that run, too.
    """
    if against is not None:
        against.read_results()  # a run that is not finished is told now, not after an hour
    wanted = {name: ANALYSES[name] for name in names or ANALYSES}
    for outcome in _each(folder, wanted, points):
        match outcome:
            case Failed(name, AnalysisError() as error) if not names:
                yield LeftOut(name, str(error))
            case _:
                yield outcome
    if against is not None:
        yield _beside(folder, against, points)


def refresh(folder: RunFolder, *, new: bool) -> Iterator[AnalysisEvent]:
    """Once a run has other heads: what it has of the analyses of heads, made again; if ``new``, also those that it has
    not and that take a moment.
    """
    quick = {"confusion", "norms", *(["separability"] if folder.statistics("full").is_file() else [])} if new else ()
    wanted = {name: find for name, find in OF_HEADS.items() if folder.analysis(name).is_file() or name in quick}
    if wanted:
        yield from _each(folder, wanted, POINTS)


def _each(folder: RunFolder, wanted: Mapping[str, Analysis], points: int) -> Iterator[AnalysisEvent]:
    with folder.locked():
        subject = Subject(open_finished_run(folder), points)
        for name, find in wanted.items():
            started = time.perf_counter()
            try:
                outcome: AnalysisEvent = _kept(folder, name, find(subject), started)
            except CcvrError as error:
                outcome = Failed(name, error)
            yield outcome


def _beside(folder: RunFolder, against: RunFolder, points: int) -> AnalysisEvent:
    """What the other run has of CKA, or finds now."""
    started = time.perf_counter()
    try:
        if not against.analysis("cka").is_file():
            for done in analyze(against, ["cka"], points=points):
                if isinstance(done, Failed):
                    return Failed(AGAINST, done.error)
        arrays, about = read_arrays(against.analysis("cka"))
        about = {**about, "run": against.path.resolve().name}
        words = f"mean CKA {about['mean'][0]:.2f} (first layer) … {about['mean'][-1]:.2f} (head)"
        with folder.locked():
            return _kept(folder, AGAINST, AnalysisResult(arrays, about, words), started)
    except CcvrError as error:
        return Failed(AGAINST, error)


def _kept(folder: RunFolder, name: str, found: AnalysisResult, started: float) -> Analyzed:
    again = "See to its disk and permissions, then `ccvr analyze` the run again"
    write_atomically(folder.analysis(name), arrays_to_bytes(found.arrays, found.about), remedy=again)
    return Analyzed(name, found.headline, time.perf_counter() - started)
