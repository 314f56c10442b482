"""Matrices as coloured cells."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from ccvr.core.arrays import Array
from ccvr.report.figures.panel import LINE, MAX_HOVERS, MAX_NAMES, WIDTH, new_axes
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
    """A matrix as coloured cells with a scale beside it; a matrix of few cells has its values on hover."""
    height, width = matrix.shape
    known = matrix[np.isfinite(matrix)] if np.isfinite(matrix).any() else np.zeros(1)
    low = float(known.min()) if low is None else low
    high = max(float(known.max()) if high is None else high, low + 1e-9)
    labels = _some(columns[1]).values()
    turned = max(map(len, labels)) * len(labels) > 40
    figure, axes = new_axes(min(max(0.25 * height, 0.8), 3) + (_room(columns[1]) if turned else LINE) + 0.4)
    image: ScalarMappable
    if matrix.size <= MAX_HOVERS:
        image = axes.pcolormesh(matrix, cmap=SEQUENTIAL, vmin=low, vmax=high, clip_on=False)
        row, column = [f"{rows[0]} {name}" for name in rows[1]], [f"{columns[0]} {name}" for name in columns[1]]
        hover(image, *(f"{row[i]}, {column[j]}: {value:,.{digits}f}" for (i, j), value in np.ndenumerate(matrix)))
    else:
        image = _picture(axes, matrix, height, (low, high))
    figure.colorbar(image, ax=axes, label=scale, pad=0.02).outline.set_visible(False)
    axes.set(xlabel=columns[0], ylabel=rows[0], xlim=(0, width), ylim=(height, 0))
    _name(axes, rows[1], columns[1], turned=turned)
    return figure


def strips(mixes: Array, values: Array, rows: Names, columns: Names, scales: tuple[str, str], most: float) -> Figure:
    """Mixes [K, C], 0 to ``most``, beside values [K, R, C]: each of the K rows is a band, in which R strips run from
    top to bottom.
    """
    bands, _, width = values.shape
    figure = Figure(figsize=(WIDTH, min(max(0.3 * bands, 0.8), 3.2) + _room(columns) + 1.1))
    known = values[np.isfinite(values)]
    limits = (0, max(most, 1)), np.percentile(known, [1, 99]) if known.size else (0, 1)
    for number, (matrix, scale) in enumerate(zip((mixes, values.reshape(-1, width)), scales, strict=True)):
        axes = figure.add_subplot(1, 2, number + 1)
        low, high = limits[number]
        image = _picture(axes, matrix, bands, (low, max(high, low + 1e-9)))
        figure.colorbar(image, ax=axes, label=scale, location="top", pad=0.02).outline.set_visible(False)
        axes.set(ylim=(bands, 0), xlim=(0, width), xlabel="class", ylabel="" if number else "client")
        edges = np.repeat(np.arange(1, bands), 3)  # one line with gaps: a line for each edge is several times the bytes
        axes.plot(np.tile([0, width, np.nan], bands - 1), edges, color="white", linewidth=1.2 if bands <= 20 else 0.4)
        _name(axes, () if number else rows, columns, turned=True)
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


def _some(names: Names) -> dict[float, str]:
    """Places and names along an axis; of many, some at equal steps."""
    step = -(-len(names) // MAX_NAMES) or 1
    return {place + 0.5: shown(names[place], 14) for place in range(0, len(names), step)}


def _room(names: Names) -> float:
    """Inches of the longest name."""
    return LETTER * max(map(len, _some(names).values()))


def _name(axes: Axes, rows: Names, columns: Names, *, turned: bool) -> None:
    """Write names beside the rows and below the columns; ``turned`` ones stand upright."""
    axes.set_yticks(list(_some(rows)), list(_some(rows).values()))
    axes.set_xticks(list(_some(columns)), list(_some(columns).values()), rotation=90 if turned else 0)
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
