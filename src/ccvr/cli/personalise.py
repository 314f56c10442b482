"""ccvr personalise RUN --method finetune,epochs=5 prior [--head LABEL]"""

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from ccvr.cli.arguments import parse, trust_of
from ccvr.cli.follow import follow
from ccvr.core.errors import UsageError
from ccvr.core.run import RunFolder
from ccvr.experiment.personalisations import parse_personalisations
from ccvr.experiment.personalise import personalise_run


@dataclass(frozen=True)
class PersonaliseArguments:
    """Let each client of a finished run make a model of its own, and score it under the client's label mix."""

    run: Positional[Path]
    """The run folder."""
    method: tuple[str, ...] = ("prior", "finetune")
    """prior, finetune, or your own as package.module:name; each with its options behind commas:
    finetune,epochs=5,scope=head,label=head-alone (`ccvr list personalisations`)."""
    head: str | None = None
    """Label of the head that they start from, also uncalibrated; without it finetune starts from the head as training
    left it, prior from the deployed one."""
    overwrite: bool = False
    """Replace own models of the same label."""
    trust: bool = False
    """Import code of others that the files of the run name, as package.module:name (docs/extending.md)."""
    quiet: bool = False
    """Print errors only."""
    report: bool = True
    """Write report.html at the end; --no-report leaves it out."""


def command(argv: list[str]) -> None:
    arguments = parse(PersonaliseArguments, argv, prog="ccvr personalise")
    if not arguments.method:
        raise UsageError("--method names no method. Give some, for example prior, or leave it out.")
    if arguments.head == "":
        raise UsageError("--head is empty. Give the label of a head, for example uncalibrated, or leave it out.")
    folder, methods = RunFolder.open(arguments.run, trust=trust_of(argv)), parse_personalisations(arguments.method)
    events = personalise_run(folder, methods, head=arguments.head, overwrite=arguments.overwrite)
    follow(events, folder, quiet=arguments.quiet, report=arguments.report)
