"""ccvr compare [PRESET|SPEC.toml] --algorithms A B … [OPTIONS], or ccvr compare FOLDER|FILE.json"""

import itertools
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import arg

from ccvr.cli.arguments import parse, trust_of
from ccvr.cli.follow import follow_jobs, require_no_failures
from ccvr.comparison.arms import Arm, ArmRun, Comparison
from ccvr.comparison.page import comparison_page
from ccvr.comparison.plan import PlannedRun, base_name, planned_runs, preset_name, require_trainable, train_all
from ccvr.comparison.tables import tables_of
from ccvr.core.budget import Budget, parse_duration
from ccvr.core.errors import UsageError
from ccvr.core.fields import plain
from ccvr.core.run import write_atomically
from ccvr.core.terminal import say
from ccvr.core.trust import Trust, require_trust
from ccvr.experiment.cost import Rates, describe_training, training_samples
from ccvr.experiment.presets import PRESETS, find_spec
from ccvr.experiment.spec import Spec, from_mapping
from ccvr.report.runs import RunFiles
from ccvr.report.text_table import print_tables
from ccvr.reproduction.record import record
from ccvr.reproduction.run_index import RunIndex, Trained

logging.getLogger("matplotlib").setLevel(logging.ERROR)  # no remarks on fonts and caches

FILE, PAGE = "comparison.json", "comparison.html"
MAX_NAMED = 5
"""Algorithms that a title names; of more it says how many there are."""
ABOUT = """Algorithms × seeds on the same clients: ccvr compare [PRESET|SPEC.toml] --algorithms A B … [OPTIONS].

Ends in one table and one page: accuracy before and after calibration, and paired differences to the first algorithm
with intervals. A preset may be named without an algorithm: cifar10-a0.1. All options of `ccvr run` change every run.
Stopped at any moment, the same command goes on. ccvr compare FOLDER shows again what is there and trains nothing;
ccvr compare FILE.json does so from the small file alone."""


@dataclass(frozen=True)
class CompareArguments:
    algorithms: tuple[str, ...] = ()
    """As in --training.algorithm, the one to compare with first: fedavg fedprox,mu=0.1; under a server optimiser
    behind a +: fedprox,mu=0.1+fedavgm,momentum=0.9."""
    seeds: int = 3
    """Train each algorithm with so many seeds, from --seed on. With one, nothing can be said about noise."""
    redraw: bool = False
    """Draw who owns what for each seed anew (partition.seed is the seed); without it all runs share one partition."""
    budget: str | None = None
    """Stop after this time: 2h, 90m, 1h30m; 0 does nothing but show what is there."""
    out: Path | None = None
    """Folder of the runs, comparison.json and comparison.html; without it comparisons/NAME."""
    record: bool = False
    """Write the small file of the comparison, and one about each finished run, into --results."""
    results: Path = Path("results")
    """Folder of records."""
    format: Literal["terminal", "markdown", "csv", "latex"] = "terminal"
    """How tables are printed; what is no table goes to stderr beside CSV."""
    json: bool = False
    """Print the content of comparison.json instead."""
    dry_run: bool = False
    """Print the runs and what they would cost, and stop."""
    trust: bool = False
    """Import code of others that the files of the run name, as package.module:name (docs/extending.md)."""
    quiet: bool = False
    """No progress; tables and errors only."""
    spec: Annotated[Spec, arg(name="")] = field(default_factory=Spec)

    def say(self, *lines: str) -> None:
        """Print what is no table, where that is wanted."""
        say(*lines, error=self.json or self.format == "csv")


def command(argv: list[str]) -> None:
    given = argv.pop(0) if argv and not argv[0].startswith("-") else None
    there, trust = None if given is None else _there(given), trust_of(argv)
    base = find_spec(preset_name(given), trust=trust) if given is not None and there is None else Spec()
    arguments = parse(CompareArguments, argv, prog="ccvr compare", default=CompareArguments(spec=base), about=ABOUT)
    if there is not None:
        _require_reading(arguments, argv)
        _show_again(arguments, there, trust)
        return
    _require_possible(arguments, argv)
    spec = replace(arguments.spec, data=arguments.spec.data.anchored())
    out = arguments.out or Path("comparisons") / base_name(spec)
    runs = planned_runs(spec, arguments.algorithms, arguments.seeds, out, redraw=arguments.redraw, trust=trust)
    if arguments.dry_run:
        say(*_forecast(runs))
        return
    budget = Budget(parse_duration(arguments.budget) if arguments.budget is not None else None)
    if not budget.is_spent():
        require_trainable(runs)
    _comparison(arguments, spec, _finished(runs), out)  # so that a folder that was left can be shown
    failures = follow_jobs(train_all(runs, budget), quiet=arguments.quiet)
    _finish(arguments, spec, _finished(runs), out)
    require_no_failures(failures)


def _there(text: str) -> Path | None:
    """The folder or file of a comparison that a word names; None where it names a preset or a spec."""
    path = Path(text)
    return None if preset_name(text) in PRESETS or not (path.is_dir() or path.suffix == ".json") else path


def _require_reading(arguments: CompareArguments, argv: Sequence[str]) -> None:
    """Refuse options that would train or change something: what is shown was settled before."""
    same = ("record", "results", "format", "json", "trust", "quiet")
    shown = replace(CompareArguments(), **{name: getattr(arguments, name) for name in same})
    if arguments != shown:
        words = next(word for word in argv if word.startswith("--") and word[2:].partition("=")[0] not in same)
        raise UsageError(f"{words} does not fit a comparison that is only shown again. Give a preset to train.")


