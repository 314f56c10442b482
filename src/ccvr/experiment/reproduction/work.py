"""What is missing of some tables and figures, and how it is made: cell by cell, the cheapest first."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from ccvr.calibration.spec import UNCALIBRATED, Calibration
from ccvr.core.errors import CcvrError, DataError, RunError, SpecError, UsageError
from ccvr.core.run import RunFolder
from ccvr.core.tables import suggestion
from ccvr.experiment.analyze import Analyzed, Failed, LeftOut, analyze
from ccvr.experiment.bring import bring
from ccvr.experiment.events import Event, HeadScored, RoundDone
from ccvr.experiment.pipeline import calibrate_again
from ccvr.experiment.reproduction.budget import Budget
from ccvr.experiment.reproduction.cells import CELLS, Cell, Scale, identity, scale_of
from ccvr.experiment.reproduction.heads import calibration_of, find_label
from ccvr.experiment.reproduction.items import Item
from ccvr.experiment.reproduction.trained import run_folders
from ccvr.experiment.spec import Spec, read_spec


@dataclass(frozen=True)
class Job:
    """A cell at one scale and seed, where it lies, and what must be known of it in the end."""

    cell: Cell
    spec: Spec
    folder: RunFolder
    heads: tuple[str, ...] = ()
    analyses: tuple[str, ...] = ()
    blocked: bool = False
    """Whether another run lies where this one should."""

    @property
    def name(self) -> str:
        return f"{self.cell.name}, seed {self.spec.seed}, {scale_of(self.spec).label}"

    @property
    def is_trained(self) -> bool:
        return self.folder.results.is_file() and not self.blocked

    @property
    def is_started(self) -> bool:
        return self.folder.spec.is_file() and not self.blocked

    def missing_heads(self) -> list[str]:
        """Heads that a trained cell lacks."""
        results = self.folder.read_results()
        return [head for head in self.heads if find_label(head, self._as_in_the_paper, results) is None]

    def missing_analyses(self) -> list[str]:
        return [name for name in self.analyses if not self.folder.analysis(name).is_file()]

    @property
    def is_done(self) -> bool:
        return self.is_trained and not self.missing_heads() and not self.missing_analyses()

    @property
    def _as_in_the_paper(self) -> Spec:
        """The cell's own calibration options, whatever the run's are."""
        return self.cell.at(scale_of(self.spec), self.spec.seed)

    def missing_calibrations(self) -> list[Calibration]:
        taken = set(self.folder.read_results()["accuracy"])
        found = [calibration_of(head, self._as_in_the_paper) for head in self.missing_heads()]
        return [replace(each, label=_unused(each.label, taken)) for each in found]


def _unused(label: str, taken: set[str]) -> str:
    """The label, with a number where the run has another head of that name."""
    names = itertools.chain([label], (f"{label}-{number}" for number in itertools.count(2)))
    return next(name for name in names if name not in taken)


@dataclass(frozen=True)
class JobStarted:
    job: Job
    number: int
    total: int


@dataclass(frozen=True)
class JobFailed:
    job: Job
    error: CcvrError


@dataclass(frozen=True)
class OutOfTime:
    """The budget is spent; ``left`` jobs are not done."""

    left: int


Step = Event | Analyzed | LeftOut | JobStarted | JobFailed | OutOfTime


def chosen_cells(items: Sequence[Item], patterns: Sequence[str]) -> list[str]:
    """Cells of the items that a pattern matches, or all; a pattern that matches nothing is a mistake."""
    known = list(dict.fromkeys(cell for item in items for cell in item.cells))
    for pattern in patterns:
        if not any(fnmatchcase(cell, pattern) for cell in known):
            raise UsageError(f'--cells "{pattern}" is no cell of {_ids(items)}.{suggestion(pattern, known)}')
    return [cell for cell in known if not patterns or any(fnmatchcase(cell, pattern) for pattern in patterns)]


def _ids(items: Sequence[Item]) -> str:
    return ", ".join(item.id for item in items)


Turn = tuple[Scale, int]
"""A scale and a seed."""


def jobs_of(
    items: Sequence[Item], cells: Sequence[str], turns: Sequence[Turn], out: Path, change: Callable[[Spec], Spec]
) -> list[Job]:
    """What the items need of these cells at every scale and seed.

    ``change`` sets what decides no result: where data lies, how many workers.
    """
    there = _runs_below(out)
    trained = [item for item in items if item.trains]
    jobs = []
    for scale, seed in turns:
        for name in cells:
            using = [item for item in trained if name in item.cells]
            if not using:
                continue
            cell = CELLS[name]
            spec = cell.at(scale, seed)
            found = there.get((identity(spec), scale, seed))
            folder = found or RunFolder(out / scale.folder / f"{name}-s{seed}")
            heads = dict.fromkeys(head for item in using for head in item.heads(name) if head != UNCALIBRATED)
            analyses = dict.fromkeys(each for item in using for each in item.analyses)
            jobs.append(
                Job(
                    cell,
                    read_spec(found.spec) if found else change(spec),
                    folder,
                    tuple(heads),
                    tuple(analyses),
                    blocked=found is None and folder.spec.is_file(),
                )
            )
    return jobs


def turns_below(out: Path, scale: Scale | None) -> list[Turn]:
    """Scales and seeds of the runs below a folder; of one scale, or of all."""
    found = {(each, seed) for _, each, seed in _runs_below(out)}
    return sorted(turn for turn in found if scale in (None, turn[0]))


def _runs_below(out: Path) -> dict[tuple[object, Scale, int], RunFolder]:
    """Runs by what they train; finished ones before others."""
    found: dict[tuple[object, Scale, int], RunFolder] = {}
    for folder in sorted(run_folders(out), key=lambda folder: not folder.results.is_file()):
        spec = read_spec(folder.spec)
        found.setdefault((identity(spec), scale_of(spec), spec.seed), folder)
    return found


def in_order(jobs: Sequence[Job], seconds: Callable[[Spec], float], *, train: bool) -> list[Job]:
    """What is left to do: first what is trained already, then what was begun; then by seed and cost.

    Without ``train`` only what is trained already.
    """
    left = [job for job in jobs if not job.is_done and (train or job.is_trained)]
    fresh = [job for job in left if not job.is_trained]
    costs = {id(job): seconds(job.spec) for job in fresh} if len(fresh) > 1 else {}
    return sorted(left, key=lambda job: (not job.is_trained, not job.is_started, job.spec.seed, costs.get(id(job), 0)))


def work(jobs: Sequence[Job], budget: Budget) -> Iterator[Step]:
    """Do the jobs one after the other; what cannot be done is told and left. Stops where it can go on later."""
    for number, job in enumerate(jobs, start=1):
        if budget.is_spent():
            yield OutOfTime(len(jobs) - number + 1)
            return
        yield JobStarted(job, number, len(jobs))
        try:
            for step, may_stop in _steps(job):
                yield step
                if may_stop and budget.is_spent() and not job.is_done:
                    yield OutOfTime(len(jobs) - number + 1)
                    return
        except CcvrError as error:
            yield JobFailed(job, error)


def _steps(job: Job) -> Iterator[tuple[Step, bool]]:
    """What happens, and whether the work may be interrupted there without loss."""
    if not job.is_trained:
        for event in bring(job.spec, job.folder.path):
            yield event, isinstance(event, RoundDone) and event.round < event.rounds
    yield from _calibrations(job)
    names = job.missing_analyses()
    for done in analyze(job.folder, names) if names else ():
        yield JobFailed(job, done.error) if isinstance(done, Failed) else done, True


def _calibrations(job: Job) -> Iterator[tuple[Step, bool]]:
    """Fit the missing heads; one that cannot be fitted does not keep those behind it from it."""
    missing = job.missing_calibrations()
    while missing:
        fitted = 0
        try:
            for event in calibrate_again(job.folder, missing):
                fitted += isinstance(event, HeadScored)
                yield event, True
        except (RunError, DataError, SpecError):
            raise
        except CcvrError as error:
            yield JobFailed(job, error), True
        missing = missing[fitted + 1 :]
