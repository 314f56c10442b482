"""ccvr resume RUN"""

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from ccvr.cli.arguments import parse
from ccvr.cli.engines import go_on
from ccvr.cli.follow import follow
from ccvr.core.run import RunFolder


@dataclass(frozen=True)
class ResumeArguments:
    """Go on with a run that was stopped or killed. It ends in the same bits as one that was left alone."""

    run: Positional[Path]
    """The run folder."""
    quiet: bool = False
    """Print errors only."""
    report: bool = True
    """Write report.html at the end; --no-report leaves it out."""


def command(argv: list[str]) -> None:
    arguments = parse(ResumeArguments, argv, prog="ccvr resume")
    events = go_on(RunFolder.open(arguments.run))
    follow(events, arguments.run, quiet=arguments.quiet, report=arguments.report)
