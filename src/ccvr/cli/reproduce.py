"""ccvr reproduce [ID…] [--cells PATTERN…] [--seeds N] [--scale SCALE] [--budget TIME]"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from rich.console import Console
from tyro.conf import Positional, arg

from ccvr.cli.arguments import parse
from ccvr.cli.follow import show
from ccvr.core.errors import RunError, UsageError
from ccvr.experiment.analyze import Analyzed, LeftOut
from ccvr.experiment.events import Started
from ccvr.experiment.reproduction.budget import Budget, parse_duration
from ccvr.experiment.reproduction.cells import SCALES, Scale
from ccvr.experiment.reproduction.claims import judge
from ccvr.experiment.reproduction.compare import compare
from ccvr.experiment.reproduction.figures import draw, told
from ccvr.experiment.reproduction.items import ITEMS, Item
from ccvr.experiment.reproduction.listing import Rates, cell_listing, listing
from ccvr.experiment.reproduction.record import record
from ccvr.experiment.reproduction.trained import Trainings
from ccvr.experiment.reproduction.work import (
    Job,
    JobFailed,
    JobStarted,
    OutOfTime,
    Step,
    chosen_cells,
    in_order,
    jobs_of,
    turns_below,
    work,
)
from ccvr.experiment.spec import Spec
from ccvr.report.comparison import comparison
from ccvr.report.progress import RunProgress
from ccvr.report.sheet import Sheet, show_sheet

logging.getLogger("matplotlib").setLevel(logging.ERROR)  # its remarks on fonts and caches help nobody here

ABOUT = f"""The paper, table by table: train what is missing, then print it beside the published numbers.

Ids: {", ".join(ITEMS)}. A cell is a run folder that tables share. Stopped at any moment, the same command goes on."""


@dataclass(frozen=True)
class ReproduceArguments:
    ids: Positional[tuple[str, ...]] = ()
    """Tables and figures: table2, figure7, …"""
    list: bool = False
    """Show every id with its cells and what they cost on this machine; train nothing."""
    claims: bool = False
    """Say which of the paper's claims hold, on our numbers and on its own; train nothing."""
    record: bool = False
    """Write a small file about every finished run below --out into --results."""
    cells: tuple[str, ...] = ()
    """Only cells whose names match a pattern: "cifar10-a0.1-*"."""
    seeds: int = 1
    """Train seeds 0 … N − 1 of each cell (the paper: 3)."""
    scale: str | None = None
    """Rounds × local epochs: paper 100 × 10, half 50 × 10, quick 10 × 5. Without it paper is trained, and each number
    is shown at the largest scale that there is."""
    budget: str | None = None
    """Stop after this time: 2h, 90m, 1h30m; 0 does nothing but show what is there."""
    train: bool = True
    """--no-train: only calibrate and analyze what is trained already, of any seed and, without --scale, any scale."""
    format: Literal["terminal", "markdown", "csv", "latex"] = "terminal"
    """How tables are printed."""
    figures: tuple[Literal["svg", "png", "pdf"], ...] = ("svg",)
    """Kinds of files for figures, in OUT/figures. They take the place of files of these kinds that an earlier call left
    there of the same figures; without a kind figures are told in words alone."""
    out: Path = Path("reproduction")
    """Folder of the cells: OUT/SCALE/CELL-sSEED. Runs below it count, whatever they are called."""
    results: Path = Path("results")
    """Folder of records; they stand in for runs that are not below --out."""
    root: Annotated[Path | None, arg(name="data.root")] = None
    """Folder that holds the data sets; without it $CCVR_DATA, then the user's cache folder."""
    workers: int | None = None
    """Processes that train clients; without it as many as there are cores."""
    quiet: bool = False
    """No progress; tables and errors only."""

    @property
    def chosen_scale(self) -> Scale | None:
        return SCALES[self.scale] if self.scale else None

    def spec(self, spec: Spec) -> Spec:
        """The spec with what decides no result."""
        return replace(spec, workers=self.workers, data=replace(spec.data, root=self.root))


