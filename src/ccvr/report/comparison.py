"""Published numbers beside ours."""

from collections.abc import Sequence
from dataclasses import dataclass

from ccvr.report.groups import Spread
from ccvr.report.published import Published
from ccvr.report.sheet import DASH, Sheet, Value

EXACT = 6
"""Digits to which numbers are compared: far less than one test image, far more than floats err."""


@dataclass(frozen=True)
class Row:
    """One entry of a table of the paper: test accuracy in percent, theirs and ours; what is not known is None."""

    cell: str
    head: str
    setting: str
    method: str
    paper: Published | None
    ours: Spread | None = None
    gain: Spread | None = None
    seeds: int = 0
    gain_seeds: int = 0
    scale: str = ""

    @property
    def difference(self) -> float | None:
        return None if self.ours is None or self.paper is None else self.ours.mean - self.paper.mean


HEADERS = ("setting", "method", "paper", "ours", "ours − paper", "paper's gain", "our gain", "seeds", "scale")
WORDS = ("setting", "method", "scale")


def comparison(title: str, rows: Sequence[Row], name: str = "") -> Sheet:
    """A table of the paper, each entry beside ours, with how much ours was trained."""
    scales = list(dict.fromkeys(row.scale for row in rows if row.scale))
    trained = f"ours: {', '.join(scales)}" if scales else "ours: nothing yet"
    mixed = "; scales are mixed, each row has its own, and so has its gain" if len(scales) > 1 else ""
    caption = f"{title}. Test accuracy in percent; rounds × local epochs: paper: 100 × 10, {trained}{mixed}."
    return Sheet(caption, HEADERS, [_cells(row) for row in rows], WORDS, [_values(row) for row in rows], name)


def _cells(row: Row) -> list[str]:
    paper = None if row.paper is None else Spread(row.paper.mean, row.paper.std)
    theirs = None if row.paper is None or row.paper.gain is None else Spread(row.paper.gain, None)
    difference = None if row.difference is None else Spread(row.difference, None)
    spreads = [(paper, ""), (row.ours, ""), (difference, "+"), (theirs, "+"), (row.gain, "+")]
    numbers = [DASH if spread is None else spread.text(sign) for spread, sign in spreads]
    is_part = row.gain is not None and row.gain_seeds != row.seeds  # not every seed has what the gain is counted from
    seeds = f"{row.seeds}, gain {row.gain_seeds}" if is_part else str(row.seeds or DASH)
    return [row.setting, row.method, *numbers, seeds, row.scale.partition(" (")[0] or DASH]


def _values(row: Row) -> dict[str, Value]:
    numbers = {
        "paper_mean": row.paper.mean if row.paper else None,
        "paper_std": row.paper.std if row.paper else None,
        "paper_gain": row.paper.gain if row.paper else None,
        "mean": row.ours.mean if row.ours else None,
        "std": row.ours.std if row.ours else None,
        "difference": row.difference,
        "gain": row.gain.mean if row.gain else None,
        "gain_std": row.gain.std if row.gain else None,
    }
    rounded = {name: None if number is None else round(number, 4) for name, number in numbers.items()}
    counts: dict[str, Value] = {"seeds": row.seeds, "gain_seeds": row.gain_seeds, "scale": row.scale}
    return {"cell": row.cell, "head": row.head, **rounded, **counts}
