"""Draw docs/figures/kernels.png: the parts of a step, and what blocks gain by their channels.

python -m bench.step --json > step.json
python -m bench.channels --json > channels.json
python -m bench.picture step.json channels.json docs/figures/kernels.png
"""

import argparse
import json
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

SIDES = {"eager": "eager torch", "torch": "step torch", "ours": "step halide"}
COLOURS = ("#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee6677", "#aa3377", "#bbbbbb", "#555555")
MARKS = ("o-", "s--")


def parts(axes: Axes, step: dict[str, Any]) -> None:
    """One bar a side: its milliseconds, cut by the shares of its parts."""
    begins = dict.fromkeys(SIDES, 0.0)
    for colour, group in zip(COLOURS, step["ours"], strict=True):
        widths = {side: step[f"{side}_ms"] * step[side][group] / 100 for side in SIDES}
        axes.barh(list(SIDES.values()), list(widths.values()), left=list(begins.values()), color=colour, label=group)
        begins = {side: begins[side] + widths[side] for side in SIDES}
    for place, (side, end) in enumerate(begins.items()):
        axes.text(end, place, f" {step[f'{side}_ms']:.1f} ms", va="center")
    axes.set(xlabel="milliseconds of one step, 64 images, one thread", title="simple-cnn")
    axes.set_xlim(0, 1.22 * max(begins.values()))
    axes.legend(fontsize=7, frameon=False, loc="upper center", bbox_to_anchor=(0.4, -0.22), ncols=2)


def gains(axes: Axes, channels: dict[str, dict[str, float]]) -> None:
    for mark, (kernel, row) in zip(MARKS, channels.items(), strict=True):
        axes.plot(list(row), list(row.values()), mark, label=f"{kernel} convolution")
    axes.axhline(1, color="#555555", linewidth=1)
    axes.set(xlabel="channels of a block, in to out", ylabel="torch's time / kernels' time", title="one block")
    axes.set_ylim(0)
    axes.tick_params(axis="x", labelrotation=30)
    axes.legend(frameon=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("step", "channels", "picture"):
        parser.add_argument(name, type=Path)
    paths = parser.parse_args()
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    parts(left, json.loads(paths.step.read_text()))
    gains(right, json.loads(paths.channels.read_text()))
    figure.savefig(paths.picture, dpi=110)


if __name__ == "__main__":
    main()
