"""Who owns what, and what the clients' heads make of it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ccvr.core.arrays import Array
from ccvr.core.results import personal_rows
from ccvr.report.figures.matrix import draw_matrix, strips
from ccvr.report.figures.panel import Panel, bars, of_each_run
from ccvr.report.figures.rounds import by_round
from ccvr.report.runs import RunFiles

MAX_BARS, MAX_SERIES = 20, 7
"""Clients and kinds of models with a bar each; runs of more clients have the table alone."""
MAX_STRIPS = 160
"""Rows of the figure that has clients by round; of more, rounds between first and last are left out, and clients."""


def label_distributions(runs: Sequence[RunFiles]) -> list[Panel]:
    """Of each run; one scale for runs on the same data."""
    most: dict[object, int] = {}
    for run in runs:
        if run.label_counts is not None:
            most[run.setting("data.name")] = max(int(run.label_counts.max()), most.get(run.setting("data.name"), 0))
    return of_each_run(lambda run: label_distribution(run, most.get(run.setting("data.name"))))(runs)


def label_distribution(run: RunFiles, most: int | None = None) -> list[Panel]:
    """Clients × classes: training samples."""
    counts = run.label_counts
    if counts is None:
        return []
    totals = counts.sum(1)
    missing = (counts == 0).sum(1).mean()
    alt = (
        f"Heatmap of {len(counts)} clients by {counts.shape[1]} classes: clients have {totals.min():,} to "
        f"{totals.max():,} training samples, and on average {missing:.1f} classes without any."
    )
    return [Panel(owners(counts, run.class_names, most), alt)]


def owners(counts: Array, class_names: Sequence[str], most: int | None = None) -> Figure:
    return draw_matrix(
        counts, ("client", range(len(counts))), ("class", class_names), "training samples", low=0, high=most
    )


def clients_norms(runs: Sequence[RunFiles]) -> list[Panel]:
    """Of each run; one scale of shares for all."""
    most = max((_share(run.label_counts).max() for run in runs if run.label_counts is not None), default=100.0)
    return of_each_run(lambda run: client_norms(run, most))(runs)


def _share(owned: Array) -> Array:
    """How much of each client's samples each class is, in percent."""
    return np.asarray(100 * owned / np.maximum(owned.sum(1, keepdims=True), 1))


def client_norms(run: RunFiles, most: float | None = None) -> list[Panel]:
    """What each client has, and the norms of its head's rows: in the first round, in the last, in all of them."""
    rounds = {int(record["round"]): found for record in run.rounds if (found := round_norms(record))}
    if not rounds or run.label_counts is None:
        return []
    clients = sorted({client for found in rounds.values() for client in found})
    share = _share(run.label_counts[clients])
    most = share.max() if most is None else most
    rows, columns = ("client", clients), ("class", run.class_names)
    figure = draw_matrix(share, rows, columns, "share of the client's samples, %", low=0, high=most, digits=1)
    words = "Heatmap of the share of each class among a client's training samples, in percent."
    ends = dict.fromkeys((min(rounds), max(rounds)))
    return [
        Panel(figure, words, "label mix"),
        *(_one_round(run, number, rounds[number]) for number in ends),
        _every_round(run, share, most, clients, rounds),
    ]


def round_norms(record: dict[str, Any]) -> dict[int, list[float]]:
    """Client → norms of its head's rows after its training in one round."""
    parts = sorted(record.get("clients", ()), key=lambda each: int(each["client"]))
    return {int(each["client"]): each["head_row_norms"] for each in parts if each.get("head_row_norms")}


def _one_round(run: RunFiles, number: int, found: dict[int, list[float]]) -> Panel:
    clients, matrix = list(found), np.array(list(found.values()), dtype=float)
    owned = run.label_counts[clients] if run.label_counts is not None else np.zeros_like(matrix)
    has, lacks = matrix[owned > 0], matrix[owned == 0]
    alt = f"Head-row norms of {len(clients)} clients in round {number}, by class."
    if has.size and lacks.size:
        alt += f" Mean {has.mean():.3f} for classes that a client has, {lacks.mean():.3f} for classes that it lacks."
    figure = draw_matrix(matrix, ("client", clients), ("class", run.class_names), "row norm", digits=3)
    return Panel(figure, alt, f"head-row norms in round {number}")


