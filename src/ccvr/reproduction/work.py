"""What is missing of some tables and figures, and how it is made: cell by cell, the cheapest first."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ccvr.calibration.methods import Calibration
from ccvr.comparison.queue import JobFailed, work
from ccvr.core.budget import Budget
from ccvr.core.errors import CcvrError, DataError, RunError, SpecError, UsageError
from ccvr.core.results import UNCALIBRATED
from ccvr.core.run import RunFolder
from ccvr.core.tables import suggestion
from ccvr.core.trust import Trust
from ccvr.data.catalogue import is_here
from ccvr.experiment.events import HeadScored, RoundDone
from ccvr.experiment.pipeline import calibrate_again
from ccvr.experiment.run_or_resume import run_or_resume, settle
from ccvr.experiment.spec import Spec
from ccvr.inspection.analyze import Failed, analyze, is_stale, refresh
from ccvr.reproduction.cells import CELLS, Cell, Scale, scale_of
from ccvr.reproduction.heads import HeadName, calibration_of, find_label
from ccvr.reproduction.items import ITEMS, Item
from ccvr.reproduction.merge_records import unused
from ccvr.reproduction.run_index import Key, Unusable, key_of, runs_below


@dataclass(frozen=True)
class Job:
    """A cell at one scale and seed, where it lies, and what must be known of it in the end."""

    cell: Cell
    spec: Spec
    folder: RunFolder
    heads: tuple[HeadName, ...] = ()
    analyses: tuple[str, ...] = ()
    blocked: bool = False
    """Whether the folder holds another run."""

    @property
    def name(self) -> str:
        return f"{self.cell.name}, seed {self.spec.seed}, {scale_of(self.spec).label}"

    @property
    def is_trained(self) -> bool:
        return self.is_started and self.folder.results.is_file()

    @property
    def is_started(self) -> bool:
        return self.folder.spec.is_file() and not self.blocked

    @property
    def _is_whole(self) -> bool:
        is_made = self.is_trained and not self.missing_heads() and not self.missing_analyses()
        return is_made and not (self.analyses and is_stale(self.folder))

    def missing_heads(self) -> list[HeadName]:
        """Heads that a trained cell lacks."""
        results = self.folder.read_results()
        return [head for head in self.heads if find_label(head, self.cell_spec, results) is None]

    def missing_analyses(self) -> list[str]:
        return [name for name in self.analyses if not self.folder.analysis(name).is_file()]

    @property
    def is_done(self) -> bool:
        try:
            return self._is_whole
        except RunError:
            return False  # damaged: the error is reported when the job runs

    @property
    def has_data(self) -> bool:
        return is_here(self.spec.data.name, self.spec.data.root)

    @property
    def cell_spec(self) -> Spec:
        """The spec with the cell's own calibration options."""
        return self.cell.at(scale_of(self.spec), self.spec.seed)

    def missing_calibrations(self) -> list[Calibration]:
        taken = set(self.folder.read_results()["accuracy"])
        found = [calibration_of(head, self.cell_spec) for head in self.missing_heads()]
        return [replace(each, label=unused(each.label, taken)) for each in found]


def chosen_cells(items: Sequence[Item], patterns: Sequence[str]) -> list[str]:
    """Cells of the items that a pattern matches, or all; a pattern that matches nothing is a mistake."""
    known = list(dict.fromkeys(cell for item in items for cell in item.cells))
    for pattern in patterns:
        if not any(fnmatchcase(cell, pattern) for cell in known):
            raise UsageError(f'--cells "{pattern}" is not a cell of {_ids(items)}.{suggestion(pattern, known)}')
    return [cell for cell in known if not patterns or any(fnmatchcase(cell, pattern) for pattern in patterns)]


def _ids(items: Sequence[Item]) -> str:
    return ", ".join(item.id for item in items)


Turn = tuple[Scale, int]
"""A scale and a seed."""


