"""The paper's numbers (Luo et al. 2021): test accuracy in percent by cell and head, one file for each table.

Files keep the order of the paper's rows, left to right. A cell is named like its preset; ``gain`` is the one printed.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

ALPHAS = (0.5, 0.1, 0.05)
"""Dirichlet parameters of the tables on CIFAR-10."""
TABLES = ("table1", "table2", "table3", "table4", "table5")


@dataclass(frozen=True)
class Published:
    """Mean and standard deviation over three seeds, and the gain; what the paper does not print is None."""

    mean: float
    std: float | None
    gain: float | None


@cache
def published(table: str) -> Mapping[tuple[str, str], Published]:
    """(Cell, head) → what a table of the paper says."""
    text = files("ccvr.report").joinpath("published", f"{table}.csv").read_text(encoding="utf-8")
    return {
        (row["cell"], row["head"]): Published(float(row["mean"]), _number(row["std"]), _number(row["gain"]))
        for row in csv.DictReader(text.splitlines())
    }


def _number(text: str) -> float | None:
    return float(text) if text else None
