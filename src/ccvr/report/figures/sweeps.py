"""Accuracy by number of virtual features, clients and real samples; gain by separability."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import cycle
from statistics import mean

import numpy as np
from matplotlib.axes import Axes

from ccvr.core.results import UNCALIBRATED
from ccvr.report.figures.matrix import draw_matrix
from ccvr.report.figures.panel import Panel, dots, legend, lines, log_ticks, new_axes, stars
from ccvr.report.palette import AFTER, BEFORE, INK, MARKERS, Pen, pens
from ccvr.report.published import published
from ccvr.report.runs import RunFiles
from ccvr.report.text import shown

SWEPT = ("num_virtual", "seed", "bytes", "seconds")
NUM_CLIENTS = ("partition.num_clients", "training.client_fraction")
STAR = "paper, 100 × 10"
"""Rounds × local epochs of the paper's numbers on CIFAR-10."""
VIRTUAL = {number: f"ccvr-m{number}" for number in (50, 100, 500, 1000, 2000)}
REAL = {"none": UNCALIBRATED, "100": "oracle-partial-100", "1000": "oracle-partial-1000", "all": "oracle"}


def _cell(run: RunFiles) -> str:
    """The name that the paper's tables would have for the run's data, owners and algorithm."""
    known = run.setting("model.name") == "simple-cnn" and run.setting("partition.kind") == "dirichlet"
    return f"{run.setting('data.name')}-a{run.setting('partition.alpha')}-{run.algorithm}" if known else ""


def _published(run: RunFiles, table: str, head: str) -> float | None:
    """The paper's accuracy of a head with ten clients of which all train; None where it has no such number."""
    clients = run.setting("partition.num_clients"), run.setting("training.client_fraction", 1.0)
    found = published(table).get((_cell(run), head)) if clients == (10, 1.0) else None
    return None if found is None else found.mean


def virtual_features(run: RunFiles) -> list[Panel]:
    """Calibrations that differ in the number of virtual features alone; repeats are averaged."""
    families: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for label, options in run.results["calibrations"].items():
        same = {key: str(value) for key, value in options.items() if key not in SWEPT}
        if "num_virtual" in options:
            families[same["method"], str(same)][int(options["num_virtual"])].append(run.accuracy[label])
    swept = {family: found for family, found in families.items() if len(found) > 1}
    series = {
        method if number == 0 else f"{method} ({number + 1})": [
            (float(amount), mean(values)) for amount, values in sorted(found.items())
        ]
        for number, ((method, _), found) in enumerate(swept.items())
    }
    if not series:
        return []
    figure, axes = lines(series, "virtual features per class", "test accuracy, %", unit=" %", whole=False)
    axes.axhline(run.before, color=INK, linestyle=":", label=UNCALIBRATED)
    theirs = [(float(n), y) for n, head in VIRTUAL.items() if (y := _published(run, "table3", head)) is not None]
    if theirs:
        stars(axes, theirs, name=STAR)
    log_ticks(axes, (x for points in [*series.values(), theirs] for x, _ in points))
    if len(series) == 1:
        legend(figure, axes)
    words = "; ".join(
        f"{name}: " + ", ".join(f"{y:.2f} % with {x:g}" for x, y in points) for name, points in series.items()
    )
    return [Panel(figure, f"Accuracy by virtual features per class ({run.before:.2f} % before). {words}.")]


