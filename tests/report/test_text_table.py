"""One table in four formats."""

import csv
import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from ccvr.report.groups import Spread
from ccvr.report.published import Published
from ccvr.report.text_table import (
    FORMATS,
    TextTable,
    comma_separated,
    escaped,
    latex,
    markdown,
    print_tables,
    rich_table,
)
from ccvr.reproduction.cells import SCALES
from ccvr.reproduction.comparison import TableRow, comparison

QUICK, PAPER = SCALES["quick"], SCALES["paper"]
FULL = TableRow(
    "cifar10-a0.1-fedavg",
    "ccvr",
    "CIFAR-10, α = 0.1",
    "FedAvg + CCVR",
    Published(62.68, 0.54, 4.13),
    Spread(61.994, 0.486),
    Spread(5.24, 0.89),
    3,
    3,
    QUICK,
)
BARE = TableRow("cifar10-a0.5-moon", "oracle", "CIFAR-10, α = 0.5", "MOON + whole data", Published(72.05, None, None))


def shown(table: TextTable, width: int = 200) -> str:
    console = Console(width=width, file=io.StringIO(), legacy_windows=False)
    console.print(rich_table(table))
    return console.file.getvalue()


def test_published_and_ours_stand_side_by_side():
    cells = comparison("T", [FULL]).rows[0]
    assert cells == [
        "CIFAR-10, α = 0.1",
        "FedAvg + CCVR",
        "62.68 ± 0.54",
        "61.99 ± 0.49",
        "-0.69",
        "+4.13",
        "+5.24 ± 0.89",
        "3",
        "quick",
    ]
    assert [cell for cell in cells if cell not in markdown(comparison("T", [FULL]))] == []
    terminal = shown(comparison("T", [FULL]))
    assert [cell for cell in cells if cell.replace(" ± ", "±") not in terminal] == []


def test_in_the_terminal_a_section_says_once_what_its_rows_share():
    text = shown(comparison("T", [FULL, FULL, BARE]), width=120)
    lines = [line.strip() for line in text.splitlines()]
    assert [" ".join(line.split()[:4]) for line in lines if line.startswith("CIFAR")] == [FULL.setting, BARE.setting]
    assert sum("FedAvg + CCVR" in line and "62.68±0.54" in line for line in lines) == 2, "numbers are not broken"
    assert "setting" in shown(comparison("T", [FULL, BARE])), "of rows that share nothing each says its own"


def test_what_is_not_known_is_a_dash_and_empty_for_programs():
    assert comparison("T", [BARE]).rows[0][2:] == ["72.05", "–", "–", "–", "–", "–", "–"]
    (row,) = csv.DictReader(io.StringIO(comma_separated([comparison("T", [BARE])])))
    assert {name for name, value in row.items() if value == ""} == {
        *("table", "paper_std", "paper_gain", "mean", "std", "difference", "gain", "gain_std", "scale")
    }


def test_numbers_for_programs():
    (row,) = csv.DictReader(io.StringIO(comma_separated([comparison("T", [FULL], "t")])))
    assert row == {
        "table": "t",
        "cell": "cifar10-a0.1-fedavg",
        "head": "ccvr",
        "paper_mean": "62.68",
        "paper_std": "0.54",
        "paper_gain": "4.13",
        "mean": "61.994",
        "std": "0.486",
        "difference": "-0.686",
        "gain": "5.24",
        "gain_std": "0.89",
        "seeds": "3",
        "gain_seeds": "3",
        "scale": "quick (10 × 5)",
    }


@pytest.mark.parametrize("scales", [[QUICK], [QUICK, PAPER]])
def test_a_table_of_mixed_scales_says_so_in_every_row(scales):
    rows = [
        TableRow(*[FULL.cell, FULL.head, FULL.setting, FULL.method, None], Spread(60, None), scale=s) for s in scales
    ]
    table = comparison("T", rows)
    assert ("scales are mixed" in table.caption) == (len(scales) > 1)
    assert [row[-1] for row in table.rows] == [scale.name for scale in scales]
    assert all(scale.label in table.caption for scale in scales)


def test_a_gain_over_fewer_seeds_says_over_how_many():
    row = TableRow(*[FULL.cell, FULL.head, "s", "m", None], Spread(60, 1), Spread(2, None), seeds=2, gain_seeds=1)
    assert comparison("T", [row]).rows[0][6:8] == ["+2.00", "2, gain 1"]


