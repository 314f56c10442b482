"""ccvr reproduce [ID…] [--cells PATTERN…] [--seeds N] [--scale SCALE] [--budget TIME]"""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from ccvr.cli.arguments import parse
from ccvr.cli.follow import follow_jobs, require_no_failures
from ccvr.comparison.queue import JobFailed
from ccvr.core.budget import Budget, parse_duration
from ccvr.core.errors import RunError, UsageError
from ccvr.core.terminal import say
from ccvr.experiment.cost import Rates
from ccvr.experiment.spec import Spec
from ccvr.report.text_table import TextTable, print_tables
from ccvr.reproduction.cells import SCALES, Scale, find_scale
from ccvr.reproduction.claims import judge
from ccvr.reproduction.comparison import compare, comparison
from ccvr.reproduction.figures import described, draw
from ccvr.reproduction.items import ITEMS, Item
from ccvr.reproduction.listing import cell_listing, listing
from ccvr.reproduction.record import record
from ccvr.reproduction.rounds import by_round
from ccvr.reproduction.run_index import RunIndex
from ccvr.reproduction.work import Job, chosen_cells, do_all, in_order, jobs_of, turns_below

logging.getLogger("matplotlib").setLevel(logging.ERROR)  # no remarks on fonts and caches

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
    """Write a small file about every finished run below --out into --results; what is recorded of the same training
    already is kept."""
    cells: tuple[str, ...] = ()
    """Only cells whose names match a pattern: "cifar10-a0.1-*"."""
    seeds: int = 1
    """Train seeds 0 … N − 1 of each cell (the paper: 3)."""
    scale: str | None = None
    """Rounds × local epochs: paper 100 × 10, half 50 × 10, quick 10 × 5, or numbers: 10x1. Without it paper is trained,
    and each number is shown at the largest scale that there is."""
    budget: str | None = None
    """Stop after this time: 2h, 90m, 1h30m; 0 does nothing but show what is there."""
    train: bool = True
    """--no-train: only calibrate and analyze what is trained already, of any seed and, without --scale, any scale."""
    format: Literal["terminal", "markdown", "csv", "latex"] = "terminal"
    """How tables are printed; all CSV is one table, and what is no table goes to stderr then."""
    figures: tuple[Literal["svg", "png", "pdf"], ...] = ("svg",)
    """Kinds of files for figures, in OUT/figures. They take the place of files of these kinds that an earlier call left
    there of the same figures; without a kind figures are described in words alone."""
    out: Path = Path("reproduction")
    """Folder of the cells: OUT/SCALE/CELL-sSEED. Runs below it count, whatever they are called."""
    results: Path = Path("results")
    """Folder of records; tables show them beside the runs below --out, but a cell that is only recorded is trained."""
    root: Annotated[Path | None, arg(name="data.root")] = None
    """Folder that holds the data sets; without it $CCVR_DATA, then the user's cache folder."""
    workers: int | None = None
    """Processes that train clients; without it as many as there are cores."""
    trust: bool = False
    """Import code of others that the files of the run name, as package.module:name (docs/extending.md)."""
    quiet: bool = False
    """No progress; tables and errors only."""

    @property
    def chosen_scale(self) -> Scale | None:
        return None if self.scale is None else find_scale(self.scale)

    def spec(self, spec: Spec) -> Spec:
        """The spec with what decides no result, where it is given."""
        workers, root = spec.workers if self.workers is None else self.workers, self.root or spec.data.root
        return replace(spec, workers=workers, data=replace(spec.data, root=root))

    def say(self, *lines: str) -> None:
        """Print what is no table: beside CSV it must not stand."""
        say(*lines, error=self.format == "csv")


def command(argv: list[str]) -> None:
    arguments = parse(ReproduceArguments, argv, prog="ccvr reproduce", about=ABOUT)
    ids = [name for name in arguments.cells if name in ITEMS]
    if ids:
        raise UsageError(f"--cells takes all that follows as patterns, also {ids[0]}. Give ids before it.")
    if not (arguments.ids or arguments.list or arguments.claims or arguments.record):
        raise UsageError(f"nothing asked for. Give --list, --claims, --record, or ids: {', '.join(ITEMS)}.")
    if arguments.list and (arguments.claims or arguments.record):
        raise UsageError("--list shows what there is and does nothing else. Leave it out, or --claims and --record.")
    if "--cells" in argv and not arguments.cells:
        raise UsageError(
            '--cells has no value. Give patterns, as in --cells "cifar10-a0.1-*", or leave it out for all.'
        )
    if arguments.seeds < 1:
        raise UsageError(f"--seeds is {arguments.seeds}; give at least 1.")
    items = [ITEMS[name] for name in dict.fromkeys(arguments.ids)] or (list(ITEMS.values()) if arguments.list else [])
    if arguments.cells and not (items or arguments.record):
        raise UsageError("--cells chooses among the cells of tables and figures. Give ids, too.")
    cells = chosen_cells(items, arguments.cells) if items else []
    seconds = parse_duration(arguments.budget) if arguments.budget is not None else None
    if arguments.list:
        print_tables(_listing(arguments, items, cells), arguments.format)
        return
    failures = _work(arguments, items, cells, Budget(seconds)) if items else []
    if arguments.record:
        _record(arguments)
    trainings = RunIndex.read(arguments.out, arguments.results, trust=arguments.trust)
    for reason in trainings.unusable:
        say(f"Left out: {reason}", error=True)
    if not (list(trainings) or trainings.unusable or failures):
        where = f"{arguments.out} or {arguments.results}"
        say(f"Nothing of ours is in {where}; the paper's numbers stand alone.", error=True)
    _show(arguments, items, cells, trainings)
    require_no_failures(failures)


