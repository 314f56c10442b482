"""Figures as pixels, for whoever cannot show SVG."""

import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from ccvr.core.arrays import Array
from ccvr.report.figure_set import draw
from ccvr.report.figures.clients import owners
from ccvr.report.palette import look
from ccvr.report.runs import read_runs
from ccvr.report.svg import save_bytes


def label_distribution(label_counts: Sequence[Sequence[int]], class_names: Sequence[str]) -> Array:
    """Clients × classes: training images. [H, W, 3] uint8."""
    with look():
        return pixels(owners(np.array(label_counts), class_names))


def figures_of(run: Path) -> Iterator[tuple[str, Array]]:
    """Every figure that a finished run has the data for: section/id, and [H, W, 3] uint8."""
    for each in draw(read_runs([run])):
        for name, panel in each.named():
            yield f"{each.row.section}/{name}", pixels(panel.figure)


def pixels(figure: Figure) -> Array:
    """The figure on white, [H, W, 3] uint8."""
    return np.asarray(Image.open(io.BytesIO(save_bytes(figure, "png"))).convert("RGB"))
