"""Show a run's events as they come, and what came out."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from ccvr.core.run import RunFolder
from ccvr.experiment.events import ClientsMissing, Event, Finished, HeadScored, RoundDone, Started
from ccvr.report.progress import RunProgress
from ccvr.report.tables import headline, owners_table, results_table


def follow(events: Iterator[Event], path: Path, *, quiet: bool) -> None:
    console = Console()
    results: dict[str, Any] = {}
    try:
        with RunProgress(console, quiet=quiet) as progress:
            for event in events:
                show(event, progress)
                results = event.results if isinstance(event, Finished) else results
    except KeyboardInterrupt:
        folder = RunFolder(path)
        unfinished = folder.spec.is_file() and not folder.results.is_file()
        go_on = f" Go on with: ccvr resume {path}" if unfinished else ""
        raise KeyboardInterrupt(f"stopped.{go_on}") from None
    if not quiet:
        console.print(results_table([(path.name or str(path), results)]))
        print(headline(results))
        print(f'Run folder: {path}\nThe calibrated model, in Python: ccvr.load("{path}")')


def show(event: Event, progress: RunProgress) -> None:
    match event:
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
        case ClientsMissing():
            for client, reason in event.clients.items():
                progress.say(f"{event.question}: client {client} is missing ({reason})")
        case Finished():
            pass
