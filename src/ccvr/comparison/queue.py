"""Several runs one after the other, within a time budget."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ccvr.core.budget import Budget
from ccvr.core.errors import CcvrError, RunInUse
from ccvr.core.run import RunFolder


class Job(Protocol):
    """Work on one run folder."""

    @property
    def name(self) -> str: ...

    @property
    def folder(self) -> RunFolder: ...

    @property
    def is_done(self) -> bool: ...


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
class JobElsewhere:
    """Another process does this job."""

    job: Job


@dataclass(frozen=True)
class OutOfTime:
    """The budget is spent; ``left`` jobs are not done."""

    left: int


J = TypeVar("J", bound=Job)
Steps = Callable[[J], Iterable[tuple[Any, bool]]]
"""What happens in a job, step by step, and whether the work may be interrupted there without loss."""


def work(jobs: Sequence[J], steps: Steps[J], budget: Budget) -> Iterator[Any]:
    """Do the jobs one after the other; a job that fails is reported and left. Stops where the work can be continued.

    Yields JobStarted, JobFailed, JobElsewhere and OutOfTime beside the jobs' own steps.
    """
    for number, job in enumerate(jobs, start=1):
        if budget.is_spent():
            yield OutOfTime(len(jobs) - number + 1)
            return
        yield JobStarted(job, number, len(jobs))
        try:
            for step, may_stop in steps(job):
                yield step
                if may_stop and budget.is_spent() and not job.is_done:
                    yield OutOfTime(len(jobs) - number + 1)
                    return
        except RunInUse:
            yield JobElsewhere(job)
        except CcvrError as error:
            yield JobFailed(job, error)
