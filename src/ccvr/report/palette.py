"""One look for all figures: colours that a colour-blind reader can tell apart, and axes that can be read."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from matplotlib import rc_context

COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999")
"""Okabe and Ito's, without black and yellow: one drowns in the dark, the other in the light."""
BEFORE, AFTER = COLOURS[:2]
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", ":", "-.")
SEQUENTIAL = "cividis"
INK = "#010203"
"""Text and axes. On the page it gives way to the page's own colour."""

LOOK: dict[Any, Any] = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
    "grid.color": INK,
    "grid.alpha": 0.15,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "font.size": 9,
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib: the same layout everywhere
    "legend.fontsize": 8,
    "legend.frameon": False,
    "image.composite_image": False,  # pictures keep their own pixels
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
    "figure.constrained_layout.use": True,
    "figure.dpi": 90,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
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
