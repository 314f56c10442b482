"""ccvr data list|get|check"""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from tyro.conf import Positional

from ccvr.cli.arguments import parse
from ccvr.core.tables import Table
from ccvr.core.terminal import say
from ccvr.data.catalogue import check, listing
from ccvr.data.download import download
from ccvr.data.sources.source import data_root
from ccvr.report.tables import listing_table

HELP = """usage: ccvr data list | get NAME | check NAME  [--root DIR]

  list   every data set, and where it lies
  get    download one from its official source; goes on where a broken download ended
  check  read one whole and verify its checksums

--root DIR  the folder of the data; without it $CCVR_DATA, then the user's cache folder"""


@dataclass(frozen=True)
class ListArguments:
    root: Path | None = None
    """The folder of the data; without it $CCVR_DATA, then the user's cache folder."""


@dataclass(frozen=True)
class NameArguments:
    name: Positional[str]
    """The data set's name, as `ccvr data list` shows it."""
    root: Path | None = None
    """The folder of the data; without it $CCVR_DATA, then the user's cache folder."""


def command(argv: list[str]) -> None:
    if not argv or argv[0] in ("-h", "--help"):
        say(*HELP.splitlines())
    else:
        ACTIONS[argv[0]](argv[1:])


def _list(argv: list[str]) -> None:
    arguments = parse(ListArguments, argv, prog="ccvr data list")
    Console().print(listing_table(listing(arguments.root), data_root(arguments.root)))


def _get(argv: list[str]) -> None:
    arguments = parse(NameArguments, argv, prog="ccvr data get")
    console = Console()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        tasks = {}
        for step in download(arguments.name, arguments.root):
            if step.file not in tasks:
                tasks[step.file] = progress.add_task(step.file, total=step.total)
            progress.update(tasks[step.file], completed=step.done, total=step.total)
    say(f"{arguments.name}: {len(tasks)} files downloaded." if tasks else f"{arguments.name} is there already.")
    _check([arguments.name] + (["--root", str(arguments.root)] if arguments.root else []))


def _check(argv: list[str]) -> None:
    arguments = parse(NameArguments, argv, prog="ccvr data check")
    found = check(arguments.name, arguments.root)
    for file in found.files:
        say(f"{file.path}  {file.size:,} bytes  {file.status}")
    counts = f"{found.train:,} train and {found.test:,} test samples of {found.inputs}"
    say(f"{found.name}: {counts}, {found.classes} classes: good.")


ACTIONS = Table("data command", {"list": _list, "get": _get, "check": _check}, closed=True)