def command(argv: list[str]) -> None:
    arguments = parse(ReproduceArguments, argv, prog="ccvr reproduce", about=ABOUT)
    if not (arguments.ids or arguments.list or arguments.claims or arguments.record):
        raise UsageError(f"nothing asked for. Give --list, --claims, --record, or ids: {', '.join(ITEMS)}.")
    if arguments.seeds < 1:
        raise UsageError(f"--seeds is {arguments.seeds}; give at least 1.")
    items = [ITEMS[name] for name in dict.fromkeys(arguments.ids)] or (list(ITEMS.values()) if arguments.list else [])
    if arguments.cells and not (items or arguments.record):
        raise UsageError("--cells chooses among the cells of tables and figures. Give ids, too.")
    cells = chosen_cells(items, arguments.cells) if items else []
    seconds = parse_duration(arguments.budget) if arguments.budget is not None else None
    if arguments.list:
        for sheet in _listing(arguments, items, cells):
            show_sheet(sheet, arguments.format)
        return
    failures = _work(arguments, items, cells, Budget(seconds)) if items else []
    if arguments.record:
        _record(arguments)
    trainings = Trainings.read(arguments.out, arguments.results)
    for item in items:
        _show(arguments, item, cells, trainings)
    if arguments.claims:
        for sheet in judge(trainings, arguments.chosen_scale):
            show_sheet(sheet, arguments.format)
    if failures:
        first = failures[0]
        more = f" ({len(failures) - 1} more like it)" if len(failures) > 1 else ""
        raise RunError(f"not all could be made: {first.job.name}: {first.error}{more}")


def _jobs(arguments: ReproduceArguments, items: Sequence[Item], cells: Sequence[str]) -> list[Job]:
    scale = arguments.chosen_scale or SCALES["paper"]
    turns = [(scale, seed) for seed in range(arguments.seeds)]
    if not arguments.train:
        turns = turns_below(arguments.out, arguments.chosen_scale)
    return jobs_of(items, cells, turns, arguments.out, arguments.spec)


def _listing(arguments: ReproduceArguments, items: Sequence[Item], cells: Sequence[str]) -> Iterator[Sheet]:
    """Every table and figure; of those that were named also the cells."""
    jobs, rates = _jobs(arguments, items, cells), Rates()
    yield listing(items, jobs, rates, (arguments.chosen_scale or SCALES["paper"]).label)
    if arguments.ids:
        yield cell_listing(jobs, rates)


def _work(
    arguments: ReproduceArguments, items: Sequence[Item], cells: Sequence[str], budget: Budget
) -> list[JobFailed]:
    """Make what is missing, and say what could not be made."""
    if budget.is_spent():
        return []
    jobs = in_order(_jobs(arguments, items, cells), Rates().seconds, train=arguments.train)
    try:
        return _follow(work(jobs, budget), quiet=arguments.quiet)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("stopped. The same command goes on where it was.") from None


def _follow(steps: Iterator[Step], *, quiet: bool) -> list[JobFailed]:
    failures = []
    console = Console(stderr=True)  # tables alone go to the output
    progress = RunProgress(console, quiet=quiet)
    with ExitStack() as bars:
        for step in steps:
            match step:
                case JobStarted():
                    bars.close()
                    progress = bars.enter_context(RunProgress(console, quiet=quiet))
                    progress.say(f"[{step.number}/{step.total}] {step.job.name}: {step.job.folder.path}")
                case JobFailed():
                    failures.append(step)
                    progress.say(f"{step.job.name}: {step.error}")
                case OutOfTime():
                    progress.say(f"The budget is spent; {step.left} cells are left. The same command goes on.")
                case Analyzed():
                    progress.say(f"{step.name}: {step.headline}, {step.seconds:.1f} s")
                case LeftOut():
                    progress.say(f"{step.name} is left out: {step.reason}")
                case Started():
                    progress.begin(step.round, step.rounds)
                case _:
                    show(step, progress)
    return failures


def _record(arguments: ReproduceArguments) -> None:
    paths = list(record(arguments.out, arguments.results, arguments.cells, arguments.chosen_scale))
    if not paths:
        raise RunError(f"no such finished run below {arguments.out}. Train some, or give their folder as --out.")
    if not arguments.quiet:
        for path in paths:
            print(path)


def _show(arguments: ReproduceArguments, item: Item, cells: Sequence[str], trainings: Trainings) -> None:
    scale = arguments.chosen_scale
    if not item.is_figure:
        entries = {key: paper for key, paper in item.entries.items() if key[0] in cells}
        rows = [row for row in compare(entries, trainings, scale) if row.paper or row.ours]
        show_sheet(comparison(item.title, rows), arguments.format)
        return
    drawing = draw(item, cells, trainings, scale, arguments.root)
    paths = drawing.save(arguments.out / "figures", arguments.figures)
    print(told(item, drawing, paths, markdown=arguments.format == "markdown"))
