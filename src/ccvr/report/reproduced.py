"""The paper's figures, drawn from cells: runs by cell, and entries of tables where the paper gives numbers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ccvr.report.comparison import Row
from ccvr.report.figures import clients, heads, inversion, likeness, plane, sweeps
from ccvr.report.figures.panel import Draw, Panel, lines, of_each_run
from ccvr.report.groups import Spread
from ccvr.report.palette import AFTER, BEFORE
from ccvr.report.published import Published
from ccvr.report.runs import UNCALIBRATED, RunFiles

Runs = Mapping[str, RunFiles]
DrawFigure = Callable[[Runs, Sequence[Row]], list[Panel]]
AMOUNTS = {UNCALIBRATED: "none", "oracle-partial-100": "100", "oracle-partial-1000": "1000", "oracle": "all"}


def of_runs(draw: Callable[[RunFiles], list[Panel]]) -> DrawFigure:
    """Panels of each run."""
    return lambda runs, _: of_each_run(draw)(list(runs.values()))


def of_all_runs(draw: Draw) -> DrawFigure:
    """Panels in which the runs stand together."""
    return lambda runs, _: draw(list(runs.values()))


def norms_at_both_ends(run: RunFiles) -> list[Panel]:
    """Norms of the clients' heads after the first round and after the last."""
    return clients.client_norms(run)[1:-1]  # between the label mix and the picture of all rounds


def labels_and_norms(run: RunFiles) -> list[Panel]:
    return [*clients.label_distribution(run), *norms_at_both_ends(run)]


def separability(runs: Runs, _: Sequence[Row]) -> list[Panel]:
    """What CCVR and the bound gained, against how far apart the classes are."""
    return sweeps.separability([_with_two_gains(run) for run in runs.values() if "separability" in run.analyses])


def _with_two_gains(run: RunFiles) -> RunFiles:
    arrays, about = run.analyses["separability"]
    gains = {label: gain for label, gain in about["gains"].items() if label in ("ccvr", "oracle")}
    return replace(run, analyses={**run.analyses, "separability": (arrays, {**about, "gains": gains})})


def reconstructions(number: int) -> DrawFigure:
    """Pictures from means of so many features."""

    def draw(run: RunFiles) -> list[Panel]:
        if "inversion" not in run.analyses:
            return []
        arrays, about = run.analyses["inversion"]
        chosen = {**about, "numbers": [each for each in about["numbers"] if each == number]}
        only = replace(run, analyses={"inversion": (arrays, chosen)})
        return inversion.inversion(only)[:1] if chosen["numbers"] else []

    return of_runs(draw)


def virtual_features(_: Runs, rows: Sequence[Row]) -> list[Panel]:
    """Both curves: accuracy against virtual features per class, the paper's and ours."""
    amount = {row.head: row.head.removeprefix("ccvr-m") if row.head != UNCALIBRATED else "0" for row in rows}
    return _both_curves(rows, amount, "virtual features per class (M_c)")


def real_samples(_: Runs, rows: Sequence[Row]) -> list[Panel]:
    """Both curves: accuracy against real samples per class that calibration had."""
    return _both_curves(rows, AMOUNTS, "real samples per class")


def _both_curves(rows: Sequence[Row], amounts: Mapping[str, str], x: str) -> list[Panel]:
    """A panel for each cell: amounts in equal steps, as they span three orders of magnitude and zero."""
    order = [head for head in amounts if any(row.head == head for row in rows)]
    panels = []
    for cell in dict.fromkeys(row.cell for row in rows):
        own = sorted((row for row in rows if row.cell == cell), key=lambda row: order.index(row.head))
        scales = list(dict.fromkeys(row.scale for row in own if row.scale))
        every: dict[str, dict[int, Spread | Published]] = {
            "paper (100 × 10)": {order.index(row.head): row.paper for row in own if row.paper},
            f"ours, {' and '.join(scales)}": {order.index(row.head): row.ours for row in own if row.ours},
        }
        series = {
            name: [(float(x), each.mean) for x, each in sorted(found.items())] for name, found in every.items() if found
        }
        figure, axes = lines(series, x, "test accuracy, %", unit=" %")
        for name, colour in zip(series, (BEFORE, AFTER), strict=False):
            for place, each in every[name].items():
                axes.errorbar(place, each.mean, each.std or 0, color=colour, capsize=2, linewidth=1)
        axes.set_xticks(range(len(order)), [amounts[head] for head in order])
        axes.set_title(f"{own[0].method}, {own[0].setting}")
        words = "; ".join(f"{name}: {', '.join(f'{y:.2f}' for _, y in points)}" for name, points in series.items())
        panels.append(Panel(figure, f"{cell}, test accuracy in percent by {x}: {words}.", cell))
    return panels


DRAWS: dict[str, DrawFigure] = {
    "figure1": of_all_runs(likeness.pairs),
    "figure2": of_all_runs(likeness.means),
    "figure3": of_runs(labels_and_norms),
    "figure4": real_samples,
    "figure5": of_runs(plane.tsne),
    "figure6": separability,
    "figure7": virtual_features,
    "figure8": reconstructions(1),
    "figure9": reconstructions(3),
    "figure10": of_runs(heads.norms),
    "figure11": of_all_runs(likeness.means),
    "figure12": of_runs(norms_at_both_ends),
    "figure13": of_runs(plane.tsne),
    "figure14": virtual_features,
    "figure15": of_runs(clients.label_distribution),
}
