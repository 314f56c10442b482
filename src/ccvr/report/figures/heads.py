"""The heads of a run: how right they are, where, and for whom."""

import numpy as np

from ccvr.core.arrays import Array
from ccvr.core.results import UNCALIBRATED
from ccvr.report.figures.matrix import draw_matrix
from ccvr.report.figures.panel import Panel, bars, dots, new_axes
from ccvr.report.palette import AFTER, BEFORE, Pen
from ccvr.report.runs import RunFiles
from ccvr.report.svg import hover
from ccvr.report.text import shown

MAX_HEADS = 30
MAX_BARS = 20


def accuracy(run: RunFiles) -> list[Panel]:
    """One bar for each head, with its gain written beside it."""
    heads = dict(list(run.accuracy.items())[:MAX_HEADS])
    figure, axes = new_axes(0.8 + 0.26 * len(heads))
    for place, (label, value) in enumerate(heads.items()):
        (bar,) = axes.barh(place, value, 0.75, color=BEFORE if label == UNCALIBRATED else AFTER)
        hover(bar, f"{label}: {value:.2f} %")
        gain = "" if label == UNCALIBRATED else f" ({value - run.before:+.2f})"
        axes.annotate(f"{value:.2f}{gain}", (value, place), (3, 0), textcoords="offset points", va="center", size=8)
    axes.axvline(run.before, color=BEFORE, linestyle=":", linewidth=1)
    axes.set_yticks(range(len(heads)), [shown(label) for label in heads])
    axes.set(
        xlim=(0, max(heads.values()) * 1.3 + 1), xticks=range(0, 101, 20), xlabel="test accuracy, % (gain in points)"
    )
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.invert_yaxis()
    words = ", ".join(f"{label} {value:.2f} %" for label, value in heads.items())
    return [Panel(figure, f"Test accuracy of each head: {words}.")]


def recall(run: RunFiles) -> list[Panel]:
    """Each class before and after; of many classes, before against after."""
    recalls = {label: run.results["per_class_recall"][label] for label in run.shown_heads}
    known = {label: [each for each in values if each is not None] for label, values in recalls.items()}
    if not all(known.values()):
        return []
    words = "; ".join(f"{label} {min(v):.2f} % to {max(v):.2f} %" for label, v in known.items())
    alt = f"Recall of {len(run.class_names)} classes. Lowest to highest: {words}."
    if len(run.class_names) <= MAX_BARS:
        return [Panel(bars(recalls, run.class_names, "recall, %", unit=" %", most=100), alt)]
    figure, axes = new_axes(3.6)
    every = zip(run.class_names, recalls[UNCALIBRATED], recalls[run.deployed], strict=True)
    both = [(name, x, y) for name, x, y in every if x is not None and y is not None]
    tips = [f"{name}: {before:.2f} % → {after:.2f} %" for name, before, after in both]
    dots(axes, [(before, after) for _, before, after in both], Pen(AFTER, "none", "o"), tips).set_alpha(0.7)
    axes.axline((0, 0), slope=1, color=BEFORE, linestyle=":", linewidth=1)
    axes.set(xlabel="recall before, %", ylabel="recall after, %", xlim=(-2, 102), ylim=(-2, 102), aspect="equal")
    return [Panel(figure, alt)]


def client_mixes(run: RunFiles) -> list[Panel]:
    """Accuracy where every client weighs the classes as it has them."""
    names = ("mean client", "10th percentile", "worst client")
    every = list(run.results["client_accuracy"].items())[:7]
    series = {label: [each["mean"], each["p10"], each["worst"]] for label, each in every if None not in each.values()}
    if not series:
        return []
    words = "; ".join(f"{label}: mean {v[0]:.2f} %, worst {v[2]:.2f} %" for label, v in series.items())
    figure = bars(series, names, "accuracy under the clients' own mixes, %", unit=" %", most=100)
    return [Panel(figure, f"Accuracy under the label mixes of the clients. {words}.")]


def _of_heads(run: RunFiles, analysis: str, array: str) -> dict[str, Array]:
    """What an analysis has of the heads before and after."""
    if analysis not in run.analyses:
        return {}
    arrays, about = run.analyses[analysis]
    every = dict(zip(about["heads"], arrays[array], strict=True))
    return {label: every[label] for label in run.shown_heads if label in every}


def confusion(run: RunFiles) -> list[Panel]:
    panels = []
    for label, matrix in _of_heads(run, "confusion", "confusion").items():
        share = 100 * matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
        rows, columns = ("true class", run.class_names), ("predicted class", run.class_names)
        figure = draw_matrix(share, rows, columns, "share of the true class, %", low=0, high=100, digits=1)
        off = np.where(np.eye(len(share), dtype=bool), -1, share)
        true, taken = np.unravel_index(off.argmax(), off.shape)
        names = run.class_names
        alt = (
            f"Confusion of the head {label}: {np.trace(matrix):,} of {matrix.sum():,} test samples are right; the most "
            f"frequent mistake takes {off.max():.1f} % of {shown(names[true])} for {shown(names[taken])}."
        )
        panels.append(Panel(figure, alt, label))
    return panels


def norms(run: RunFiles) -> list[Panel]:
    """Norms of the rows of the global head, before and after."""
    found = _of_heads(run, "norms", "norms")
    if not found:
        return []
    words = ", ".join(f"{label} {each.std() / each.mean():.3f}" for label, each in found.items())
    alt = f"Row norms of the global head by class. Standard deviation over mean: {words}."
    if len(run.class_names) <= MAX_BARS:
        return [Panel(bars({k: v.tolist() for k, v in found.items()}, run.class_names, "row norm"), alt)]
    figure, axes = new_axes()
    for (label, each), colour in zip(found.items(), (BEFORE, AFTER), strict=False):
        axes.plot(np.sort(each), color=colour, label=shown(label))
    axes.set(xlabel="classes, by norm", ylabel="row norm")
    axes.legend()
    return [Panel(figure, alt)]
