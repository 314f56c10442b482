"""Matrices as coloured cells, with margins by the length of names."""

import unicodedata
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from ccvr.core.arrays import Array
from ccvr.report.figures.panel import LINE, MAX_HOVERS, MAX_NAMES, WIDTH, bare
from ccvr.report.palette import SEQUENTIAL
from ccvr.report.svg import hover
from ccvr.report.text import shown

MAX_PIXELS = 160
"""Of a picture of numbers, along each side."""
LETTER = 0.078
"""Inches of a letter, at the size of all text."""

Names = Sequence[object]


def draw_matrix(
    matrix: Array,
    rows: tuple[str, Names],
    columns: tuple[str, Names],
    scale: str,
    *,
    low: float | None = None,
    high: float | None = None,
    digits: int = 0,
) -> Figure:
    """A matrix as coloured cells with a scale beside it; few cells tell their values."""
    height, width = matrix.shape
    known = matrix[np.isfinite(matrix)] if np.isfinite(matrix).any() else np.zeros(1)
    low = float(known.min()) if low is None else low
    high = max(float(known.max()) if high is None else high, low + 1e-9)
    left, bottom = LINE + 0.1 + _room(rows[1]), LINE + 0.1 + _room(columns[1], turned=_turned(columns[1]))
    figure = bare(bottom + min(max(0.25 * height, 0.8), 3) + 0.06)
    axes = _axes(figure, left, bottom, 0.9, 0.06)
    image: ScalarMappable
    if matrix.size <= MAX_HOVERS:
        image = axes.pcolormesh(matrix, cmap=SEQUENTIAL, vmin=low, vmax=high, clip_on=False)
        row, column = [f"{rows[0]} {name}" for name in rows[1]], [f"{columns[0]} {name}" for name in columns[1]]
        hover(image, *(f"{row[i]}, {column[j]}: {value:,.{digits}f}" for (i, j), value in np.ndenumerate(matrix)))
    else:
        image = _picture(axes, matrix, height, (low, high))
    bar = figure.colorbar(image, cax=_axes(figure, WIDTH - 0.8, bottom, 0.65, 0.06), label=scale)
    bar.outline.set_visible(False)
    axes.set(xlabel=columns[0], ylabel=rows[0], xlim=(0, width), ylim=(height, 0))
    _name(axes, rows[1], "y")
    _name(axes, columns[1], "x", turned=_turned(columns[1]))
    return figure


def strips(mixes: Array, values: Array, rows: Names, columns: Names, scales: tuple[str, str], most: float) -> Figure:
    """Mixes [K, C], 0 to ``most``, beside values [K, R, C]: each of the K rows is a band, in which R strips run from
    top to bottom.
    """
    bands, _, width = values.shape
    left, bottom, top = LINE + 0.1 + _room(rows), LINE + 0.1 + _room(columns, turned=True), 0.75
    figure = bare(bottom + min(max(0.3 * bands, 0.8), 3.2) + top)
    each = (WIDTH - left - 0.25) / 2
    known = values[np.isfinite(values)]
    limits = (0, max(most, 1)), np.percentile(known, [1, 99]) if known.size else (0, 1)
    for number, (matrix, scale) in enumerate(zip((mixes, values.reshape(-1, width)), scales, strict=True)):
        start = left + number * (each + 0.15)
        axes = _axes(figure, start, bottom, WIDTH - start - each, top)
        low, high = limits[number]
        image = _picture(axes, matrix, bands, (low, max(high, low + 1e-9)))
        above = _axes(figure, start, figure.get_figheight() - top + 0.07, WIDTH - start - each, top - 0.17)
        bar = figure.colorbar(image, cax=above, label=scale, orientation="horizontal")
        bar.outline.set_visible(False)
        above.xaxis.set_ticks_position("top")
        above.xaxis.set_label_position("top")
        axes.set(ylim=(bands, 0), xlim=(0, width), xlabel="class")
        edges = [(x, edge) for edge in range(1, bands) for x in (0, width, np.nan)]
        axes.plot(
            *zip(*edges, strict=True) if edges else ((), ()), color="white", linewidth=1.2 if bands <= 20 else 0.4
        )
        _name(axes, columns, "x", turned=True)
        _name(axes, rows if number == 0 else (), "y")
        axes.set_ylabel("client" if number == 0 else "")
    return figure


def _picture(axes: Axes, matrix: Array, height: float, limits: tuple[float, float]) -> AxesImage:
    """A matrix as one picture, ``height`` high, with a pixel for each number: thousands of cells are heavy. Where there
    are more numbers than can be seen, a pixel is the mean of some.
    """
    low, high = limits
    extent = (0, matrix.shape[1], height, 0)
    for axis in (0, 1):
        matrix = _fewer(matrix, axis)
    return axes.imshow(matrix, cmap=SEQUENTIAL, vmin=low, vmax=high, extent=extent, aspect="auto", interpolation="none")


def _fewer(matrix: Array, axis: int) -> Array:
    """Means of neighbours along an axis, if it is long; a group with something that is not a number is not, either."""
    length = matrix.shape[axis]
    if length <= MAX_PIXELS:
        return matrix
    edges = np.linspace(0, length, MAX_PIXELS + 1).round().astype(int)
    sizes = np.expand_dims(np.diff(edges), 1 - axis)
    return np.asarray(np.add.reduceat(matrix, edges[:-1], axis=axis) / sizes)


def _axes(figure: Figure, left: float, bottom: float, right: float, top: float) -> Axes:
    """Axes within these margins, in inches."""
    width, height = figure.get_size_inches()
    axes = figure.add_axes((left / width, bottom / height, 1 - (left + right) / width, 1 - (bottom + top) / height))
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    return axes


def _some(names: Names) -> dict[float, str]:
    """Places and names along an axis; of many, some at equal steps."""
    step = -(-len(names) // MAX_NAMES) or 1
    return {place + 0.5: shown(names[place], 14) for place in range(0, len(names), step)}


def _length(name: str) -> int:
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in name)


def _turned(names: Names) -> bool:
    """Whether names along x must stand upright to find room."""
    labels = _some(names).values()
    return max(map(_length, labels)) * len(labels) > 40


def _room(names: Names, *, turned: bool = True) -> float:
    """Inches that the names take beside their axis."""
    return LETTER * max(map(_length, _some(names).values())) if turned else LINE


def _name(axes: Axes, names: Names, which: str, *, turned: bool = False) -> None:
    places = _some(names)
    set_ticks = axes.set_xticks if which == "x" else axes.set_yticks
    set_ticks(list(places), list(places.values()), rotation=90 if turned else 0)
    axes.tick_params(axis="both", length=0)
