"""Analyses of a finished run, kept in it."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ccvr.core.arrays import arrays_to_bytes, read_about, read_arrays
from ccvr.core.errors import AnalysisError, CcvrError
from ccvr.core.files import sha256
from ccvr.core.results import Results
from ccvr.core.run import RunFolder, write_atomically
from ccvr.experiment.finished_run import open_finished_run
from ccvr.inspection.analyses import ANALYSES, OF_HEADS, Analysis, AnalysisResult, Subject

AGAINST = "cka-against"
POINTS = 3_000
MADE_FROM = "made_from"


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
    not and that take a moment. An analysis says which heads it was made from, so a kill before it leaves none behind.
    """
    quick = {"confusion", "norms", *(["separability"] if folder.statistics("full").is_file() else [])} if new else set()
    there = {name for name in OF_HEADS if folder.analysis(name).is_file()}
    again = (quick - there) | {name for name in there if not _is_current(folder, name, unknown=False)}
    wanted = {name: find for name, find in OF_HEADS.items() if name in again}
    if wanted:
        yield from _each(folder, wanted, POINTS)


def is_stale(folder: RunFolder) -> bool:
    """Whether a run has an analysis that says that it was made from other heads."""
    return not all(_is_current(folder, name, unknown=True) for name in OF_HEADS if folder.analysis(name).is_file())


def _is_current(folder: RunFolder, name: str, *, unknown: bool) -> bool:
    """Whether an analysis was made from the heads that the run has; ``unknown`` is of files that do not say."""
    made_from = read_about(folder.analysis(name)).get(MADE_FROM)
    return unknown if made_from is None else made_from == heads_digest(folder, folder.read_results())


def heads_digest(folder: RunFolder, results: Results) -> str:
    """What analyses of heads are made from, in short: the heads, and which of them is deployed."""
    heads = {
        label: sha256(path.read_bytes()) for label in results["accuracy"] if (path := folder.head(label)).is_file()
    }
    return sha256(json.dumps([results["deployed"], heads], sort_keys=True).encode())


def _each(folder: RunFolder, wanted: Mapping[str, Analysis], points: int) -> Iterator[AnalysisEvent]:
    with folder.locked():
        subject = Subject(open_finished_run(folder), points)
        made_from = heads_digest(folder, subject.run.results)
        for name, find in wanted.items():
            started = time.perf_counter()
            try:
                outcome: AnalysisEvent = _kept(folder, name, find(subject), started, made_from)
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


def _kept(folder: RunFolder, name: str, found: AnalysisResult, started: float, made_from: str = "") -> Analyzed:
    again = "See to its disk and permissions, then `ccvr analyze` the run again"
    about = {**found.about, **({MADE_FROM: made_from} if name in OF_HEADS else {})}
    write_atomically(folder.analysis(name), arrays_to_bytes(found.arrays, about), remedy=again)
    return Analyzed(name, found.headline, time.perf_counter() - started)
