"""ccvr analyze RUN… [--against IID_RUN]"""

import sys
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from ccvr.cli.arguments import parse
from ccvr.cli.finished import finished_runs
from ccvr.core.errors import UsageError
from ccvr.core.run import RunFolder
from ccvr.experiment.analyze import POINTS, LeftOut, analyze


@dataclass(frozen=True)
class AnalyzeArguments:
    """Look closely at finished runs. What is found is kept in each run, for `ccvr report`."""

    runs: Positional[tuple[Path, ...]]
    """Run folders."""
    only: tuple[str, ...] = ()
    """Of confusion, norms, cka, separability, tsne, inversion; without it all that can be done."""
    against: Path | None = None
    """A run, say with iid clients, whose layers' likeness (CKA) is kept beside each run's own."""
    points: int = POINTS
    """Test samples in the plane (t-SNE), at most 10000."""
    quiet: bool = False
    """Print errors only."""


def command(argv: list[str]) -> None:
    arguments = parse(AnalyzeArguments, argv, prog="ccvr analyze")
    if not 4 <= arguments.points <= 10_000:
        raise UsageError(f"--points is {arguments.points}; give a number from 4 to 10000.")
    against = RunFolder.open(arguments.against) if arguments.against else None
    for folder in finished_runs(arguments.runs, "analyze"):
        for done in analyze(folder, arguments.only, against=against, points=arguments.points):
            if isinstance(done, LeftOut):
                print(f"{folder.path}: {done.name} is left out: {done.reason}", file=sys.stderr)
            elif not arguments.quiet:
                print(f"{folder.path}: {done.name}: {done.headline} ({done.seconds:.1f} s)", flush=True)
