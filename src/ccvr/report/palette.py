"""One look for all figures: colours for colour-blind readers, legible axes."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from matplotlib import colormaps, rc_context

COLOURS = (
    *("#D55E00", "#0072B2", "#E69F00", "#56B4E9", "#C31EFF"),
    *("#A53C69", "#879687", "#1E3CA5", "#693C00", "#B4C3A5"),
)
"""Ten that stay apart for readers who see no red, no green or no blue: four of Okabe and Ito's, and six searched for.
None drowns in the dark or in the light.
"""
BEFORE, AFTER = COLOURS[:2]
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", ":", "-.")
SEQUENTIAL = colormaps["cividis"].resampled(64)
"""In 64 steps: pictures with few colours are small files."""
INK, PAPER = "#010203", "#fefdfc"
"""Text and axes, and what is behind them. On the page both give way to the page's own colours."""

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
