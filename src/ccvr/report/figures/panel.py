"""The parts that figures are made of: a panel, lines, points, bars."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from ccvr.report.palette import COLOURS, INK, Pen, pens
from ccvr.report.runs import RunFiles
from ccvr.report.svg import hover
from ccvr.report.text import shown

WIDTH = 4.5
LETTERS = 64
"""Of a line across a figure, at the size of all text."""
LINE = 0.17
"""Inches of a line."""
MAX_HOVERS = 250
"""The largest number of points or cells with values on hover in a panel."""
MAX_NAMES = 20
"""Names along an axis, or in a legend."""


@dataclass(frozen=True)
class Panel:
    """One drawing, what it shows in words for screen readers, and a name where it stands beside others."""

    figure: Figure
    alt: str
    name: str = ""


Draw = Callable[[Sequence[RunFiles]], list[Panel]]


def of_each_run(draw: Callable[[RunFiles], list[Panel]]) -> Draw:
    """A figure with panels of every run that has what it takes."""
    return lambda runs: [
        Panel(panel.figure, panel.alt, " · ".join(filter(None, [run.label if len(runs) > 1 else "", panel.name])))
        for run in runs
        for panel in draw(run)
    ]


def new_axes(height: float = 3.0, width: float = WIDTH) -> tuple[Figure, Axes]:
    """A figure with one pair of axes; sizes in inches."""
    figure = Figure(figsize=(width, height))
    return figure, figure.add_subplot()


def entitle(figure: Figure, *titles: str) -> None:
    """Write titles above a drawing that stands alone; the drawing keeps its size."""
    text = [line for title in titles for line in wrap(title, LETTERS)]
    figure.set_figheight(figure.get_figheight() + LINE * len(text) + 0.08)
    figure.suptitle("\n".join(text), size=9)


def lines(
    series: Mapping[str, Sequence[tuple[float, float]]], x: str, y: str, *, unit: str = "", whole: bool = True
) -> tuple[Figure, Axes]:
    """Named lines through points (x, y)."""
    figure, axes = new_axes(3.0 + 0.16 * len(series) * (len(series) > 1))
    has_values = sum(map(len, series.values())) <= MAX_HOVERS
    for (name, points), pen in zip(series.items(), pens(), strict=False):
        axes.plot(*zip(*points, strict=True), pen.dash, color=pen.colour)
        axes.plot([], [], pen.dash, color=pen.colour, marker=pen.marker if has_values else None, label=shown(name))
        if has_values:
            words = [f"{name}: {each[1]:.4g}{unit} ({x} {each[0]:g})" for each in points]
            dots(axes, points, pen, words)
    axes.set(xlabel=x, ylabel=y)
    if whole:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if len(series) > 1:
        legend(figure, axes)
    return figure, axes


def dots(axes: Axes, points: Sequence[tuple[float, float]], pen: Pen, words: Sequence[str]) -> Line2D:
    """Points (x, y), each with its words on hover; what is not a number has no place."""
    placed = [(*point, text) for point, text in zip(points, words, strict=True) if np.isfinite(point).all()]
    x, y, texts = zip(*placed, strict=True) if placed else ((), (), ())
    (found,) = axes.plot(x, y, pen.marker, color=pen.colour, linestyle="none")
    hover(found, *texts)
    return found


def legend(figure: Figure, axes: Axes) -> None:
    """Names below the axes, where they hide nothing."""
    handles, names = axes.get_legend_handles_labels()
    if 0 < len(names) <= MAX_NAMES:
        fitting = max(70 // (max(map(len, names)) + 8), 1)
        figure.legend(handles, names, loc="outside lower center", ncols=min(2 if len(names) > 3 else 3, fitting))


def bars(
    series: Mapping[str, Sequence[float | None]],
    names: Sequence[str],
    x: str,
    *,
    unit: str = "",
    most: float | None = None,
) -> Figure:
    """Groups of horizontal bars: one group for each name, one bar in it for each series."""
    size = 0.8 / len(series)
    figure, axes = new_axes(max(1.9, 0.7 + len(names) * (0.12 + 0.13 * len(series))))
    for number, (label, values) in enumerate(series.items()):
        for place, value in enumerate(values):
            if value is not None:
                (bar,) = axes.barh(place + (number - (len(series) - 1) / 2) * size, value, size * 0.92)
                bar.set_facecolor(COLOURS[number % len(COLOURS)])
                hover(bar, f"{names[place]}, {label}: {value:.2f}{unit}")
    axes.set_yticks(range(len(names)), [shown(name, 20) for name in names])
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.invert_yaxis()
    axes.set(xlabel=x, xlim=(0, most))
    if len(series) > 1:
        handles = [Rectangle((0, 0), 1, 1, facecolor=COLOURS[i % len(COLOURS)]) for i in range(len(series))]
        figure.legend(handles, [shown(label) for label in series], loc="outside lower center", ncols=3)
    return figure


def log_ticks(axes: Axes, numbers: Iterable[float]) -> None:
    """A logarithmic axis with just these numbers on it."""
    places = sorted(set(numbers))
    axes.set_xscale("log")
    axes.set_xticks(places, [f"{place:,.0f}" for place in places])
    axes.minorticks_off()


def stars(axes: Axes, points: Sequence[tuple[float, float]], colour: str = INK, name: str = "paper") -> None:
    """The paper's points."""
    found = dots(axes, points, Pen(colour, "none", "*"), [f"{name}: {y:.2f}" for _, y in points])
    found.set(markersize=8, label=name)
