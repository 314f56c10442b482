"""ccvr run [PRESET|SPEC.toml] [OPTIONS]"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import indent
from typing import Annotated

from tyro.conf import arg

from ccvr.algorithms.table import ALGORITHMS, OLD_OPTIONS
from ccvr.calibration.table import CALIBRATORS
from ccvr.cli.arguments import parse, trust_of
from ccvr.cli.engines import begin
from ccvr.cli.follow import follow
from ccvr.core.errors import UsageError
from ccvr.core.fields import names_of
from ccvr.core.methods import option_names
from ccvr.core.run import RunFolder
from ccvr.core.terminal import say
from ccvr.experiment.cost import estimate
from ccvr.experiment.presets import PRESETS, find_spec
from ccvr.experiment.spec import Spec, to_toml

ABOUT = f"""Train a federated model and calibrate it: ccvr run [PRESET|SPEC.toml] [OPTIONS].

Without a preset it runs on the embedded digits: ten clients, Dirichlet 0.1, the calibrators ccvr and oracle.
Presets: {", ".join(PRESETS)}."""


@dataclass(frozen=True)
class RunArguments:
    out: Path | None = None
    """The run folder; without it a new one under runs/."""
    overwrite: bool = False
    """Replace a run that is already in --out."""
    dry_run: bool = False
    """Print the spec and what it would cost, and stop."""
    trust: bool = False
    """Import code of others that the files of the run name, as package.module:name (docs/extending.md)."""
    quiet: bool = False
    """Print errors only."""
    report: bool = True
    """Write report.html at the end; --no-report leaves it out."""
    spec: Annotated[Spec, arg(name="")] = field(default_factory=Spec)


def command(argv: list[str]) -> None:
    base = find_spec(argv.pop(0), trust=trust_of(argv)) if argv and not argv[0].startswith("-") else Spec()
    late = next((word for word in argv if word in PRESETS), None)
    if late:
        raise UsageError(f"{late} stands behind options. The preset comes first: ccvr run {late} [OPTIONS].")
    _refuse_old_options(argv)
    arguments = parse(RunArguments, argv, prog="ccvr run", default=RunArguments(spec=base), about=ABOUT)
    spec = arguments.spec
    if arguments.dry_run:
        cost = indent(estimate(spec).describe(), "# ")  # comments: the output is a spec file
        say(*f"{to_toml(spec)}\n{cost}".split("\n"))
        return
    path = (arguments.out and arguments.out.expanduser()) or unused_folder(f"{spec.name}-seed{spec.seed}")
    events = begin(spec, path, overwrite=arguments.overwrite)
    follow(events, RunFolder(path, trust=True), quiet=arguments.quiet, report=arguments.report)


def _refuse_old_options(argv: list[str]) -> None:
    """Say where the options of methods went that once were fields of the spec."""
    known = names_of(Spec)
    for word in argv:
        field = word.removeprefix("--").partition("=")[0].replace("-", "_")
        section, _, option = field.partition(".")
        if not word.startswith("--") or field in known or section not in METHODS:
            continue
        for name, cls in METHODS[section][0].items():
            new = OLD_OPTIONS.get(name, {}).get(option, option)
            if new in option_names(cls):
                raise UsageError(
                    f"--{section}.{option} is an option of the method: {METHODS[section][1]} {name},{new}=…."
                )


METHODS: dict[str, tuple[Mapping[str, type], str]] = {
    "training": (ALGORITHMS, "--training.algorithm"),
    "calibration": (CALIBRATORS, "--calibration.methods"),
}


def unused_folder(name: str) -> Path:
    """runs/NAME, or runs/NAME-2, … where that exists."""
    path, number = Path("runs") / name, 2
    while path.exists():
        path, number = Path("runs") / f"{name}-{number}", number + 1
    return path
