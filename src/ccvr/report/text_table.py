"""A table of text, for the terminal, in Markdown, CSV and LaTeX."""

import csv
import io
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from ccvr.core.tables import Table
from ccvr.core.terminal import cell, say

DASH = "–"
"""What is not known."""
UNWRAPPED = 1000
"""Columns of an output that is no terminal: lines of a file are not broken."""
ROOMY = 100
"""Columns of a terminal in which two spaces stand between columns."""
NARROWEST = 8
"""Letters that a column of words has at least."""

FORMULAS = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes for the beginning of a formula."""

Value = str | int | float | None


@dataclass(frozen=True)
class TextTable:
    """A caption, headers and rows; where rows share their first cell, a new section begins when it changes."""

    caption: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Sequence[str] = ()
    """Headers of columns that are text, not numbers."""
    values: Sequence[dict[str, Value]] = field(default_factory=tuple)
    """The same for programs: each row by header, in CSV."""
    name: str = ""
    """The table's name in CSV, where several tables are one."""

    @property
    def has_sections(self) -> bool:
        return len({row[0] for row in self.rows}) < len(self.rows)

    def opens_section(self, number: int) -> bool:
        return number == 0 or (self.has_sections and self.rows[number][0] != self.rows[number - 1][0])


def rich_table(table: TextTable, gap: int = 2) -> RichTable:
    """The table for a terminal, with ``gap`` spaces between columns. A section shows its first cell once.

    Words fold where the terminal is narrow. Numbers keep their width, also where the table is then wider than it.
    """
    rows = [[cell.replace(" ± ", "±") for cell in row] for row in table.rows]
    laid_out = RichTable(box=SIMPLE_HEAD, show_edge=False, padding=(0, gap - 1, 0, 0))
    for number, name in enumerate(table.headers):
        is_words = name in table.words
        heading = name if is_words else "\n".join(name.rsplit(" ", 1))
        width = max(map(cell_len, [*heading.split("\n"), *(row[number] for row in rows)]))
        least = min(width, NARROWEST) if is_words else width
        justify: Literal["left", "right"] = "left" if is_words else "right"
        laid_out.add_column(Text(heading), justify=justify, no_wrap=not is_words, overflow="fold", min_width=least)
    for number, row in enumerate(rows):
        is_first = table.opens_section(number)
        if is_first and number:
            laid_out.add_section()
        laid_out.add_row(*map(Text, row if is_first or not table.has_sections else ["", *row[1:]]))
    return laid_out


def print_on_terminal(tables: Sequence[TextTable]) -> None:
    """Print tables with rich; lines of a file are not broken."""
    width = Console().width if sys.stdout.isatty() else UNWRAPPED
    for table in tables:
        gap = 2 if width >= ROOMY else 1
        laid_out = rich_table(table, gap)
        least = sum((column.min_width or 0) + gap for column in laid_out.columns)
        console = Console(width=max(width, least))
        console.print(Text(table.caption, style="table.title"), laid_out, "", sep="\n")


def print_tables(tables: Sequence[TextTable], name: str = "terminal") -> None:
    """Print tables in one of the formats. Names in them may come from files of anybody: each is one printable line."""
    tables = [_printable(table) for table in tables]
    if name == "terminal":
        print_on_terminal(tables)
        return
    for text in FORMATS[name](tables):
        say(*text.split("\n"))


def _printable(table: TextTable) -> TextTable:
    """The same table with all text as a terminal can show it."""
    values = [
        {cell(key): cell(value) if isinstance(value, str) else value for key, value in row.items()}
        for row in table.values
    ]
    headers, words = tuple(map(cell, table.headers)), tuple(map(cell, table.words))
    rows = [[cell(each) for each in row] for row in table.rows]
    name, caption = cell(table.name), cell(table.caption)
    return replace(table, name=name, caption=caption, headers=headers, rows=rows, words=words, values=values)


def markdown(table: TextTable) -> str:
    aligned = "".join("---|" if header in table.words else "---:|" for header in table.headers)
    lines = [_line(table.headers), f"|{aligned}", *map(_line, table.rows)]
    return f"{table.caption}\n\n" + "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_marked, cells))} |"


def _marked(text: str) -> str:
    """Text in which nothing is markup; numbers and words of ours stay as they are."""
    return "".join(f"\\{char}" if char in "\\|<[`" else char for char in text)


def comma_separated(tables: Sequence[TextTable]) -> str:
    """All tables as one CSV table. The column ``table`` has their names; cells that a table lacks are empty.

    Text that a spreadsheet would take for a formula gets an apostrophe in front; numbers have none.
    """
    rows = [{"table": table.name, **values} for table in tables for values in _values(table)]
    rows = [{key: _harmless(value) for key, value in row.items()} for row in rows]
    headers = ["table", *(name for table in tables for name in (table.values[0] if table.values else table.headers))]
    file = io.StringIO()
    writer = csv.DictWriter(file, list(dict.fromkeys(headers)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def _harmless(value: Value) -> Value:
    is_formula = isinstance(value, str) and value[:1] in FORMULAS and not _is_number(value)
    return f"'{value}" if is_formula else value


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _values(table: TextTable) -> Sequence[Mapping[str, Value]]:
    """Each row by header; what is not known is empty."""
    if table.values:
        return table.values
    return [
        {name: "" if cell == DASH else cell for name, cell in zip(table.headers, row, strict=True)}
        for row in table.rows
    ]


ESCAPES = {
    "\\": r"\textbackslash{}",
    **{char: f"\\{char}" for char in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"$<$",
    ">": r"$>$",
    "≥": r"$\ge$",
    "±": r"$\pm$",
    "−": "$-$",
    "×": r"$\times$",
    "α": r"$\alpha$",
    "–": "--",
}


def escaped(text: str) -> str:
    """Text as LaTeX sets it."""
    return "".join(ESCAPES.get(char, char) for char in text)


def latex(table: TextTable) -> str:
    """A table for the package booktabs."""
    columns = "".join("l" if header in table.words else "r" for header in table.headers)
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{escaped(table.caption)}}}"]
    lines += [rf"\label{{tab:{table.name}}}"] if table.name else []
    lines += [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", _latex_line(table.headers)]
    for number, row in enumerate(table.rows):
        if table.opens_section(number):
            lines.append(r"\midrule")
        lines.append(_latex_line(row))
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def _latex_line(cells: Sequence[str]) -> str:
    return " & ".join(map(_latex_cell, cells)) + r" \\"


def _latex_cell(text: str) -> str:
    """A sign before a number is set as one, not as a hyphen."""
    signed = text[:1] in ("+", "-") and text[1:2].isdigit()
    return f"${text[0]}${escaped(text[1:])}" if signed else escaped(text)


FORMATS: Table[Callable[[Sequence[TextTable]], Iterable[str]]] = Table(
    "format",
    {
        "markdown": partial(map, markdown),
        "csv": lambda tables: [comma_separated(tables).removesuffix("\n")],
        "latex": partial(map, latex),
    },
    closed=True,
)
