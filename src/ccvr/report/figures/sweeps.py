"""The same with more: virtual features, clients, real samples; and what separability says of the gain."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import mean

from ccvr.report import paper
from ccvr.report.figures.panel import Panel, dots, legend, lines, log_ticks, sheet, stars
from ccvr.report.palette import AFTER, BEFORE, INK, pens
from ccvr.report.runs import UNCALIBRATED, RunFiles
from ccvr.report.text import shown

SWEPT = ("num_virtual", "seed", "bytes", "seconds")


def _column(run: RunFiles) -> int | None:
    alpha = run.setting("partition.alpha") if run.setting("partition.kind") == "dirichlet" else None
    return paper.column(run.setting("data.name"), alpha)


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
    column = _column(run)
    theirs: list[tuple[float, float]] = []
    if column is not None and run.algorithm in paper.VIRTUAL:
        theirs = [(n, row[column]) for n, row in paper.VIRTUAL[run.algorithm].items()]
        stars(axes, theirs, name="paper, CCVR")
    log_ticks(axes, (x for points in [*series.values(), theirs] for x, _ in points))
    if len(series) == 1:
        legend(figure, axes)
    words = "; ".join(
        f"{name}: " + ", ".join(f"{y:.2f} % with {x:g}" for x, y in points) for name, points in series.items()
    )
    return [Panel(figure, f"Accuracy by virtual features per class ({run.before:.2f} % before). {words}.")]


def clients(runs: Sequence[RunFiles]) -> list[Panel]:
    """Runs that differ in the number of clients (and seed) alone."""
    families: dict[str, dict[int, list[RunFiles]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        same = str({key: value for key, value in run.settings.items() if key != "partition.num_clients"})
        families[same][int(run.setting("partition.num_clients", 0))].append(run)
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
        if _column(run) == paper.ALPHAS.index(0.1) and run.algorithm in paper.CLIENTS:
            rows = paper.CLIENTS[run.algorithm].items()
            stars(axes, [(n, before) for n, (before, _) in rows], BEFORE, "paper, before")
            stars(axes, [(n, after) for n, (_, after) in rows], AFTER, "paper, after")
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
    column = _column(run)
    if column is not None and run.algorithm in paper.AMOUNTS:
        theirs = {"none": paper.BEFORE[run.algorithm], **paper.AMOUNTS[run.algorithm]}
        stars(axes, [(places[k], row[column]) for k, row in theirs.items() if k in places])
        legend(figure, axes)
    axes.set_xticks(list(places.values()), list(places))
    axes.set_xlabel("real samples per class")
    words = ", ".join(f"{amount}: {value:.2f} %" for amount, value in points.items())
    return [Panel(figure, f"Accuracy after calibration with real samples per class: {words}.")]


def separability(runs: Sequence[RunFiles]) -> list[Panel]:
    """A point for each run and calibration: how far apart its classes are, and what was gained."""
    found = [run for run in runs if "separability" in run.analyses]
    labels = list(dict.fromkeys(label for run in found for label in run.analyses["separability"][1]["gains"]))
    if not labels:
        return []
    figure, axes = sheet(3.0 + 0.16 * len(labels))
    words = []
    for label, pen in zip(labels, pens(), strict=False):
        kept = [(run.name, run.analyses["separability"][1]) for run in found]
        points = [(name, about["mean"], about["gains"][label]) for name, about in kept if label in about["gains"]]
        tips = [f"{name}, {label}: distance {x:.3f}, gain {y:+.2f}" for name, x, y in points]
        dots(axes, [(x, y) for _, x, y in points], pen, tips).set_label(shown(label))
        words += [f"{name}, {label}: {x:.3f}, {y:+.2f}" for name, x, y in points]
    axes.axhline(0, color="#999999", linewidth=0.8)
    axes.set(xlabel="mean distance of two classes (sliced Wasserstein)", ylabel="gain, points")
    axes.margins(0.15)
    legend(figure, axes)
    more = f" (the first 12 of {len(words)})" if len(words) > 12 else ""
    return [Panel(figure, f"Distance of the classes and gain{more}: {'; '.join(words[:12])}.")]
