"""What features give away of the images."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from ccvr.core.arrays import Array
from ccvr.report.figures.panel import WIDTH, Panel, lines, log_ticks, new_axes
from ccvr.report.palette import pens
from ccvr.report.runs import RunFiles
from ccvr.report.text import shown

MAX_PIXELS = 48
"""Rows and columns of a picture."""
SERIES = {"reconstruction": "similarity", "by chance": "chance"}
"""Names of what is kept."""


def inversion(run: RunFiles) -> list[Panel]:
    """Originals beside their reconstructions for each n, then similarity against n."""
    if "inversion" not in run.analyses:
        return []
    arrays, about = run.analyses["inversion"]
    numbers = about["numbers"]
    owner = f"client {about['client']}, class {shown(run.class_names[about['class']])}"
    found = {name: _scores(arrays, key, numbers) for name, key in SERIES.items()}
    pictures = (
        f"Pictures of {owner}: for means of {', '.join(map(str, numbers))} features, the original that is most alike "
        "beside what was reconstructed from the mean."
    )
    points = {name: [(float(n), score.mean) for n, score in scores.items()] for name, scores in found.items() if scores}
    figure, axes = lines(points, "features in the mean", "structural similarity", whole=False)
    log_ticks(axes, numbers)
    for name, pen in zip(points, pens(), strict=False):
        means, errors = zip(*found[name].values(), strict=True)
        axes.errorbar(list(found[name]), means, 2 * np.array(errors), fmt="none", ecolor=pen.colour, capsize=3, lw=1)
    lowest = min(score.mean - 2 * score.error for scores in found.values() for score in scores.values())
    axes.set_ylim(bottom=min(0.0, 1.1 * lowest))
    words = "; ".join(_words(n, found, arrays) for n in numbers)
    similarity = f"Similarity of reconstruction and closest original, ± two standard errors: {words}."
    return [
        Panel(_grid(arrays, numbers), pictures, "originals and reconstructions"),
        Panel(figure, similarity, "similarity (bars: two standard errors)"),
    ]


class Score(NamedTuple):
    """Of several reconstructions."""

    mean: float
    error: float


def _scores(arrays: Mapping[str, Array], key: str, numbers: Sequence[int]) -> dict[int, Score]:
    """By n; what is not a number is left out."""
    values = {n: np.asarray(arrays[f"{key}_{n}"], dtype=float) for n in numbers}
    spreads = {n: each.std(ddof=1) / len(each) ** 0.5 if len(each) > 1 else 0.0 for n, each in values.items()}
    return {n: Score(float(each.mean()), float(spreads[n])) for n, each in values.items() if np.isfinite(each).all()}


def _words(n: int, found: Mapping[str, Mapping[int, Score]], arrays: Mapping[str, Array]) -> str:
    scores = [f"{name} {each[n].mean:.3f} ± {2 * each[n].error:.3f}" for name, each in found.items() if n in each]
    left = [f"error left {100 * arrays[f'error_{n}'].mean():.2f} %"] if f"error_{n}" in arrays else []
    return f"n = {n}: {', '.join(scores + left)}"


def _grid(arrays: dict[str, Array], numbers: list[int]) -> Figure:
    """A row for each n: originals, then reconstructions. All in one pair of axes: many would take long to lay out."""
    most = max(len(arrays[f"originals_{n}"]) for n in numbers)
    width = 2 * most + 0.3
    figure, axes = new_axes(0.85 * WIDTH * len(numbers) / width + 0.25)
    for start, kind in ((0.0, "originals"), (most + 0.3, "reconstructions")):
        axes.text(start + most / 2, -0.1, kind, ha="center", va="bottom")
        for row, n in enumerate(numbers):
            for column, picture in enumerate(arrays[f"{kind}_{n}"]):
                box = (start + column, start + column + 0.95, row + 0.95, row)
                axes.imshow(_pixels(picture), cmap="gray", vmin=0, vmax=255, interpolation="none", extent=box)
    for row, n in enumerate(numbers):
        axes.text(-0.15, row + 0.5, f"n = {n}", ha="right", va="center")
    axes.set(xlim=(0, width), ylim=(len(numbers), 0), aspect="auto")
    axes.set_axis_off()
    return figure


def _pixels(image: Array) -> Array:
    """[C, H, W] → [H, W] or [H, W, 3]; large pictures lose every so manyth row and column."""
    step = -(-max(image.shape[1:]) // MAX_PIXELS)
    small = image[:, ::step, ::step]
    return small[0] if len(small) != 3 else small.transpose(1, 2, 0)
