"""ccvr report RUN… [-o FILE]"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from ccvr.cli.arguments import parse
from ccvr.cli.finished import finished_runs
from ccvr.core.errors import RunError
from ccvr.core.run import write_atomically
from ccvr.core.terminal import say
from ccvr.report.figure_set import ELSEWHERE, draw, save_figures
from ccvr.report.page import page
from ccvr.report.runs import read_runs

logging.getLogger("matplotlib").setLevel(logging.ERROR)  # no remarks on fonts and caches

PAGE = "report.html"
Kind = Literal["svg", "png", "pdf"]


@dataclass(frozen=True)
class ReportArguments:
    """One page about finished runs: what calibration brought, and every figure that the runs have the data for."""

    runs: Positional[tuple[Path, ...]]
    """Run folders. `ccvr analyze` adds to what can be drawn."""
    out: Annotated[Path | None, arg(aliases=("-o",))] = None
    """The page; without it RUN/report.html for one run, report.html here for several."""
    figures: tuple[Kind, ...] = ()
    """Keep the figures as files of these kinds, too: of one run in RUN/figures, of several in PAGE-figures beside
    PAGE.html. They take the place of files of these kinds that an earlier report left there."""
    quiet: bool = False
    """Print errors only."""


def command(argv: list[str]) -> None:
    arguments = parse(ReportArguments, argv, prog="ccvr report")
    runs = [folder.path for folder in finished_runs(arguments.runs, "report")]
    path = write_report(runs, arguments.out, kinds=arguments.figures)
    if not arguments.quiet:
        say(f"Report: {path}")


def write_report(runs: Sequence[Path], out: Path | None = None, *, kinds: Sequence[Kind] = ()) -> Path:
    """Write the page about the runs and return its path."""
    path = out or (runs[0] / PAGE if len(runs) == 1 else Path(PAGE))
    if path.is_dir():
        raise RunError(f"{path} is a folder. Name a file: -o {path / 'report.html'}")
    found = read_runs(runs)
    drawn = draw(found)
    write_atomically(path, page(found, drawn).encode(), remedy=ELSEWHERE)
    folder = runs[0] / "figures" if len(runs) == 1 else path.with_name(f"{path.stem}-figures")
    save_figures(drawn, folder, kinds)
    return path
