import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from ccvr.report.tables import (
    headline,
    listing_table,
    owners_table,
    recall_table,
    repeats_table,
    results_table,
    worst_class,
)


def rendered(table: Table, width: int = 200) -> str:
    console = Console(record=True, width=width, file=io.StringIO())
    console.print(table)
    return console.export_text()


def rows_of(table: Table, width: int = 200) -> list[list[str]]:
    """The cells of a table, header first, as a reader sees them."""
    lines = [line for line in rendered(table, width).splitlines() if line.startswith(("│", "┃"))]
    return [[cell.strip() for cell in re.split("[│┃]", line)[1:-1]] for line in lines]


def results(**changes: Any) -> dict[str, Any]:
    return {
        "accuracy": {"uncalibrated": 61.5, "ccvr": 67.625, "few": 60.0},
        "per_class_recall": {
            "uncalibrated": [50.0, 0.0, 75.0],
            "ccvr": [60.126, 70.0, None],
            "few": [10.0, 10.0, 10.0],
        },
        "client_accuracy": {
            "uncalibrated": {"mean": 60.0, "worst": 12.3456, "p10": 20.0},
            "ccvr": {"mean": 65.0, "worst": 40.0, "p10": 45.0},
            "few": {"mean": 1.0, "worst": 0.0, "p10": 0.5},
        },
        "deployed": "ccvr",
        "class_names": ["cat", "dog", "frog"],
        **changes,
    }


class TestResults:
    def test_the_numbers(self) -> None:
        assert rows_of(results_table([("mine", results())])) == [
            ["run", "head", "accuracy", "gain", "worst class", "worst client"],
            ["mine", "uncalibrated", "61.50", "", "0.00 (dog)", "12.35"],
            ["", "ccvr *", "67.62", "+6.12", "60.13 (cat)", "40.00"],
            ["", "few", "60.00", "-1.50", "10.00 (cat)", "0.00"],
        ]

    def test_runs_side_by_side(self) -> None:
        rows = rows_of(results_table([("one", results()), ("two", results(deployed="uncalibrated"))]))
        assert [(row[0], row[1]) for row in rows[1:]] == [
            ("one", "uncalibrated"),
            ("", "ccvr *"),
            ("", "few"),
            ("two", "uncalibrated *"),
            ("", "ccvr"),
            ("", "few"),
        ]

    def test_the_star_is_explained(self) -> None:
        assert "* saved as the run's model" in rendered(results_table([("one", results())]))

    def test_a_narrow_terminal_loses_no_name(self) -> None:
        name = "a-run-with-a-long-name"
        table = results_table([(name, results())])
        lines = rows_of(table, width=70)
        assert "".join(line[0] for line in lines) == f"run{name}"
        assert [line[2] for line in lines if "." in line[2]] == ["61.50", "67.62", "60.00"]


MARKUP = ["[bold]x[/bold]", "[/]", "[red]", ":smile:", "[link=http://x]y", "a[0]", "\\[b]"]


@pytest.mark.parametrize("name", MARKUP)
class TestHostileNames:
    def test_of_runs_and_classes(self, name: str) -> None:
        rows = rows_of(results_table([(name, results(class_names=["cat", name, "frog"]))]))
        assert rows[1][0] == name
        assert rows[1][4] == f"0.00 ({name})"

    def test_of_heads(self, name: str) -> None:
        renamed = {
            key: {name if label == "few" else label: item for label, item in results()[key].items()}
            for key in ("accuracy", "per_class_recall", "client_accuracy")
        }
        assert rows_of(results_table([("run", results(**renamed))]))[3][1] == name

    def test_of_repeats(self, name: str) -> None:
        assert rows_of(repeats_table([(name, [1.0], 0.0)]))[1][0] == name

    def test_of_owned_classes(self, name: str) -> None:
        assert rows_of(owners_table([[1, 2]], ["cat", name]))[0] == ["client", "cat", name, "all"]

    def test_of_recalled_classes(self, name: str) -> None:
        assert rows_of(recall_table([1.0], [name]))[1] == [name, "1.00"]

    def test_of_folders(self, name: str) -> None:
        root = Path("/data") / name
        shown = rendered(listing_table([Row("mnist", "d", 1, 1, f"/data/{name}/x")], root))
        assert f"Data sets (looked for in {root})" in shown
        assert f"/data/{name}/x" in shown