def _jobs(arguments: ReproduceArguments, items: Sequence[Item], cells: Sequence[str]) -> list[Job]:
    scale = arguments.chosen_scale or SCALES["paper"]
    turns = [(scale, seed) for seed in range(arguments.seeds)]
    if not arguments.train:
        turns = turns_below(arguments.out, arguments.chosen_scale, trust=arguments.trust)
    return jobs_of(items, cells, turns, arguments.out, arguments.spec, trust=arguments.trust)


def _listing(arguments: ReproduceArguments, items: Sequence[Item], cells: Sequence[str]) -> list[TextTable]:
    """Every table and figure; of those that were named also the cells."""
    jobs, rates, records = _jobs(arguments, items, cells), Rates(), RunIndex.read(None, arguments.results)
    every = listing(items, jobs, records, rates, (arguments.chosen_scale or SCALES["paper"]).label)
    return [every, cell_listing(jobs, records, rates)] if arguments.ids else [every]


def _work(
    arguments: ReproduceArguments, items: Sequence[Item], cells: Sequence[str], budget: Budget
) -> list[JobFailed]:
    """Make what is missing, and return the jobs that failed."""
    if budget.is_spent():
        return []
    every = _jobs(arguments, items, cells)
    able = [job for job in every if job.has_data] or every  # where nothing can be made, the reason is reported
    _report_unable([job for job in every if job not in able and not job.is_done])
    jobs = in_order(able, Rates().seconds, train=arguments.train)
    return follow_jobs(do_all(jobs, budget), quiet=arguments.quiet)


def _report_unable(jobs: Sequence[Job]) -> None:
    for name, number in Counter(job.spec.data.name for job in jobs).items():
        say(f"Left out: cells of {name}, which is not here ({number}): `ccvr data get {name}`.", error=True)


def _record(arguments: ReproduceArguments) -> None:
    runs = RunIndex.read(arguments.out, None, trust=arguments.trust)
    written = list(record(runs, arguments.results, arguments.cells, arguments.chosen_scale))
    if not written:
        raise RunError(f"no such finished run below {arguments.out}. Train some, or give their folder as --out.")
    for each in written:
        if each.replaced:
            gone = f"; gone with it: {', '.join(each.lost)}" if each.lost else ""
            say(f"{each.path}: the record of another training is replaced{gone}.", error=True)
        if not arguments.quiet:
            arguments.say(str(each.path))


def _show(arguments: ReproduceArguments, items: Sequence[Item], cells: Sequence[str], trainings: RunIndex) -> None:
    """Tables, figures and claims in the order in which they were asked for; tables behind each other together."""
    tables: list[TextTable] = []
    for item in items:
        if not item.is_figure:
            tables.append(_table(arguments, item, cells, trainings))
            continue
        if arguments.format != "csv":
            print_tables(tables, arguments.format)
            tables = []
        _show_figure(arguments, item, cells, trainings)
    if arguments.claims:
        tables += judge(trainings, arguments.chosen_scale)
    if tables:
        print_tables(tables, arguments.format)


def _table(arguments: ReproduceArguments, item: Item, cells: Sequence[str], trainings: RunIndex) -> TextTable:
    if item.by_round:
        own = [cell for cell in item.cells if cell in cells]
        return by_round(item.title, own, trainings, arguments.chosen_scale, item.id)
    entries = {key: paper for key, paper in item.entries.items() if key[0] in cells}
    rows = [row for row in compare(entries, trainings, arguments.chosen_scale) if row.paper or row.ours]
    return comparison(item.title, rows, item.id)


def _show_figure(arguments: ReproduceArguments, item: Item, cells: Sequence[str], trainings: RunIndex) -> None:
    drawing = draw(item, cells, trainings, arguments.chosen_scale, arguments.root)
    paths = drawing.save(arguments.out / "figures", arguments.figures)
    arguments.say(*described(item, drawing, paths, markdown=arguments.format == "markdown"))