def test_latex_sets_every_character():
    assert escaped(r"50% & $x_1$ #{a} \n ~^") == (
        r"50\% \& \$x\_1\$ \#\{a\} \textbackslash{}n \textasciitilde{}\textasciicircum{}"
    )
    text = latex(comparison("A & B_c", [FULL, BARE]))
    assert r"\caption{A \& B\_c. Test accuracy" in text
    assert (
        r"CIFAR-10, $\alpha$ = 0.1 & FedAvg + CCVR & 62.68 $\pm$ 0.54 & 61.99 $\pm$ 0.49 & $-$0.69 & $+$4.13 &" in text
    )
    assert r"quick (10 $\times$ 5)" in text
    assert "label" not in text
    assert "\\label{tab:table2}\n" in latex(comparison("T", [FULL], "table2"))
    assert r"& 3 & quick \\" in text
    assert r"& ours $-$ paper &" in text
    assert text.count(r"\midrule") == 1, "settings that stand in one row each are no sections"
    assert latex(comparison("T", [FULL, FULL, BARE])).count(r"\midrule") == 2
    assert not set(text) - {chr(code) for code in range(32, 127)} - {"\n"}, "nothing that needs a special font"
    for line in text.splitlines():
        if line.endswith(r"\\"):
            assert line.replace(r"\&", "").count("&") == 8, "nine columns"


def test_markdown_keeps_a_cell_in_its_column():
    text = markdown(TextTable("c", ("a", "b"), [["x|y", "1"]], ("a",)))
    assert text == "c\n\n| a | b |\n|---|---:|\n| x\\|y | 1 |\n"


def test_names_are_no_markup_in_markdown():
    (line,) = markdown(TextTable("c", ("a",), [["<b>[x](http://y) \\| `z`"]], ("a",))).splitlines()[4:]
    assert line == "| \\<b>\\[x](http://y) \\\\\\| \\`z\\` |"


@pytest.mark.parametrize("text", ["=cmd|' /C calc'!A0", "+1+1", "-x", "@SUM(A1)", "\t=1", "-"])
def test_names_are_no_formulas_in_csv(text):
    plain = TextTable("c", ("a", "b"), [[text, "1"]], ("a",), name="t")
    for table in (plain, replace(plain, values=[{"a": text, "b": 1}])):
        (row,) = csv.DictReader(io.StringIO(comma_separated([table])))
        assert row == {"table": "t", "a": f"'{text}", "b": "1"}


@pytest.mark.parametrize("text", ["-0.69", "+4.13", "-1e5", "2"])
def test_numbers_in_csv_stay_numbers(text):
    (row,) = csv.DictReader(io.StringIO(comma_separated([TextTable("c", ("a",), [[text]])])))
    assert row["a"] == text


@pytest.mark.parametrize("name", ["terminal", *FORMATS])
def test_names_steer_no_terminal_and_add_no_line(name, capsys):
    hostile, plain = "\x1b]0;taken\x07\n\x9b31m\u202e", "x" * 40
    printed = []
    for each in (hostile, plain):
        print_tables([TextTable(each, ("a", each), [[each, each]], ("a",), name=each)], name)
        printed.append(capsys.readouterr().out)
    assert printed[0].replace("\n", "").isprintable()
    assert len(printed[0].splitlines()) == len(printed[1].splitlines())


def test_markup_of_the_terminal_is_text():
    assert "[bold]x[/bold]" in shown(TextTable("[red]c", ("a",), [["[bold]x[/bold]"]], ("a",)))


@pytest.mark.parametrize("name", ["terminal", *FORMATS])
def test_a_table_without_rows(name, capsys):
    print_tables([TextTable("Nothing", ("one", "two"), [])], name)
    text = capsys.readouterr().out
    assert "one" in text
    assert "two" in text


def test_all_csv_is_one_table():
    tables = [comparison("T", [FULL], "table2"), TextTable("C", ("claim", "ours"), [["1", "–"]], name="claims")]
    text = comma_separated(tables)
    rows = list(csv.DictReader(io.StringIO(text), strict=True))
    assert [(row["table"], row["cell"], row["claim"]) for row in rows] == [
        ("table2", FULL.cell, ""),
        ("claims", "", "1"),
    ]
    assert rows[1]["ours"] == "", "what is not known is empty"
    assert len(text.splitlines()) == 3, "one line of headers"


@pytest.mark.parametrize("width", [40, 62, 80, 100, 200])
def test_numbers_and_titles_are_whole_in_a_narrow_terminal(width, monkeypatch, capsys):
    """Where there is no room at all, in lines that are longer than the terminal."""
    long = replace(FULL, method="FedAvg + 1000 real samples per class")
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_tables([comparison("T", [FULL, long, BARE])])
    text = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out)
    lines = [line.rstrip() for line in text.splitlines()]
    assert max(map(len, lines)) <= max(width, 78)
    numbers = "62.68±0.54 61.99±0.49 -0.69 +4.13 +5.24±0.89 3 quick"
    assert sum(" ".join(line.split()).endswith(numbers) for line in lines) == 2
    assert [word for word in long.method.split() if word not in text.split()] == [], "words fold and are not cut"


def test_lines_of_a_file_are_not_broken(capsys):
    long = replace(FULL, method=" ".join(["word"] * 60))
    print_tables([comparison("A caption " * 30, [FULL, long])])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("A caption " * 30)
    assert sum(long.method in line and "62.68±0.54" in line for line in lines) == 1