def _every_round(
    run: RunFiles, share: Array, most: float, clients: list[int], rounds: dict[int, dict[int, list[float]]]
) -> Panel:
    """Each client a band: on the left its label mix, on the right its head's norms, first round on top."""
    some = np.unique(np.linspace(0, len(clients) - 1, min(len(clients), MAX_STRIPS // 2)).round().astype(int))
    clients, share = [clients[i] for i in some], share[some]
    number = min(len(rounds), MAX_STRIPS // len(clients))
    chosen = [sorted(rounds)[i] for i in np.linspace(0, len(rounds) - 1, number).round().astype(int)]
    nothing = [np.nan] * len(run.class_names)
    norms = np.array([[rounds[r].get(client, nothing) for r in chosen] for client in clients], dtype=float)
    with np.errstate(all="ignore"):  # a head of zeros has no mean to compare with
        relative = norms / norms.mean(axis=2, keepdims=True)
    scales = ("share of samples, %", "row norm / mean of the head")
    figure = strips(share, relative, clients, run.class_names, scales, most)
    alt = (
        f"Head-row norms of {len(clients)} clients in {len(chosen)} rounds, {chosen[0]} to {chosen[-1]}, each over the "
        "mean of its head, beside the label mix of the client."
    )
    return Panel(figure, alt, f"{len(clients)} clients, rounds {chosen[0]} to {chosen[-1]} downwards")


def own_models(run: RunFiles) -> list[Panel]:
    """Each client under its label mix: the global model under the heads that own models started from, and those."""
    counts = run.label_counts
    if counts is None or len(counts) > MAX_BARS:
        return []
    rows = {label: row for label, row in personal_rows(run.results).items() if len(row["clients"]) == len(counts)}
    recalls = {row["head"]: run.results["per_class_recall"][row["head"]] for row in rows.values()}
    series = {f"global, {head}": _under_mixes(recall, counts) for head, recall in recalls.items()}
    series |= {f"own, {label}": row["clients"] for label, row in rows.items()}
    drawn = dict(list(series.items())[:MAX_SERIES])
    known = {name: [each for each in values if each is not None] for name, values in drawn.items()}
    if not drawn or not all(known.values()):
        return []
    names = [f"client {number}" for number in range(len(counts))]
    figure = bars(drawn, names, "accuracy under the client's mix, %", unit=" %", most=100)
    words = "; ".join(f"{name}: {min(values):.2f} % to {max(values):.2f} %" for name, values in known.items())
    return [Panel(figure, f"Accuracy of {len(counts)} clients under their label mixes, worst to best. {words}.")]


def _under_mixes(recalls: Sequence[float | None], counts: Array) -> list[float | None]:
    """Σ_c p_kc recall_c of each client, over the classes that the test set has."""
    seen = np.array([each is not None for each in recalls])
    values, owned = np.array([each or 0.0 for each in recalls]), counts * seen
    totals = owned.sum(1)
    return [float(each @ values / total) if total else None for each, total in zip(owned, totals, strict=True)]


def leans(runs: Sequence[RunFiles]) -> list[Panel]:
    """A line for each run: how the clients' heads follow their labels, and how uneven they are."""
    panels = []
    for key, what, name in (
        ("lean", "correlation of norms and samples", "leaning towards what the client has"),
        ("spread", "deviation of norms over mean", "unevenness"),
    ):
        series = {}
        for run in runs:
            arrays = run.analyses["norms"][0] if "norms" in run.analyses else {}
            pairs = zip(arrays.get("rounds", ()), arrays.get(key, ()), strict=True)
            series[run.label] = [(float(x), float(y)) for x, y in pairs if np.isfinite(y)]
        panels += by_round({run: points for run, points in series.items() if points}, what, "", name)
    return panels
