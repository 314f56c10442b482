"""ccvr analyze RUN… [--against IID_RUN]"""

import sys
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from ccvr.cli.arguments import parse, trust_of
from ccvr.cli.finished import finished_runs
from ccvr.core.errors import CcvrError, UsageError
from ccvr.core.run import RunFolder
from ccvr.core.terminal import say
from ccvr.inspection.analyses import ANALYSES
from ccvr.inspection.analyze import POINTS, Analyzed, Failed, LeftOut, analyze


@dataclass(frozen=True)
class AnalyzeArguments:
    """Analyse finished runs. The results are kept in each run, for `ccvr report`."""

    runs: Positional[tuple[Path, ...]]
    """Run folders."""
    only: tuple[str, ...] = ()
    """Of confusion, norms, cka, separability, tsne, inversion; without it all that can be done."""
    against: Path | None = None
    """A run, for example with iid clients, whose CKA by layer is kept beside each run's own."""
    points: int = POINTS
    """Test samples in the plane (t-SNE), at most 10000."""
    trust: bool = False
    """Import code of others that the files of the run name, as package.module:name (docs/extending.md)."""
    quiet: bool = False
    """Print errors only."""


def command(argv: list[str]) -> None:
    arguments = parse(AnalyzeArguments, argv, prog="ccvr analyze")
    if not 4 <= arguments.points <= 10_000:
        raise UsageError(f"--points is {arguments.points}; give a number from 4 to 10000.")
    for name in arguments.only:
        ANALYSES[name]  # an unknown one is an error before anything runs
    trust = trust_of(argv)
    against = RunFolder.open(arguments.against, trust=trust) if arguments.against else None
    if against is not None:
        against.read_results()  # so is a run that is not finished
    folders = finished_runs(arguments.runs, "analyze", trust=trust)
    failures = [_failures(folder, arguments, against) for folder in folders]
    if any(failures):
        sys.exit(2)


def _failures(folder: RunFolder, arguments: AnalyzeArguments, against: RunFolder | None) -> int:
    """Analyse one run, print the results, and return the number of failures. Other runs go on."""
    failures = 0
    try:
        for done in analyze(folder, arguments.only, against=against, points=arguments.points):
            match done:
                case Failed():
                    failures += 1
                    say(f"{folder.path}: {done.name} failed: {done.error}", error=True)
                case LeftOut():
                    say(f"{folder.path}: {done.name} is left out: {done.reason}", error=True)
                case Analyzed() if not arguments.quiet:
                    say(f"{folder.path}: {done.name}: {done.headline} ({done.seconds:.1f} s)")
    except CcvrError as error:
        failures += 1
        say(f"{folder.path} cannot be analysed: {error}", error=True)
    return failures
