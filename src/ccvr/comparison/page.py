"""A comparison of algorithms → one HTML page that needs nothing else."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ccvr.comparison.arms import Comparison
from ccvr.comparison.tables import tables_of
from ccvr.report.blocks import accuracies, how_to_repeat, scrolling, section, what_was_run
from ccvr.report.figure_set import draw, inlined
from ccvr.report.figures.table import FIGURES
from ccvr.report.groups import Group
from ccvr.report.markup import as_name, as_text
from ccvr.report.page import document
from ccvr.report.runs import RunFiles
from ccvr.report.text_table import TextTable

DRAWN = [row for row in FIGURES if row.id == "accuracy"]
"""Figures of the page: lines by round, one for each algorithm."""


def comparison_page(comparison: Comparison, runs: Mapping[str, Sequence[RunFiles]]) -> str:
    """The whole page. ``runs`` are the finished runs by algorithm; without any the page has the numbers alone."""
    groups = [Group(arm, "", tuple(found)) for arm, found in runs.items() if found]
    title = f"{comparison.name}: algorithms compared"
    verdicts = "".join(f"<p>{as_text(line)}</p>" for line in comparison.verdicts())
    body = [
        '<a class="skip" href="#main">Skip to the content</a>',
        f'<header><h1>{as_text(title)}</h1><p class="faint">{as_text(comparison.about)}. '
        f"Seeds: {', '.join(map(str, comparison.seeds))}.</p></header>",
        f'<main id="main" tabindex="-1"><section class="card" id="verdicts">{verdicts}</section>',
        *map(_table, tables_of(comparison)),
        *(_from_runs(groups) if groups else ()),
        "</main>",
    ]
    return document(title, "\n".join(body))


def _from_runs(groups: Sequence[Group]) -> list[str]:
    """What the numbers do not say: every head, the rounds of the first seed, the specs, and the command."""
    first = [replace(group.runs[0], name=group.name) for group in groups]
    figures = [section(each.row.section, [each], inlined([each])) for each in draw(first, DRAWN)]
    return [accuracies(groups), *figures, what_was_run(groups), how_to_repeat(first[:1])]


def _table(table: TextTable) -> str:
    head = "".join(f'<th scope="col"{_kind(name, table)}>{as_text(name)}</th>' for name in table.headers)
    rows = "".join(
        "<tr>"
        + "".join(
            f"<td{_kind(name, table)}>{as_name(cell)}</td>" for name, cell in zip(table.headers, row, strict=True)
        )
        + "</tr>"
        for row in table.rows
    )
    whole = f'<table id="{table.name}"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    heading = f'<h2>{table.name.capitalize()}</h2><p class="faint">{as_text(table.caption)}.</p>'
    return heading + scrolling(whole, len(table.rows), table.name.capitalize())


def _kind(name: str, table: TextTable) -> str:
    return "" if name in table.words else " class=n"