def _require_possible(arguments: CompareArguments, argv: Sequence[str]) -> None:
    for option in ("--training.algorithm", "--training.server"):
        if any(word.partition("=")[0] == option for word in argv):
            raise UsageError(f"{option} is each run's own. Give --algorithms ALGORITHM or ALGORITHM+SERVER ….")
    if len(arguments.algorithms) < 2:
        raise UsageError(
            f"--algorithms names {len(arguments.algorithms)}; give at least two, the one to compare with first: "
            "--algorithms fedavg fedprox,mu=0.1."
        )
    if arguments.seeds < 1:
        raise UsageError(f"--seeds is {arguments.seeds}; give at least 1.")


def _forecast(runs: Sequence[PlannedRun]) -> Iterator[str]:
    rates = Rates()
    for run in runs:
        state = "done" if run.is_done else "begun" if run.folder.spec.is_file() else "new"
        yield f"{run.name}: {run.folder.path} ({state})"
    left = [run.spec for run in runs if not run.is_trained]
    yield f"{len(left)} trainings from their start, " + describe_training(
        sum(map(training_samples, left)), sum(map(rates.seconds, left))
    )


Found = dict[str, list[RunFiles]]


def _finished(runs: Sequence[PlannedRun]) -> Found:
    """The finished runs by algorithm, in the order of the plan."""
    found: Found = {run.arm: [] for run in runs}
    for run in runs:
        if run.is_trained:
            found[run.arm].append(RunFiles.read(run.folder.path))
    return found


def _comparison(arguments: CompareArguments, spec: Spec, found: Found, out: Path) -> Comparison:
    """Write what is finished into the folder's file, and return it. What only the file has stays in it."""
    seeds = tuple(range(spec.seed, spec.seed + arguments.seeds))
    arms = tuple(Arm(arm, tuple(map(ArmRun.of, runs))) for arm, runs in found.items())
    shared: dict[str, Any] = plain(replace(spec, data=replace(spec.data, root=None)))
    made = Comparison(base_name(spec), "", seeds, arms, shared, arguments.redraw)
    made = made.with_kept(Comparison.read(out / FILE)) if (out / FILE).is_file() else made
    names = [arm.name for arm in made.arms]
    said = " · ".join(names) if len(names) <= MAX_NAMED else f"{len(names)} algorithms"
    made = replace(made, about=f"{said}: {spec.description.partition(' on ')[2]}")
    write_atomically(out / FILE, made.to_bytes())
    return made


def _finish(arguments: CompareArguments, spec: Spec, found: Found, out: Path) -> None:
    """Keep what came out, and show it."""
    comparison = _comparison(arguments, spec, found, out)
    write_atomically(out / PAGE, comparison_page(comparison, found).encode())
    if arguments.record:
        _record(arguments, out.absolute().name, comparison, [run for runs in found.values() for run in runs])
    _show(arguments, comparison)
    if not arguments.quiet:
        arguments.say(f"Page: {out / PAGE}", f"Recorded: {out / FILE}")


def _show(arguments: CompareArguments, comparison: Comparison) -> None:
    if arguments.json:
        say(*json.dumps(comparison.content(), indent=1).split("\n"))
        return
    print_tables(tables_of(comparison), arguments.format)
    for line in comparison.verdicts():
        arguments.say(line)
    missing = {arm.name: len(comparison.seeds) - len(arm.runs) for arm in comparison.arms}
    unfinished = [f"{name} ({number})" for name, number in missing.items() if number]
    if unfinished:
        arguments.say(f"Runs that are not finished: {', '.join(unfinished)}.")


def _show_again(arguments: CompareArguments, path: Path, trust: Trust) -> None:
    """Show a comparison from its file, which is left as it is, or from a folder with its runs."""
    file = path / FILE if path.is_dir() else path
    kept = Comparison.read(file)
    if not path.is_dir():
        if arguments.record:
            raise UsageError(f"--record needs the runs, and {path} has numbers alone. Give the folder of the runs.")
        _show(arguments, kept)
        return
    require_trust({**kept.spec, "arms": [arm.name for arm in kept.arms]}, file, trust)
    spec = replace(from_mapping(kept.spec, trust=trust), seed=min(kept.seeds))
    arms, number = tuple(arm.name for arm in kept.arms), max(kept.seeds) - min(kept.seeds) + 1
    found = _finished(planned_runs(spec, arms, number, path, redraw=kept.redraw, trust=trust))
    _finish(replace(arguments, algorithms=arms, seeds=number, redraw=kept.redraw), spec, found, path)


def _record(arguments: CompareArguments, name: str, comparison: Comparison, runs: Sequence[RunFiles]) -> None:
    """The small file of that name, and a record of each run as `ccvr reproduce --record` writes it."""
    path = _free(arguments.results / "comparisons", name, comparison)
    write_atomically(path, comparison.to_bytes(), remedy="See to its disk and permissions, or use another --results")
    index = RunIndex([Trained(from_mapping(run.spec, trust=arguments.trust), run) for run in runs])
    for each in record(index, arguments.results, (), None):
        if each.replaced:
            say(f"{each.path}: the record of another training is replaced.", error=True)
        if not arguments.quiet:
            arguments.say(str(each.path))


def _free(folder: Path, name: str, comparison: Comparison) -> Path:
    """Where a comparison is recorded: in the place of the same one, or beside others of its name."""
    for number in itertools.count(1):
        path = folder / (f"{name}.json" if number == 1 else f"{name}-{number}.json")
        if not path.is_file() or Comparison.read(path).spec == comparison.spec:
            return path
    raise AssertionError("there is always a free name")
