"""What features give away of the images."""

import numpy as np
from matplotlib.figure import Figure

from ccvr.core.arrays import Array
from ccvr.report.figures.panel import WIDTH, Panel, bare, lines, log_ticks
from ccvr.report.runs import RunFiles
from ccvr.report.text import shown

MOST_PIXELS = 48
"""Rows and columns of a picture."""


def inversion(run: RunFiles) -> list[Panel]:
    """Originals beside their reconstructions for each n, then similarity against n."""
    if "inversion" not in run.analyses:
        return []
    arrays, about = run.analyses["inversion"]
    numbers = about["numbers"]
    owner = f"client {about['client']}, class {shown(run.class_names[about['class']])}"
    similar = {n: float(np.mean(arrays[f"similarity_{n}"])) for n in numbers}
    chance = {n: float(np.mean(arrays[f"chance_{n}"])) for n in numbers}
    pictures = (
        f"Pictures of {owner}: for means of {', '.join(map(str, numbers))} features, the original that is most alike "
        "beside what was reconstructed from the mean."
    )
    series = {"reconstruction": similar, "by chance": {n: v for n, v in chance.items() if np.isfinite(v)}}
    points = {name: [(float(n), v) for n, v in found.items()] for name, found in series.items() if found}
    figure, axes = lines(points, "features in the mean", "structural similarity", whole=False)
    log_ticks(axes, numbers)
    words = ", ".join(f"n = {n}: {value:.3f}" for n, value in similar.items())
    return [
        Panel(_grid(arrays, numbers), pictures, "originals and reconstructions"),
        Panel(figure, f"Similarity of reconstruction and closest original: {words}.", "similarity"),
    ]


def _grid(arrays: dict[str, Array], numbers: list[int]) -> Figure:
    """A row for each n: originals, then reconstructions. All in one pair of axes: many would take long to lay out."""
    most = max(len(arrays[f"originals_{n}"]) for n in numbers)
    width = 2 * most + 0.3
    figure = bare(0.85 * WIDTH * len(numbers) / width + 0.25)
    axes = figure.add_axes((0.14, 0, 0.85, 1 - 0.25 / figure.get_figheight()))
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
    step = -(-max(image.shape[1:]) // MOST_PIXELS)
    small = image[:, ::step, ::step]
    return small[0] if len(small) != 3 else small.transpose(1, 2, 0)
