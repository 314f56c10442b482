"""The data files of the paper's numbers: against its TeX where that is there, and against themselves."""

import re
from collections import defaultdict
from pathlib import Path

import pytest

from ccvr.report.published import TABLES, Published, published

TEX = sorted((Path(__file__).parents[3] / "shared" / "paper").glob("*.txt"))
LABELS = {
    "table1": "tab:cls_reg",
    "table2": "tab:main_res",
    "table3": "tab:cls_cal_number",
    "table4": "tab:varying_clients",
    "table5": "tab:cls_cal_whole",
}
ENTRIES = {"table1": 15, "table2": 60, "table3": 54, "table4": 18, "table5": 24}


@pytest.mark.parametrize("table", TABLES)
def test_every_entry_is_there_and_no_more(table):
    assert len(published(table)) == ENTRIES[table]


@pytest.mark.skipif(not TEX, reason="the paper's TeX is not in ../shared/paper")
@pytest.mark.parametrize("table", TABLES)
def test_the_numbers_are_those_of_the_tex_in_its_order(table):
    text = TEX[0].read_text()
    body = text[text.index(rf"\label{{{LABELS[table]}}}") :]
    body = body[body.index("midrule") : body.index(r"\end{tabular}")]
    if table == "table3":  # its first row stands above the first rule
        body = text[text.index(r"\hline\hline", text.index(rf"\label{{{LABELS[table]}}}")) :]
        body = body[: body.index(r"\end{tabular}")]
    number = r"(\d\d\.\d\d)(?:\$\\pm\$(\d\.\d\d))?"
    gain = r"(?:\}?\s*\{\\color\{(\w+)\}\\scriptsize\{\(\$\\\w+arrow\$ (\d+\.\d\d)\)\}\})?"
    found = [
        Published(
            float(mean), float(std) if std else None, float(gained) * (-1) ** (colour == "red") if gained else None
        )
        for mean, std, colour, gained in re.findall(number + gain, body)
    ]
    assert found == list(published(table).values())


@pytest.mark.parametrize("table", TABLES)
def test_printed_gains_are_differences_of_printed_means(table):
    """A slip in any mean or gain shows here. Gains of regularised cells count from the plain one."""
    rows = published(table)
    for (cell, head), row in rows.items():
        base = re.sub("-clsnorm|-clsprox", "", cell) if head == "uncalibrated" else cell
        if (base, "uncalibrated") == (cell, head):
            assert row.gain is None
        else:
            assert row.gain == pytest.approx(row.mean - rows[base, "uncalibrated"].mean, abs=0.0051)


def test_tables_that_share_an_entry_agree():
    seen, spreads = defaultdict(set), defaultdict(set)
    for table in TABLES:
        for key, row in published(table).items():
            seen[key].add((row.mean, row.gain))
            spreads[key] |= {row.std} - {None}
    assert {key: values for key, values in spreads.items() if len(values) > 1} == {}
    assert {key: values for key, values in seen.items() if len(values) > 1} == {}
    shared = sum(ENTRIES.values()) - len(seen)
    assert shared == 33, "entries that a table repeats"
