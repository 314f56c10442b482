"""Accuracy by round: how far trainings of different lengths are at each tenth of their rounds."""

from collections.abc import Sequence
from statistics import mean

from ccvr.report.text_table import DASH, TextTable, Value
from ccvr.reproduction.cells import CELLS, Cell, Scale
from ccvr.reproduction.comparison import method_of, setting_of
from ccvr.reproduction.heads import BEFORE
from ccvr.reproduction.run_index import RunIndex, Trained

TENTHS = tuple(range(1, 11))
CAPTION = (
    "{}. Test accuracy in percent of the uncalibrated model after each tenth of its rounds, mean over seeds: of "
    "100 rounds after 10, 20, …, of 10 after every one."
)
WORDS = ("setting", "method", "scale")


def by_round(title: str, cells: Sequence[str], trainings: RunIndex, scale: Scale | None, name: str) -> TextTable:
    """A row for every cell and scale that was trained, setting by setting."""
    every = [CELLS[each] for each in cells]
    values = [
        _row(cell, each, trainings)
        for setting in dict.fromkeys(map(setting_of, every))
        for cell in every
        for each in trainings.scales(cell)
        if setting_of(cell) == setting and scale in (None, each)
    ]
    headers = (*WORDS, "seeds", *(f"{tenth}/10" for tenth in TENTHS))
    return TextTable(
        CAPTION.format(title), headers, [list(map(_text, row.values())) for row in values], WORDS, values, name
    )


def _row(cell: Cell, scale: Scale, trainings: RunIndex) -> dict[str, Value]:
    own = list(trainings.seeds(cell, scale).values())
    about: dict[str, Value] = {
        "setting": setting_of(cell),
        "method": method_of(cell, BEFORE),
        "scale": scale.name,
        "seeds": len(own),
    }
    return about | {f"{tenth}/10": _after(own, -(-tenth * scale.rounds // 10)) for tenth in TENTHS}


def _after(own: Sequence[Trained], number: int) -> float | None:
    """Mean accuracy after a round; None where it was not evaluated then."""
    found = [row.get("accuracy") for each in own for row in each.files.rounds if row["round"] == number]
    known = [value for value in found if value is not None]
    return mean(known) if len(known) == len(own) else None


def _text(value: Value) -> str:
    return DASH if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)
