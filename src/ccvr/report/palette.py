"""One look for all figures: colours that a colour-blind reader can tell apart, and axes that can be read."""

import itertools
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from matplotlib import rc_context

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999")
"""Okabe and Ito's, without black and yellow: one drowns in the dark, the other in the light."""
BEFORE, AFTER = COLOURS[1], COLOURS[0]
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", ":", "-.")
SEQUENTIAL = "cividis"
INK = "#010203"
"""Text and axes. On the page it gives way to the page's own colour."""

LOOK = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
    "grid.color": INK,
    "grid.alpha": 0.15,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "font.size": 9,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
    "figure.constrained_layout.use": True,
    "figure.dpi": 110,
    "savefig.transparent": True,
    "savefig.dpi": 110,
    "svg.fonttype": "none",
    "svg.hashsalt": "ccvr",
    "text.parse_math": False,  # a name with two dollar signs is a name
}


@contextmanager
def look() -> Iterator[None]:
    with rc_context(LOOK):
        yield


class Pen(NamedTuple):
    """Colour, line and marker of one thing in a figure; two things never share all three."""

    colour: str
    dash: str
    marker: str


def pens() -> Iterator[Pen]:
    for number in itertools.count():
        turn = number // len(COLOURS)
        marker = MARKERS[(number + turn) % len(MARKERS)]
        yield Pen(COLOURS[number % len(COLOURS)], DASHES[turn % len(DASHES)], marker)


def shown(name: object, most: int = 24) -> str:
    """A name as a figure can show it: one line, not too long, nothing that turns the text around."""
    text = "".join(" " if char.isspace() else char for char in plain(name))
    return text if len(text) <= most else f"{text[: most - 9]}…{text[-8:]}"


def plain(text: object) -> str:
    """Text without control characters, halves of characters and marks that turn the direction of what follows."""
    return "".join(
        char if unicodedata.category(char) not in ("Cc", "Cs") or char in "\n\t" else "\N{REPLACEMENT CHARACTER}"
        for char in str(text)
        if not 0x202A <= ord(char) <= 0x202E and not 0x2066 <= ord(char) <= 0x2069
    )