def jobs_of(
    items: Sequence[Item],
    cells: Sequence[str],
    turns: Sequence[Turn],
    out: Path,
    change: Callable[[Spec], Spec],
    *,
    trust: Trust = False,
) -> list[Job]:
    """What the items need of these cells at every scale and seed.

    ``change`` sets what decides no result: where data lies, how many workers.
    """
    there = _runs_below(out, trust)
    trained = [item for item in items if item.trains]
    jobs = []
    for scale, seed in turns:
        for name in cells:
            using = [item for item in trained if name in item.cells]
            if not using:
                continue
            cell = CELLS[name]
            spec = cell.at(scale, seed)
            found = there.get(key_of(spec))
            folder = found[0] if found else RunFolder(out / scale.folder / f"{name}-s{seed}", trust)
            heads = dict.fromkeys(head for item in using for head in item.heads(name) if head != UNCALIBRATED)
            analyses = dict.fromkeys(each for item in using for each in item.analyses)
            jobs.append(
                Job(
                    cell,
                    change(found[1] if found else spec),
                    folder,
                    tuple(heads),
                    tuple(analyses),
                    blocked=found is None and folder.spec.is_file(),
                )
            )
    return jobs


def turns_below(out: Path, scale: Scale | None, *, trust: Trust = False) -> list[Turn]:
    """Scales and seeds of the runs below a folder; of one scale, or of all."""
    found = {(each, seed) for _, each, seed in _runs_below(out, trust)}
    return sorted(turn for turn in found if scale in (None, turn[0]))


def _runs_below(out: Path, trust: Trust) -> dict[Key, tuple[RunFolder, Spec]]:
    """Runs by what they train; finished ones before others. What is no run is passed by: ``RunIndex`` names it."""
    found: dict[Key, tuple[RunFolder, Spec]] = {}
    runs = [each for each in runs_below(out, trust=trust) if not isinstance(each, Unusable)]
    for folder, spec in sorted(runs, key=lambda run: not run[0].results.is_file()):
        found.setdefault(key_of(spec), (folder, spec))
    return found


def in_order(jobs: Sequence[Job], seconds: Callable[[Spec], float], *, train: bool) -> list[Job]:
    """What is left to do: first what is trained already, then what was begun; then by seed and cost.

    Of cells whose costs differ by less than a tenth, the one comes first that most tables and figures need. Without
    ``train`` only what is trained already.
    """
    left = [job for job in jobs if not job.is_done and (train or job.is_trained)]
    fresh = [job for job in left if not job.is_trained]
    costs = {id(job): round(10 * math.log(seconds(job.spec))) for job in fresh} if len(fresh) > 1 else {}
    uses = {job.cell.name: sum(job.cell.name in item.cells for item in ITEMS.values() if item.trains) for job in left}

    def turn(job: Job) -> tuple[bool, bool, int, int, int]:
        return not job.is_trained, not job.is_started, job.spec.seed, costs.get(id(job), 0), -uses[job.cell.name]

    return sorted(left, key=turn)


def do_all(jobs: Sequence[Job], budget: Budget) -> Iterator[Any]:
    """Do the jobs one after the other; a head or an analysis that cannot be made is a JobFailed of its own."""
    return work(jobs, _steps, budget)


def _steps(job: Job) -> Iterator[tuple[Any, bool]]:
    """What happens, and whether the work may be interrupted there without loss."""
    if job.is_trained:
        settle(job.folder, job.spec)
    else:
        for event in run_or_resume(job.spec, job.folder.path, trust=job.folder.trust):
            yield event, isinstance(event, RoundDone) and event.round < event.rounds
    yield from _calibrations(job)
    names = job.missing_analyses()
    for done in itertools.chain(refresh(job.folder, new=False), analyze(job.folder, names) if names else ()):
        yield JobFailed(job, done.error) if isinstance(done, Failed) else done, True


def _calibrations(job: Job) -> Iterator[tuple[Any, bool]]:
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
