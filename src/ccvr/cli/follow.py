"""Show a run's events as they come, and what came out."""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from ccvr.cli.progress import RunProgress
from ccvr.comparison.queue import JobElsewhere, JobFailed, JobStarted, OutOfTime
from ccvr.core.errors import CcvrError, RunError
from ccvr.core.files import MAX_TOML, parse_toml, read_text
from ccvr.core.results import Results, personal_rows, shared_line
from ccvr.core.run import RunFolder
from ccvr.core.terminal import say
from ccvr.core.trust import code_names
from ccvr.experiment.events import (
    ClientsAbsent,
    ClientScored,
    Event,
    Events,
    Finished,
    HeadScored,
    Noted,
    RoundDone,
    Started,
)
from ccvr.experiment.log import log_figures
from ccvr.inspection.analyze import Analyzed, Failed, LeftOut, refresh
from ccvr.report.tables import headline, owners_table, personal_table, results_table


def follow(events: Events, folder: RunFolder, *, quiet: bool, report: bool) -> None:
    """Show a run until it is finished, then bring what is made from its files up to date: analyses, report, figures."""
    console = Console()
    results: Results | None = None
    path = folder.path
    try:
        with contextlib.closing(events), RunProgress(console, quiet=quiet) as progress:
            for event in events:
                show(event, progress)
                results = event.results if isinstance(event, Finished) else results
    except KeyboardInterrupt:
        unfinished = folder.spec.is_file() and not folder.results.is_file()
        go_on = f" Go on with: ccvr resume {path}{_trust_needed(folder)}" if unfinished else ""
        raise KeyboardInterrupt(f"stopped.{go_on}") from None
    assert results is not None, "a run ends with its results"
    is_here = _holds(folder, results)
    page = None
    if is_here:
        _refresh(folder, new=report)
        with _reporting("Figures are not logged"):
            log_figures(folder)
        page = _write_report(folder) if report else None
    if not quiet:
        console.print(results_table([(path.name or str(path), results)]))
        say(headline(results))
        if personal_rows(results):
            console.print(personal_table([(path.name or str(path), results)]))
        if moved := shared_line(results):
            say(moved)
        if page is not None:
            say(f"Report: {page}")
        where = path if is_here else f"{path.absolute()}, on the machine of the SuperLink"
        say(f"Run folder: {where}", f'The model, in Python: ccvr.load("{path}")')


Step = TypeVar("Step")


def runs_followed(
    steps: Iterable[Step], title: Callable[[Step], str | None], *, quiet: bool
) -> Iterator[tuple[Step, RunProgress]]:
    """Show several runs one after the other, on stderr, each below its title.

    Other steps than events of a run are yielded with the progress that shows them.
    """
    console = Console(stderr=True)  # tables alone go to the output
    progress = RunProgress(console, quiet=quiet)
    with contextlib.ExitStack() as bars:
        for step in steps:
            heading = title(step)
            match step:
                case Started():
                    progress.begin(step.round, step.rounds)
                case Noted() | RoundDone() | HeadScored() | ClientScored() | ClientsAbsent() | Finished():
                    show(step, progress)
                case _ if heading is None:
                    yield step, progress
                case _:
                    bars.close()
                    progress = bars.enter_context(RunProgress(console, quiet=quiet))
                    progress.say(heading)


def follow_jobs(steps: Iterable[Any], *, quiet: bool) -> list[JobFailed]:
    """Show jobs until all are done; return those that failed."""
    failures = list[JobFailed]()
    try:
        for step, progress in runs_followed(steps, _job_title, quiet=quiet):
            match step:
                case JobFailed(job, error):
                    failures.append(step)
                    progress.say(f"{job.name}: {error}")
                case JobElsewhere(job):
                    progress.say(f"{job.name}: another process is at it, and it is left to that.")
                case OutOfTime(left):
                    say(f"The budget is spent; runs left: {left}. The same command goes on.", error=True)
                case Analyzed():
                    progress.say(f"{step.name}: {step.headline}, {step.seconds:.1f} s")
                case LeftOut():
                    progress.say(f"{step.name} is left out: {step.reason}")
    except KeyboardInterrupt:
        raise KeyboardInterrupt("stopped. The same command goes on where it was.") from None
    return failures


def _job_title(step: Any) -> str | None:
    match step:
        case JobStarted(job, number, total):
            return f"[{number}/{total}] {job.name}: {job.folder.path}"
    return None


def require_no_failures(failures: Sequence[JobFailed]) -> None:
    """Raise RunError with the first failure."""
    if failures:
        more = f" ({len(failures) - 1} more like it)" if len(failures) > 1 else ""
        raise RunError(f"not all could be made: {failures[0].job.name}: {failures[0].error}{more}")


def _holds(folder: RunFolder, results: Results) -> bool:
    """Whether a folder is of the run with these results: a federation's is where its server is, not always here."""
    found = folder.read_json(folder.results) if folder.results.is_file() else None
    return bool(json.dumps(found, sort_keys=True) == json.dumps(results, sort_keys=True))


def _trust_needed(folder: RunFolder) -> str:
    """The flag that a run needs whose spec names code that is not ours."""
    return " --trust" if any(code_names(parse_toml(read_text(folder.spec, MAX_TOML)))) else ""


def _refresh(folder: RunFolder, *, new: bool) -> None:
    """Bring the analyses of the heads up to date. An error is reported and does not stop the command."""
    with _reporting("Figures are missing"):
        for done in refresh(folder, new=new):
            if isinstance(done, Failed):
                say(f"Figures are missing: {done.name}: {done.error}", error=True)


def _write_report(folder: RunFolder) -> Path | None:
    """The page about a finished run; None if the one that is there is of the same files.

    An error is reported and does not stop the command.
    """
    from ccvr.cli.report import PAGE, write_report  # now: matplotlib is slow to import
    from ccvr.report.page import is_current

    page = None
    with _reporting("No report"):
        page = None if is_current(folder.path / PAGE, folder) else write_report([folder.path])
    return page


@contextlib.contextmanager
def _reporting(what: str) -> Iterator[None]:
    try:
        yield
    except CcvrError as error:
        say(f"{what}: {error}", error=True)


def show(event: Event, progress: RunProgress) -> None:
    match event:
        case Noted():
            progress.say(event.text)
        case Started():
            if not progress.quiet and not event.round:
                progress.console.print(owners_table(event.label_counts, event.class_names))
            progress.begin(event.round, event.rounds)
        case RoundDone():
            progress.round(
                event.round,
                event.rounds,
                accuracy=event.accuracy,
                loss=event.loss,
                samples=event.samples,
                seconds=event.seconds,
            )
        case HeadScored():
            progress.say(f"{event.label}: accuracy {event.accuracy:.2f} %, {event.seconds:.1f} s")
            if event.absent:
                progress.say(f"{event.label}: no client has samples of {', '.join(event.absent)}")
        case ClientScored():
            progress.client(event.label, event.done, event.clients)
        case ClientsAbsent():
            for client, reason in event.clients.items():
                progress.say(f"{event.question}: client {client} is missing ({reason})")
        case Finished():
            pass
