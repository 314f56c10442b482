"""ccvr show RUN…"""

import json
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from tyro.conf import Positional

from ccvr.cli.arguments import parse
from ccvr.cli.finished import finished_runs
from ccvr.core.results import personal_rows, shared_line
from ccvr.core.terminal import say
from ccvr.report.runs import read_label_counts
from ccvr.report.tables import owners_table, personal_table, results_table


@dataclass(frozen=True)
class ShowArguments:
    """Runs side by side: accuracy before and after each calibration, gain, worst class, worst client, own models."""

    runs: Positional[tuple[Path, ...]]
    """Run folders."""
    partition: bool = False
    """Show who owns what, too."""
    json: bool = False
    """Print the results as one JSON object by run folder instead."""


def command(argv: list[str]) -> None:
    arguments = parse(ShowArguments, argv, prog="ccvr show")
    finished = finished_runs(arguments.runs, "show")
    results = [(str(folder.path), folder.read_results()) for folder in finished]
    if arguments.json:
        say(*json.dumps(dict(results), indent=2).split("\n"))
        return
    console = Console()
    for folder, (_, result) in zip(finished, results, strict=True):
        if arguments.partition:
            console.print(owners_table(read_label_counts(folder.partition).tolist(), result["class_names"]))
    console.print(results_table(results))
    if any(personal_rows(result) for _, result in results):
        console.print(personal_table(results))
    for path, result in results:
        if line := shared_line(result):
            say(line if len(results) == 1 else f"{path}: {line}")
