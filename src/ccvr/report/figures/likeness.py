"""How alike the clients' models are, layer by layer (linear CKA)."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ccvr.report.figures.cells import cells
from ccvr.report.figures.panel import Panel, dots, legend, of_each_run, sheet
from ccvr.report.palette import pens
from ccvr.report.runs import RunFiles
from ccvr.report.text import shown

OWN, OTHER = "cka", "cka-against"
"""Analyses: of a run, and of what it was compared with."""


def _names(run: RunFiles) -> dict[str, str]:
    """What the run has of these, and which run that is of."""
    names = {OWN: run.label}
    if OTHER in run.analyses:
        names[OTHER] = shown(run.analyses[OTHER][1].get("run", "another run"), 40)
    return {kind: name for kind, name in names.items() if kind in run.analyses}


def _short(layer: str) -> str:
    """The end of a layer's path."""
    return shown(".".join(layer.split(".")[-2:]), 16)


def means(runs: Sequence[RunFiles]) -> list[Panel]:
    """The mean over pairs of clients: a line for each run, and for what it was compared with."""
    found: list[tuple[str, dict[str, Any]]] = []
    for kind in (OWN, OTHER):
        for run in (run for run in runs if kind in run.analyses):
            about = run.analyses[kind][1]
            if all(about["mean"] != other["mean"] for _, other in found):  # the same run is drawn once
                found.append((_names(run)[kind], about))
    if not found:
        return []
    deepest = max((about["layers"] for _, about in found), key=len)
    alike = all(about["layers"] == deepest for _, about in found)
    ticks = [_short(layer) if alike else f"{place}" for place, layer in enumerate(deepest, start=1)]
    figure, axes = sheet(3.2 + 0.16 * len(found))
    for (name, about), pen in zip(found, pens(), strict=False):
        axes.plot(about["mean"], pen.dash, color=pen.colour, marker=pen.marker, label=shown(name, 30))
        tips = [f"{name}, {layer}: {mean:.3f}" for layer, mean in zip(about["layers"], about["mean"], strict=True)]
        dots(axes, list(enumerate(about["mean"])), pen, tips)
    axes.set_xticks(range(len(deepest)), ticks, rotation=45 if alike else 0, ha="right" if alike else "center")
    axes.set(xlabel="" if alike else "layer", ylabel="mean CKA", ylim=(0, 1.03))
    legend(figure, axes)
    words = "; ".join(
        f"{name}: {about['mean'][0]:.3f} in the first layer, {about['mean'][-1]:.3f} in the last, lowest in "
        f"{about['layers'][int(np.argmin(np.nan_to_num(about['mean'], nan=1)))]}"
        for name, about in found
    )
    return [Panel(figure, f"Mean CKA between clients by layer. {words}.")]


def pairs(runs: Sequence[RunFiles]) -> list[Panel]:
    """First, middle and last layer: every client's model with every other's; one scale for all runs."""
    kept = [run.analyses[kind][0]["cka"] for run in runs for kind in _names(run)]
    lowest = min((np.min(cka, initial=0.9, where=np.isfinite(cka)) for cka in kept), default=0.9)
    return of_each_run(partial(_pairs, low=float(np.floor(10 * lowest) / 10)))(runs)


def _pairs(run: RunFiles, low: float) -> list[Panel]:
    panels = []
    for kind, name in _names(run).items():
        arrays, about = run.analyses[kind]
        layers, axis = about["layers"], ("client", about["clients"])
        for place in dict.fromkeys((0, len(layers) // 2, len(layers) - 1)):
            figure = cells(arrays["cka"][place], axis, axis, "CKA", low=low, high=1, digits=3)
            mean = about["mean"][place]
            alt = f"{name}: CKA of {len(axis[1])} clients in the layer {layers[place]}: mean {mean:.3f}."
            panels.append(Panel(figure, alt, layers[place] if kind == OWN else f"{layers[place]}, {name}"))
    return panels
