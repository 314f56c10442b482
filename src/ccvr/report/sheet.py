"""A table of text, for the terminal, in Markdown, CSV and LaTeX."""

import csv
import io
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from ccvr.core.tables import Table

DASH = "–"
"""What is not known."""
UNWRAPPED = 1000
"""Columns of an output that is no terminal: lines of a file are not broken."""

Value = str | int | float | None


@dataclass(frozen=True)
class Sheet:
    """A caption, headers and rows; where rows share their first cell, a new section begins when it changes."""

    caption: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Sequence[str] = ()
    """Headers of columns that are text, not numbers."""
    values: Sequence[dict[str, Value]] = field(default_factory=tuple)
    """The same for programs: each row by header, in CSV."""

    @property
    def has_sections(self) -> bool:
        return len({row[0] for row in self.rows}) < len(self.rows)

    def opens_section(self, number: int) -> bool:
        return number == 0 or (self.has_sections and self.rows[number][0] != self.rows[number - 1][0])


def terminal(sheet: Sheet) -> RichTable:
    """Without the first column where rows share it: each section says it once, in a line of its own."""
    table = RichTable(title=Text(sheet.caption), title_justify="left", box=SIMPLE_HEAD, collapse_padding=True)
    hidden = 1 if sheet.has_sections else 0
    for header in sheet.headers[hidden:]:
        if header in sheet.words:
            table.add_column(header, overflow="fold")
        else:  # numbers are narrow, and what stands above them is made so
            table.add_column("\n".join(header.rsplit(" ", 1)), justify="right", overflow="fold")
    for number, row in enumerate(sheet.rows):
        if hidden and sheet.opens_section(number):
            table.add_section()
            table.add_row(Text(row[0], style="bold"))
        table.add_row(*map(Text, row[hidden:]))
    return table


def show_sheet(sheet: Sheet, name: str = "terminal") -> None:
    """Print a sheet in one of the formats."""
    made = FORMATS[name](sheet)
    if isinstance(made, str):
        print(made)
    else:
        Console(width=None if sys.stdout.isatty() else UNWRAPPED).print(made)


def markdown(sheet: Sheet) -> str:
    aligned = "".join("---|" if header in sheet.words else "---:|" for header in sheet.headers)
    lines = [_line(sheet.headers), f"|{aligned}", *map(_line, sheet.rows)]
    return f"{sheet.caption}\n\n" + "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def comma_separated(sheet: Sheet) -> str:
    file = io.StringIO()
    values = sheet.values or [dict(zip(sheet.headers, row, strict=True)) for row in sheet.rows]
    writer = csv.DictWriter(file, list(values[0]) if values else list(sheet.headers), lineterminator="\n")
    writer.writeheader()
    writer.writerows(values)
    return file.getvalue()


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


def latex(sheet: Sheet) -> str:
    """A table for the package booktabs."""
    columns = "".join("l" if header in sheet.words else "r" for header in sheet.headers)
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{escaped(sheet.caption)}}}"]
    lines += [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", _latex_line(sheet.headers)]
    for number, row in enumerate(sheet.rows):
        if sheet.opens_section(number):
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


FORMATS: Table[Callable[[Sheet], str | RichTable]] = Table(
    "format",
    {"terminal": terminal, "markdown": markdown, "csv": comma_separated, "latex": latex},
    closed=True,
)
