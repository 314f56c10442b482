"""A table of text, for the terminal, in Markdown, CSV and LaTeX."""

import csv
import io
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from ccvr.core.tables import Table

DASH = "–"
"""What is not known."""
UNWRAPPED = 1000
"""Columns of an output that is no terminal: lines of a file are not broken."""
NARROWEST = 8
"""Letters that a column of words has at least."""

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
    """What tells the rows from those of other tables in the same CSV."""

    @property
    def has_sections(self) -> bool:
        return len({row[0] for row in self.rows}) < len(self.rows)

    def opens_section(self, number: int) -> bool:
        return number == 0 or (self.has_sections and self.rows[number][0] != self.rows[number - 1][0])


@dataclass(frozen=True)
class OnTerminal:
    """A sheet as rich draws it. Words are broken where the terminal is narrow; numbers stay whole, also in lines that
    are then longer than it.
    """

    sheet: TextTable

    @property
    def least_width(self) -> int:
        """Columns without which numbers would be cut."""
        widths = self._narrowed(self._widths(self._close(self.sheet.rows)), 0)
        return sum(widths) + len(widths)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        sheet = self.sheet
        rows, gap = self._shown(sheet.rows), 2
        widths = self._widths(rows)
        if sum(widths) + gap * len(widths) > options.max_width:
            rows, gap = self._close(sheet.rows), 1
            widths = self._narrowed(self._widths(rows), options.max_width - gap * len(widths))
        yield Text(sheet.caption, style="table.title")
        yield self._part([], widths, gap)
        starts = [number for number in range(len(rows)) if sheet.opens_section(number)]
        for start, end in itertools.pairwise([*starts, len(rows)]):
            if sheet.has_sections:
                yield Text(sheet.rows[start][0], style="bold")
            yield self._part(rows[start:end], widths, gap)
        yield Text()

    def _shown(self, rows: Sequence[Sequence[str]]) -> list[Sequence[str]]:
        """Rows without what their section says."""
        return [row[1 if self.sheet.has_sections else 0 :] for row in rows]

    def _close(self, rows: Sequence[Sequence[str]]) -> list[Sequence[str]]:
        return [[cell.replace(" ± ", "±") for cell in row] for row in self._shown(rows)]

    @property
    def _names(self) -> Sequence[str]:
        return self._shown([self.sheet.headers])[0]

    def _heading(self, name: str) -> str:
        """Numbers are narrow, and what stands above them is made so."""
        return name if name in self.sheet.words else "\n".join(name.rsplit(" ", 1))

    def _widths(self, rows: Sequence[Sequence[str]]) -> list[int]:
        columns = [[*self._heading(name).split("\n"), *(row[i] for row in rows)] for i, name in enumerate(self._names)]
        return [max(map(cell_len, column)) for column in columns]

    def _narrowed(self, widths: Sequence[int], most: int) -> list[int]:
        """Of words the widest column gives way, then the next; numbers have the room that they need."""
        found, words = list(widths), [i for i, name in enumerate(self._names) if name in self.sheet.words]
        while words and sum(found) > most and max(found[i] for i in words) > NARROWEST:
            found[max(words, key=lambda i: found[i])] -= 1
        return found

    def _part(self, rows: Sequence[Sequence[str]], widths: Sequence[int], gap: int) -> RichTable:
        """Some rows, or without any the headers; all parts have the same columns."""
        table = RichTable(box=SIMPLE_HEAD, show_header=not rows, show_edge=False, padding=(0, gap - 1, 0, 0))
        for name, width in zip(self._names, widths, strict=True):
            is_words = name in self.sheet.words
            justify: Literal["left", "right"] = "left" if is_words else "right"
            table.add_column(self._heading(name), justify=justify, width=width, overflow="fold", no_wrap=not is_words)
        for row in rows:
            table.add_row(*map(Text, row))
        return table


def terminal(sheets: Sequence[TextTable]) -> Iterator[OnTerminal]:
    """Without the first column where rows share it: each section says it once, in a line of its own."""
    return map(OnTerminal, sheets)


def print_tables(sheets: Sequence[TextTable], name: str = "terminal") -> None:
    """Print tables in one of the formats."""
    for made in FORMATS[name](sheets):
        if isinstance(made, str):
            print(made)
        else:
            wide = Console().width if sys.stdout.isatty() else UNWRAPPED
            Console(width=max(wide, made.least_width)).print(made)


def markdown(sheet: TextTable) -> str:
    aligned = "".join("---|" if header in sheet.words else "---:|" for header in sheet.headers)
    lines = [_line(sheet.headers), f"|{aligned}", *map(_line, sheet.rows)]
    return f"{sheet.caption}\n\n" + "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def comma_separated(sheets: Sequence[TextTable]) -> str:
    """All tables as one, which any reader of CSV takes: a column says which, and what a table lacks is empty."""
    rows = [{"table": sheet.name, **values} for sheet in sheets for values in _values(sheet)]
    headers = ["table", *(name for sheet in sheets for name in (sheet.values[0] if sheet.values else sheet.headers))]
    file = io.StringIO()
    writer = csv.DictWriter(file, list(dict.fromkeys(headers)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def _values(sheet: TextTable) -> Sequence[Mapping[str, Value]]:
    """Each row by header; what is not known is empty."""
    if sheet.values:
        return sheet.values
    return [
        {name: "" if cell == DASH else cell for name, cell in zip(sheet.headers, row, strict=True)}
        for row in sheet.rows
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


def latex(sheet: TextTable) -> str:
    """A table for the package booktabs."""
    columns = "".join("l" if header in sheet.words else "r" for header in sheet.headers)
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{escaped(sheet.caption)}}}"]
    lines += [rf"\label{{tab:{sheet.name}}}"] if sheet.name else []
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


FORMATS: Table[Callable[[Sequence[TextTable]], Iterable[str | OnTerminal]]] = Table(
    "format",
    {
        "terminal": terminal,
        "markdown": partial(map, markdown),
        "csv": lambda sheets: [comma_separated(sheets).removesuffix("\n")],
        "latex": partial(map, latex),
    },
    closed=True,
)
