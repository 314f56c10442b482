"""How alike the clients' models are, layer by layer (linear CKA)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ccvr.core.arrays import Array
from ccvr.report.figures.matrix import draw_matrix
from ccvr.report.figures.panel import Panel, dots, legend, new_axes
from ccvr.report.palette import pens
from ccvr.report.runs import RunFiles
from ccvr.report.text import shown

OWN, OTHER = "cka", "cka-against"
"""Analyses: of a run, and of what it was compared with."""

MAX_MEANS = 10
"""The largest number of layers whose means are all in the description."""


class Kept(NamedTuple):
    """One analysis and the run that it is of."""

    name: str
    cka: Array
    about: dict[str, Any]


def _kept(runs: Sequence[RunFiles]) -> list[Kept]:
    """What the runs have of themselves, then of what they were compared with, unless that is here already."""
    own = [Kept(run.label, run.analyses[OWN][0]["cka"], run.analyses[OWN][1]) for run in runs if OWN in run.analyses]
    found, seen = own, {each.cka.tobytes() for each in own}  # bytes: what is not a number never equals itself
    for arrays, about in (run.analyses[OTHER] for run in runs if OTHER in run.analyses):
        if arrays["cka"].tobytes() not in seen:
            seen.add(arrays["cka"].tobytes())
            found.append(Kept(shown(about.get("run", "another run"), 40), arrays["cka"], about))
    return found


def _short(layer: str) -> str:
    """The end of a layer's path."""
    return shown(".".join(layer.split(".")[-2:]), 16)


def means(runs: Sequence[RunFiles]) -> list[Panel]:
    """The mean over pairs of clients: a line for each run, and for what it was compared with."""
    found = [(each.name, each.about) for each in _kept(runs)]
    if not found:
        return []
    deepest = max((about["layers"] for _, about in found), key=len)
    alike = all(about["layers"] == deepest for _, about in found)
    ticks = [_short(layer) if alike else f"{place}" for place, layer in enumerate(deepest, start=1)]
    figure, axes = new_axes(3.2 + 0.16 * len(found))
    for (name, about), pen in zip(found, pens(), strict=False):
        axes.plot(about["mean"], pen.dash, color=pen.colour, marker=pen.marker, label=shown(name, 30))
        tips = [f"{name}, {layer}: {mean:.3f}" for layer, mean in zip(about["layers"], about["mean"], strict=True)]
        dots(axes, list(enumerate(about["mean"])), pen, tips)
    axes.set_xticks(range(len(deepest)), ticks, rotation=45 if alike else 0, ha="right" if alike else "center")
    axes.set(xlabel="" if alike else "layer", ylabel="mean CKA", ylim=(0, 1.03))
    legend(figure, axes)
    words = "; ".join(f"{name}: {_course(about['layers'], about['mean'])}" for name, about in found)
    return [Panel(figure, f"Mean CKA between clients by layer. {words}.")]


def _course(layers: Sequence[str], means: Sequence[float]) -> str:
    """The means in words: all of few layers, of many the first, the last and the lowest."""
    lowest = int(np.argmin(np.nan_to_num(means, nan=1)))
    if len(means) <= MAX_MEANS:
        return f"{', '.join(f'{mean:.3f}' for mean in means)} (lowest in {layers[lowest]})"
    return (
        f"{means[0]:.3f} in the first layer, {means[-1]:.3f} in the last (lowest in {layers[lowest]}: "
        f"{means[lowest]:.3f})"
    )


def pairs(runs: Sequence[RunFiles]) -> list[Panel]:
    """First, middle and last layer: every client's model with every other's; one scale for all runs."""
    kept = _kept(runs)
    lowest = min((np.min(each.cka, initial=0.9, where=np.isfinite(each.cka)) for each in kept), default=0.9)
    low = float(np.floor(10 * lowest) / 10)
    panels = []
    for name, cka, about in kept:
        layers, axis = about["layers"], ("client", about["clients"])
        for place in dict.fromkeys((0, len(layers) // 2, len(layers) - 1)):
            figure = draw_matrix(cka[place], axis, axis, "CKA", low=low, high=1, digits=3)
            mean, clients = about["mean"][place], len(about["clients"])
            whose = f"{name}: " if len(kept) > 1 else ""
            alt = f"{whose}CKA of {clients} clients in {layers[place]}: mean {mean:.3f}."
            panels.append(Panel(figure, alt, f"{name} · {layers[place]}" if len(kept) > 1 else layers[place]))
    return panels