class TestWorstClass:
    def test_the_first_in_the_alphabet_of_equals(self) -> None:
        found = {"per_class_recall": {"a": [5.0, 5.0]}, "class_names": ["dog", "cat"]}
        assert worst_class(found, "a") == "5.00 (cat)"

    def test_a_class_without_samples_is_not_the_worst(self) -> None:
        found = {"per_class_recall": {"a": [None, 5.0, 7.0]}, "class_names": ["ant", "cat", "dog"]}
        assert worst_class(found, "a") == "5.00 (cat)"


def test_repeats() -> None:
    assert rows_of(repeats_table([("ccvr-m50", [60.0, 62.0, 64.0], 61.0), ("once", [59.5], 61.0)])) == [
        ["calibration", "n", "mean", "std", "gain"],
        ["ccvr-m50", "3", "62.00", "2.00", "+1.00"],
        ["once", "1", "59.50", "0.00", "-1.50"],
    ]


class TestOwners:
    def test_a_small_partition_is_shown_whole(self) -> None:
        assert rows_of(owners_table([[3, 0], [1200, 5]], ["cat", "dog"])) == [
            ["client", "cat", "dog", "all"],
            ["0", "3", "·", "3"],
            ["1", "1200", "5", "1205"],
        ]

    def test_just_small_enough(self) -> None:
        rows = rows_of(owners_table([[1] * 12] * 24, [f"c{i}" for i in range(12)]))
        assert len(rows) == 25
        assert not any("…" in row for row in rows)

    def test_a_large_partition_loses_its_middle_but_no_sum(self) -> None:
        counts = [[client * 100 + label for label in range(100)] for client in range(50)]
        rows = rows_of(owners_table(counts, [f"c{i}" for i in range(100)]))
        assert rows[0] == ["client", *(f"c{i}" for i in range(10)), "…", "c99", "all"]
        assert [row[0] for row in rows[1:]] == [*(str(i) for i in range(22)), "…", "49"]
        assert set(rows[23]) == {"…"}
        assert rows[24] == ["49", *(str(4900 + i) for i in range(10)), "…", "4999", str(sum(counts[49]))]


def test_recalls() -> None:
    assert rows_of(recall_table([12.345, None, 100.0], ["cat", "dog", "frog"])) == [
        ["class", "recall"],
        ["cat", "12.35"],
        ["dog", "no samples"],
        ["frog", "100.00"],
    ]


@dataclass
class Row:
    name: str
    description: str
    train: int
    test: int
    where: str | None


def test_data_sets() -> None:
    rows = [
        Row("digits", "8 x 8 digits", 1442, 355, "in scikit-learn"),
        Row("cifar10", "photos", 50000, 10000, None),
    ]
    assert rows_of(listing_table(rows, Path("/data"))) == [
        ["name", "what", "train", "test", "where"],
        ["digits", "8 x 8 digits", "1,442", "355", "in scikit-learn"],
        ["cifar10", "photos", "50,000", "10,000", "missing: ccvr data get cifar10"],
    ]


def test_the_headline() -> None:
    found = {"accuracy": {"uncalibrated": 88.7324, "ccvr": 94.6479}, "deployed": "ccvr"}
    assert headline(found) == "Test accuracy 88.73 % before calibration, 94.65 % after (ccvr): +5.92 points."
    kept = found | {"deployed": "uncalibrated"}
    assert headline(kept) == "Test accuracy 88.73 %; the model is saved without calibration."
