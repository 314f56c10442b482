"""ccvr tune PRESET|SPEC.toml --training.lr 0.01 0.1 … [OPTIONS]"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ccvr.cli.arguments import parse, trust_of
from ccvr.cli.follow import runs_followed
from ccvr.comparison.tune import VALIDATION, Failed, Trying, Tuned, Values, described, grid, held_out, tune, with_all
from ccvr.core.errors import UsageError
from ccvr.core.fields import names_of
from ccvr.core.terminal import say
from ccvr.experiment.cost import Rates, describe_training, training_samples
from ccvr.experiment.events import Event
from ccvr.experiment.presets import find_spec
from ccvr.experiment.spec import Spec
from ccvr.report.tables import headline
from ccvr.report.text_table import DASH, TextTable, print_tables

ABOUT = """Choose hyperparameters as the paper does: ccvr tune PRESET|SPEC.toml --FIELD VALUE VALUE … [OPTIONS].

Every combination is trained without 15 % of each client's samples; the best on them is trained again with all. A field
with one value is set. Fields are those of `ccvr run`: --training.algorithm fedprox,mu=0.001 fedprox,mu=0.01
--training.rounds 10."""


@dataclass(frozen=True)
class TuneArguments:
    out: Path | None = None
    """Folder of the trainings and of tuning.json; without it tuning/NAME. What it has is not trained again."""
    dry_run: bool = False
    """Print the candidates and what they would cost, and stop."""
    trust: bool = False
    """Import code of others that the files of the run name, as package.module:name (docs/extending.md)."""
    quiet: bool = False
    """Print errors only."""


def command(argv: list[str]) -> None:
    name = argv.pop(0) if argv and not argv[0].startswith("-") else None
    fields, own = split(argv) if {"-h", "--help"}.isdisjoint(argv) else ({}, ["--help"])
    arguments = parse(TuneArguments, own, prog="ccvr tune", about=ABOUT)
    if name is None:
        raise UsageError("no preset. Give one first: ccvr tune cifar10-a0.1-fedavg --training.lr 0.01 0.1")
    spec, candidates = grid(find_spec(name, trust=trust_of(argv)), fields)
    if arguments.dry_run:
        say(*_forecast(spec, candidates))
        return
    out = arguments.out or Path("tuning") / spec.name
    try:
        tuned = _follow(tune(spec, candidates, out), quiet=arguments.quiet)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("stopped. The same command goes on where it was.") from None
    if not arguments.quiet:
        print_tables([_table(tuned)])
        say(f"Chosen: {described(tuned.chosen.values)}. {headline(tuned.results)}")
        say(f"Run folder: {tuned.retrained}", f"Recorded: {out / 'tuning.json'}")


def _forecast(spec: Spec, candidates: Sequence[Values]) -> Iterator[str]:
    """The candidates and what all costs; which one is trained again is not known yet, so the dearest."""
    rates = Rates()
    tried = [held_out(spec, values) for values in candidates]
    last = max((with_all(spec, values) for values in candidates), key=rates.seconds)
    samples = sum(map(training_samples, tried)), training_samples(last)
    yield from map(described, candidates)
    yield f"{len(candidates)} trainings without {VALIDATION:.0%} of the samples: {samples[0]:,} samples"
    yield f"then the best one with all: at most {samples[1]:,} samples"
    yield "in all, " + describe_training(sum(samples), sum(map(rates.seconds, [*tried, last])))


def split(argv: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Fields of a spec with their values, and everything else."""
    fields: dict[str, list[str]] = {}
    own: list[str] = []
    known = set(names_of(Spec))
    values = own
    for word in argv:
        option, equals, value = word.partition("=")
        field = option.removeprefix("--").replace("-", "_")
        if word.startswith("--") and (field in known or "." in field):
            if field in fields:
                raise UsageError(f"{option} is given twice. Give all its values at once.")
            values = fields[field] = [value] if equals else []
        elif word.startswith("--"):
            own.append(word)
            values = own
        else:
            values.append(word)
    return fields, own


def _follow(steps: Iterator[Event | Trying | Failed | Tuned], *, quiet: bool) -> Tuned:
    for step, progress in runs_followed(steps, _title, quiet=quiet):
        match step:
            case Failed():
                progress.say(f"{step.what}: {step.error}")
            case Tuned():
                return step
    raise AssertionError("tuning ends with what was chosen")


def _title(step: object) -> str | None:
    return f"[{step.number}/{step.total}] {step.what}" if isinstance(step, Trying) else None


def _table(tuned: Tuned) -> TextTable:
    headers = ("hyperparameters", "validation", "test", "chosen")
    rows = [
        [
            described(each.values),
            DASH if each.validation_accuracy is None else f"{each.validation_accuracy:.2f}",
            DASH if each.test_accuracy is None else f"{each.test_accuracy:.2f}",
            "yes" if each is tuned.chosen else "",
        ]
        for each in tuned.candidates
    ]
    caption = "Accuracy in percent before calibration, trained without the held-out part; test had no say"
    return TextTable(caption, headers, rows, ("hyperparameters", "chosen"))
