"""Test features in the plane (t-SNE)."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from ccvr.core.arrays import Array
from ccvr.report.figures.panel import MAX_NAMES, Panel, new_axes
from ccvr.report.palette import COLOURS, PAPER
from ccvr.report.runs import RunFiles
from ccvr.report.text import shown

MAX_POINTS = 2000
"""Points of a panel; more make the page heavy and hide each other."""
MAX_WRITTEN = 100
"""Names of classes among the points."""


class Shape(NamedTuple):
    cap: Literal["round", "projecting"]
    marker: str
    size: float


SHAPES = (Shape("round", "o", 2.2), Shape("projecting", "s", 2.0), Shape("round", "o", 3.6))
"""Of the first classes, one for each colour; of the next, and so on."""
NUM_PENS = len(COLOURS) * len(SHAPES)


def tsne(run: RunFiles) -> list[Panel]:
    """Three times the same points: by their class, and by what each head takes them for."""
    if "tsne" not in run.analyses:
        return []
    arrays, about = run.analyses["tsne"]
    points, truth = arrays["points"], arrays["truth"]
    drawn = np.unique(np.linspace(0, len(points) - 1, min(len(points), MAX_POINTS)).round().astype(int))
    titles = {"truth": "true class", "before": "predicted before", "after": f"predicted after ({about['after']})"}
    classes = np.unique(np.concatenate([arrays[key] for key in titles])).tolist()
    names = {label: shown(run.class_names[label], 12) for label in classes}
    panels = []
    for key, title in titles.items():
        right = 100 * float(np.mean(arrays[key] == truth))
        some = f", of which {len(drawn):,} are drawn" if len(drawn) < len(points) else ""
        alt = f"t-SNE of {len(points):,} test features{some}, coloured by {title}; {right:.1f} % agree with the truth."
        figure, axes = new_axes(4.3)
        found = arrays[key][drawn]
        for pen in sorted({label % NUM_PENS for label in classes}):
            _cloud(axes, points[drawn], found % NUM_PENS == pen, pen)
        axes.set(xticks=[], yticks=[])
        axes.autoscale_view()
        axes.spines[:].set_visible(False)
        _name(axes, [(name, points[drawn][found == label]) for label, name in names.items() if label in found])
        if len(names) <= MAX_NAMES:
            columns = {"ncols": 5, "handletextpad": 0.1, "columnspacing": 0.8}
            figure.legend(
                [_mark(label) for label in classes], list(names.values()), loc="outside lower center", **columns
            )
        panels.append(Panel(figure, alt, title))
    return panels


def _name(axes: Axes, clouds: Sequence[tuple[str, Array]]) -> None:
    """Write each name amid the points of its class, for colour-blind readers."""
    if len(clouds) > MAX_WRITTEN:
        return
    few = len(clouds) <= MAX_NAMES
    size = 8 if few else 5
    extent = np.ptp(np.concatenate([points for _, points in clouds]), axis=0)
    box = {"boxstyle": "square,pad=0.1", "facecolor": PAPER, "edgecolor": "none", "alpha": 0.8}
    taken: list[tuple[Array, Array]] = []
    for name, points in clouds:
        room = extent * size / 8 * (0.019 * len(name), 0.035)
        place = _free(points, room, taken)
        taken.append((place, room))
        axes.text(place[0], place[1], name, size=size, ha="center", va="center", bbox=box if few else None)


def _free(points: Array, room: Array, taken: Sequence[tuple[Array, Array]]) -> Array:
    """The point closest to the middle at which a text of this size hides no other; without one, the closest."""
    central = points[np.abs(points - np.median(points, axis=0)).sum(1).argsort(kind="stable")]
    clear = (all((np.abs(each - place) > (room + other) / 2).any() for place, other in taken) for each in central)
    return next((each for each, free in zip(central, clear, strict=True) if free), central[0])


def _pen(number: int) -> tuple[str, Shape]:
    return COLOURS[number % len(COLOURS)], SHAPES[number // len(COLOURS) % len(SHAPES)]


def _mark(label: int) -> Line2D:
    """What stands for the points of a class in a legend."""
    colour, shape = _pen(label)
    return Line2D([], [], marker=shape.marker, color=colour, linestyle="none", mew=0, markersize=2.2 * shape.size)


def _cloud(axes: Axes, points: Array, chosen: Array, pen: int) -> None:
    """Draw points in one colour and shape.

    One path of very short lines with thick ends: a marker for each point would be five times the bytes.
    """
    colour, shape = _pen(pen)
    length = np.array([np.ptp(points[:, 0]) / 50_000, 0])
    ends = np.stack([points[chosen], points[chosen] + length], axis=1).reshape(-1, 2)
    if len(ends):
        path = Path(ends, np.tile([Path.MOVETO, Path.LINETO], len(ends) // 2))
        path.should_simplify = False  # lines as short as these would be left out,
        cloud = PathPatch(path, fc="none", ec=colour, lw=shape.size, capstyle=shape.cap)
        cloud.set_snap(False)  # and those that are snapped to one pixel, too
        axes.add_patch(cloud)
