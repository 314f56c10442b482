"""How alike the clients' models are, layer by layer (linear CKA)."""

from collections.abc import Sequence

import numpy as np

from ccvr.report.figures.cells import cells
from ccvr.report.figures.panel import Panel, dots, legend, sheet
from ccvr.report.palette import pens
from ccvr.report.runs import RunFiles
from ccvr.report.text import shown

KINDS = {"cka": "", "cka-against": "compared with"}
"""Analysis → what it is called beside a run's own."""


def _names(run: RunFiles) -> dict[str, str]:
    return {kind: " ".join(filter(None, [run.label, words])) for kind, words in KINDS.items() if kind in run.analyses}


def _short(layer: str) -> str:
    """The end of a layer's path."""
    return shown(".".join(layer.split(".")[-2:]), 16)


def means(runs: Sequence[RunFiles]) -> list[Panel]:
    """The mean over pairs of clients: a line for each run, and for what it was compared with."""
    found = {(run.name, name): run.analyses[kind][1] for run in runs for kind, name in _names(run).items()}
    if not found:
        return []
    deepest = max(found.values(), key=lambda about: len(about["layers"]))["layers"]
    figure, axes = sheet(3.2 + 0.16 * len(found))
    for ((_, name), about), pen in zip(found.items(), pens(), strict=False):
        axes.plot(about["mean"], pen.dash, color=pen.colour, marker=pen.marker, label=shown(name, 30))
        words = [f"{name}, {layer}: {mean:.3f}" for layer, mean in zip(about["layers"], about["mean"], strict=True)]
        dots(axes, list(enumerate(about["mean"])), pen, words)
    axes.set_xticks(range(len(deepest)), [_short(layer) for layer in deepest], rotation=45, ha="right")
    axes.set(ylabel="mean CKA", ylim=(0, 1.03))
    legend(figure, axes)
    words = "; ".join(
        f"{name}: {about['mean'][0]:.3f} in the first layer, {about['mean'][-1]:.3f} in the last, lowest in "
        f"{about['layers'][int(np.argmin(about['mean']))]}"
        for (_, name), about in found.items()
    )
    return [Panel(figure, f"Mean CKA between clients by layer. {words}.")]


def pairs(run: RunFiles) -> list[Panel]:
    """First, middle and last layer: every client's model with every other's."""
    panels = []
    kept = [run.analyses[kind][0]["cka"] for kind in _names(run)]
    low = min((float(np.floor(10 * cka.min()) / 10) for cka in kept), default=0.0)  # one scale for all
    for kind, name in _names(run).items():
        arrays, about = run.analyses[kind]
        layers, clients = about["layers"], about["clients"]
        for place in dict.fromkeys((0, len(layers) // 2, len(layers) - 1)):
            matrix = arrays["cka"][place]
            axis = ("client", clients)
            figure = cells(matrix, axis, axis, "CKA", low=min(low, 0.9), high=1, digits=3)
            alt = f"CKA of {len(clients)} clients in the layer {layers[place]}: mean {about['mean'][place]:.3f}."
            title = f"{layers[place]}, {KINDS[kind]}" if KINDS[kind] else layers[place]
            panels.append(Panel(figure, f"{name}: {alt}", title))
    return panels
