"""ccvr list [TABLE [NAME]]"""

import dataclasses
import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tyro.conf import Positional

from ccvr.cli.arguments import parse
from ccvr.core.methods import Option, options_of
from ccvr.core.tables import Table
from ccvr.report.text_table import TextTable, print_tables

TABLES: Table[str] = Table(
    "table",
    {
        "algorithms": "ccvr.algorithms.table:ALGORITHMS",
        "calibrators": "ccvr.calibration.table:CALIBRATORS",
        "personalisations": "ccvr.experiment.personalisations:PERSONALISATIONS",
        "statistics": "ccvr.statistics.kinds:KINDS",
        "models": "ccvr.models.build:MODELS",
        "data": "ccvr.data.sources.rows:SOURCES",
        "partitions": "ccvr.data.partition:PARTITIONERS",
        "analyses": "ccvr.inspection.analyses:ANALYSES",
        "presets": "ccvr.experiment.presets:PRESETS",
    },
    closed=True,
)


@dataclass(frozen=True)
class ListArguments:
    """What a spec or a command can name: algorithms, calibrators, personalisations, statistics, models, data sets, ….

    Every row with its options, their defaults and a sentence each: of all tables, of one table, or one row alone, also
    one of your own as package.module:name.
    """

    table: Positional[str] = ""
    """algorithms, calibrators, personalisations, statistics, models, data, partitions, analyses or presets."""
    name: Positional[str] = ""
    """A row of the table."""


def command(argv: list[str]) -> None:
    arguments = parse(ListArguments, argv, prog="ccvr list")
    if not arguments.name:
        names = [arguments.table] if arguments.table else list(TABLES)
        print_tables([_described(name, _rows(name)) for name in names])
        return
    print_tables([_described(arguments.table, {arguments.name: _rows(arguments.table)[arguments.name]})])


def _rows(name: str) -> Mapping[str, Any]:
    module, _, attribute = TABLES[name].partition(":")
    found: Mapping[str, Any] = getattr(importlib.import_module(module), attribute)
    return found if isinstance(found, Table) else Table(name.removesuffix("s"), found, closed=True)


def _described(table: str, rows: Mapping[str, Any]) -> TextTable:
    """A line for each row, and one for each of its options."""
    lines: list[list[str]] = []
    for name, row in rows.items():
        lines.append([name, "", "", _about(row)])
        lines += [[name, each.name, each.default, each.about] for each in _options(row)]
    has_options = any(line[1] for line in lines)
    headers = ("name", "option", "default", "what it is") if has_options else ("name", "what it is")
    cells = lines if has_options else [[line[0], line[3]] for line in lines]
    return TextTable(table.capitalize(), headers, cells, headers)


def _options(row: Any) -> list[Option]:
    return options_of(row) if isinstance(row, type) and dataclasses.is_dataclass(row) else []


def _about(row: Any) -> str:
    """The first sentence of a row's docstring."""
    text = getattr(row, "description", None) or inspect.getdoc(getattr(row, "build", row)) or ""
    sends = getattr(row, "sends", "")
    return str(text).partition("\n")[0] + (f" Sent beside the model: {sends}." if sends else "")