def clients(runs: Sequence[RunFiles]) -> list[Panel]:
    """Runs that differ in the number of clients (and seed) alone; in a round are the same part of them, or as many."""
    families: dict[tuple[str, str], dict[int, list[RunFiles]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        number = int(run.setting("partition.num_clients", 0))
        part = float(run.setting("training.client_fraction", 1.0))
        same = {key: value for key, value in run.settings.items() if key not in NUM_CLIENTS}
        for taking_part in (f"{part:g} of all", f"{round(part * number)} clients"):
            families[str(same), taking_part][number].append(run)
    panels = []
    for found in families.values():
        if len(found) < 2:
            continue
        run = next(iter(found.values()))[0]
        series = {
            "before": [(float(n), mean(each.before for each in group)) for n, group in sorted(found.items())],
            "after": [(float(n), mean(each.after for each in group)) for n, group in sorted(found.items())],
        }
        figure, axes = lines(series, "clients", "test accuracy, %", unit=" %")
        for head, colour, when in ((UNCALIBRATED, BEFORE, "before"), ("ccvr", AFTER, "after")):
            cells = {10: _cell(run), 50: f"{_cell(run)}-n50", 100: f"{_cell(run)}-n100"}
            paper = {n: published("table4").get((cell, head)) for n, cell in cells.items()}
            if any(paper.values()):
                stars(axes, [(n, each.mean) for n, each in paper.items() if each], colour, f"{STAR}, {when}")
        words = ", ".join(
            f"{b[0]:g} clients {b[1]:.2f} % → {a[1]:.2f} %" for b, a in zip(*series.values(), strict=True)
        )
        panels.append(Panel(figure, f"Accuracy by number of clients: {words}.", run.what))
    return panels


def amounts(run: RunFiles) -> list[Panel]:
    """Calibration with real samples: some of each class, and all."""
    found: dict[str, list[float]] = defaultdict(list)
    rows = run.results["calibrations"].items()
    for label, options in sorted(rows, key=lambda row: int(row[1].get("per_class", 0))):
        if options["method"] == "oracle-partial":
            found[str(options["per_class"])].append(run.accuracy[label])
    partial = len(found)
    for label, options in rows:
        if options["method"] == "oracle":
            found["all"].append(run.accuracy[label])
    if not partial:
        return []
    points = {"none": run.before} | {amount: mean(values) for amount, values in found.items()}
    places = {amount: place for place, amount in enumerate(points)}
    figure, axes = lines({"run": [(float(places[k]), v) for k, v in points.items()]}, "", "test accuracy, %", unit=" %")
    paper = {places[amount]: _published(run, "table5", head) for amount, head in REAL.items() if amount in places}
    theirs = [(float(x), y) for x, y in paper.items() if y is not None]
    if theirs:
        stars(axes, theirs, name=STAR)
        legend(figure, axes)
    axes.set_xticks(list(places.values()), list(places))
    axes.set_xlabel("real samples per class")
    words = ", ".join(f"{amount}: {value:.2f} %" for amount, value in points.items())
    return [Panel(figure, f"Accuracy after calibration with real samples per class: {words}.")]


def separability(runs: Sequence[RunFiles]) -> list[Panel]:
    """A point for each run and calibration: how far apart the run's classes are, and what was gained."""
    found = {run.label: run.analyses["separability"][1] for run in runs if "separability" in run.analyses}
    every = [label for about in found.values() for label in about["gains"]]
    labels = [label for label in dict.fromkeys(every) if every.count(label) > 1 or len(found) == 1]
    if not labels:
        return []
    figure, axes = new_axes(3.4 + 0.16 * len(labels))
    words = []
    for label, pen in zip(labels, pens(), strict=False):
        axes.plot([], [], color=pen.colour, linewidth=5, label=shown(label))
        for (run, about), marker in zip(found.items(), cycle(MARKERS)):
            if label in about["gains"]:
                x, y = about["mean"], about["gains"][label]
                tip = f"{run}, {label}: distance {x:.3f}, gain {y:+.2f}"
                dots(axes, [(x, y)], Pen(pen.colour, "none", marker), [tip])
                words.append(f"{run}, {label}: {x:.3f}, {y:+.2f}")
    axes.axhline(0, color="#999999", linewidth=0.8)
    axes.set(xlabel="mean distance of two classes (sliced Wasserstein)", ylabel="gain, points")
    axes.margins(0.15)
    if len(found) <= len(MARKERS):
        for run, marker in zip(found, MARKERS, strict=False):
            axes.plot([], [], marker, color=INK, label=shown(run))
    else:
        _name_columns(axes, {run: about["mean"] for run, about in found.items()})
    legend(figure, axes)
    more = f" (the first 12 of {len(words)})" if len(words) > 12 else ""
    return [Panel(figure, f"Distance of the classes and gain{more}: {'; '.join(words[:12])}.")]


def _name_columns(axes: Axes, places: dict[str, float]) -> None:
    """Say above the axes which run stands where; runs that stand together share a place."""
    low, high = axes.get_xlim()
    together: list[tuple[float, list[str]]] = []
    for name, x in sorted(places.items(), key=lambda each: each[1]):
        if together and x - together[-1][0] < (high - low) / 12:
            together[-1][1].append(shown(name, 16))
        else:
            together.append((x, [shown(name, 16)]))
    for x, names in together:
        text = "\n".join(names[:3] + [f"and {len(names) - 3} more"] * (len(names) > 3))
        axes.annotate(
            text,
            (x, 1),
            (0, 2),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="center",
            va="bottom",
            size=7,
        )
        axes.axvline(x, color=INK, alpha=0.15, linewidth=0.8)


def distances(run: RunFiles) -> list[Panel]:
    """How far apart every two classes are."""
    if "separability" not in run.analyses:
        return []
    arrays, about = run.analyses["separability"]
    matrix = arrays["distances"]
    names = [run.class_names[label] for label in arrays["classes"]]
    figure = draw_matrix(matrix, ("class", names), ("class", names), "distance", low=0, digits=3)
    apart = np.where(np.eye(len(matrix), dtype=bool), np.inf, matrix)
    one, other = np.unravel_index(apart.argmin(), apart.shape)
    alt = f"Distances of {len(names)} classes: mean {about['mean']:.3f}; closest are {names[one]} and {names[other]}."
    return [Panel(figure, alt)]


def separability_of(runs: Sequence[RunFiles]) -> list[Panel]:
    """Of one run the distances of its classes, of several the gain by mean distance."""
    return distances(runs[0]) if len(runs) == 1 else separability(runs)
