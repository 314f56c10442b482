"""ccvr resume RUN"""

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from ccvr.cli.arguments import parse, trust_of
from ccvr.cli.engines import go_on
from ccvr.cli.follow import follow
from ccvr.core.run import RunFolder


@dataclass(frozen=True)
class ResumeArguments:
    """Go on with a run that was stopped or killed. It ends in the same bits as one that was left alone."""

    run: Positional[Path]
    """The run folder."""
    trust: bool = False
    """Import code of others that the files of the run name, as package.module:name (docs/extending.md)."""
    quiet: bool = False
    """Print errors only."""
    report: bool = True
    """Write report.html at the end; --no-report leaves it out."""


def command(argv: list[str]) -> None:
    arguments = parse(ResumeArguments, argv, prog="ccvr resume")
    folder = RunFolder.open(arguments.run, trust=trust_of(argv))
    follow(go_on(folder), folder, quiet=arguments.quiet, report=arguments.report)
