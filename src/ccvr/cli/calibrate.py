"""ccvr calibrate RUN --method ccvr --num-virtual 50 100 500 --repeats 3"""

from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console
from tyro.conf import Positional

from ccvr.calibration.calibrator import seed_of
from ccvr.calibration.methods import Calibration, parse_calibration, parse_calibrations, shared_options, with_shared
from ccvr.cli.arguments import parse, trust_of
from ccvr.cli.follow import follow
from ccvr.core.errors import UsageError
from ccvr.core.files import MAX_TOML, parse_toml, read_text
from ccvr.core.results import UNCALIBRATED
from ccvr.core.run import RunFolder
from ccvr.experiment.pipeline import calibrate_again
from ccvr.experiment.spec import Spec, read_spec
from ccvr.report.tables import repeats_table


@dataclass(frozen=True)
class CalibrateArguments:
    """Try more calibrations on a finished run. Heads and figures are added to the run under new labels."""

    run: Positional[Path]
    """The run folder."""
    method: tuple[str, ...] = ("ccvr",)
    """ccvr, ccvr-converged, lda, ridge, kernel, cof, cof-means, ncm, oracle, oracle-partial, or your own; each with its
    options behind commas: lda "ccvr,transform=tukey:0.5,epochs=30,label=tukey" "ridge,taps=auto,label=layers"."""
    num_virtual: tuple[int, ...] = ()
    """Numbers of virtual features per class to try; each becomes a calibration labelled METHOD-mNUMBER."""
    repeats: int = 1
    """Repeat each with another seed; labels get -r1, -r2, … and the mean is shown."""
    deploy: str | None = None
    """Save the calibration of this label as the run's model; select: the one that wins on held-out parts."""
    overwrite: bool = False
    """Replace calibrations of the same label."""
    trust: bool = False
    """Import code of others that the files of the run name, as package.module:name (docs/extending.md)."""
    quiet: bool = False
    """Print errors only."""
    report: bool = True
    """Write report.html at the end; --no-report leaves it out."""


def command(argv: list[str]) -> None:
    arguments = parse(CalibrateArguments, argv, prog="ccvr calibrate")
    if arguments.repeats < 1:
        raise UsageError(f"--repeats is {arguments.repeats}; give at least 1.")
    folder = RunFolder.open(arguments.run, trust=trust_of(argv))
    spec = read_spec(folder.spec, trust=folder.trust)
    groups = _variants(arguments, spec)
    calibrations = [calibration for group in groups.values() for calibration in group]
    labels = [calibration.label for calibration in calibrations]
    for label in labels:
        if labels.count(label) > 1:
            raise UsageError(f'two calibrations are labelled "{label}". Give each method its own with label=….')
    events = calibrate_again(folder, calibrations, overwrite=arguments.overwrite, chosen=arguments.deploy)
    follow(events, folder, quiet=arguments.quiet, report=arguments.report)
    if arguments.repeats > 1 and not arguments.quiet:
        accuracy = folder.read_results()["accuracy"]
        rows = [
            (name, [accuracy[calibration.label] for calibration in group], accuracy[UNCALIBRATED])
            for name, group in groups.items()
        ]
        Console().print(repeats_table(rows))


def _variants(arguments: CalibrateArguments, spec: Spec) -> dict[str, list[Calibration]]:
    """Every method × number of virtual features, each with its repeats; options as in the run, unless given."""
    own = {each.name: asdict(each.method) for each in reversed(parse_calibrations(spec.calibration))}
    written = parse_toml(read_text(RunFolder(arguments.run).spec, MAX_TOML))  # a spec, which was read before
    old = shared_options(written.get("calibration", {}))
    groups: dict[str, list[Calibration]] = defaultdict(list)
    for text in arguments.method:
        for number in arguments.num_virtual or (None,):
            asked = text if number is None else f"{text},num_virtual={number}"
            name = text.partition(",")[0]
            found = parse_calibration(asked if name in own else with_shared(asked, old), own.get(name))
            label = found.label if number is None else f"{found.label}-m{number}"
            for repeat in range(arguments.repeats):
                seed = seed_of(found.method, spec.seed) + repeat
                tail = f"-r{repeat + 1}" if arguments.repeats > 1 else ""
                groups[label].append(replace(found, label=label + tail, method=replace(found.method, seed=seed)))
    return groups
