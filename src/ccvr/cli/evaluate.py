"""ccvr evaluate RUN"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rich.console import Console
from tyro.conf import Positional, arg

from ccvr.cli.arguments import parse, trust_of
from ccvr.core.errors import RunError
from ccvr.core.run import RunFolder
from ccvr.core.terminal import say
from ccvr.data.batches import in_order
from ccvr.data.catalogue import load as load_data
from ccvr.experiment.load import load_from
from ccvr.experiment.spec import read_spec
from ccvr.models.scoring import score
from ccvr.report.tables import recall_table


@dataclass(frozen=True)
class EvaluateArguments:
    """Load the model of a run and score it on the test set."""

    run: Positional[Path]
    """The run folder."""
    head: str | None = None
    """Label of another calibration of the run; without it the deployed one."""
    root: Annotated[Path | None, arg(name="data.root")] = None
    """Folder that holds the data set, if it is not where the run found it."""
    trust: bool = False
    """Import code of others that the files of the run name, as package.module:name (docs/extending.md)."""
    quiet: bool = False
    """Print the accuracy alone."""


def command(argv: list[str]) -> None:
    arguments = parse(EvaluateArguments, argv, prog="ccvr evaluate")
    folder = RunFolder.open(arguments.run, trust=trust_of(argv))
    model = load_from(folder, head=arguments.head)
    spec = read_spec(folder.spec, trust=folder.trust)
    dataset = load_data(spec.data.name, arguments.root or spec.data.root)
    if dataset.class_names != model.class_names:
        raise RunError(
            f"{arguments.run} was trained on the classes {', '.join(model.class_names)}; the data has "
            f"{', '.join(dataset.class_names)}. Give the data of the run."
        )
    counts = score(model, in_order(dataset.test), dataset.num_classes)
    if arguments.quiet:
        say(f"{counts.accuracy:.4f}")
        return
    Console().print(recall_table(counts.recall, dataset.class_names))
    say(f"accuracy {counts.accuracy:.2f} %, loss {counts.mean_loss:.4f}, {int(counts.total.sum()):,} test samples")
