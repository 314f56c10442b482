"""Who owns what, and what the clients' heads make of it."""

import numpy as np

from ccvr.report.figures.panel import Panel, cells
from ccvr.report.runs import RunFiles


def label_distribution(run: RunFiles) -> list[Panel]:
    """Clients × classes: training images."""
    counts = run.label_counts
    if counts is None:
        return []
    figure = cells(counts, ("client", range(len(counts))), ("class", run.class_names), "training images")
    totals = counts.sum(1)
    missing = (counts == 0).sum(1).mean()
    alt = (
        f"Heatmap of {len(counts)} clients by {counts.shape[1]} classes: clients have {totals.min():,} to "
        f"{totals.max():,} training images, and on average {missing:.1f} classes without any."
    )
    return [Panel(figure, alt)]


def client_norms(run: RunFiles) -> list[Panel]:
    """Norms of the rows of each client's head after the last round, beside what the client has."""
    last = sorted(run.rounds[-1].get("clients", ()), key=lambda each: int(each["client"])) if run.rounds else []
    norms = [each["head_row_norms"] for each in last if each.get("head_row_norms")]
    if not norms or run.label_counts is None:
        return []
    clients = [int(each["client"]) for each in last if each.get("head_row_norms")]
    owned = run.label_counts[clients]
    share = 100 * owned / np.maximum(owned.sum(1, keepdims=True), 1)
    rows, columns = ("client", clients), ("class", run.class_names)
    matrix = np.array(norms, dtype=float)
    has, lacks = (matrix[owned > 0], matrix[owned == 0])
    alt = f"Head-row norms of {len(clients)} clients in round {run.rounds[-1]['round']}, by class."
    if has.size and lacks.size:
        alt += f" Mean {has.mean():.3f} for classes that a client has, {lacks.mean():.3f} for classes that it lacks."
    shares = "Heatmap of the share of each class among a client's training images, in percent."
    return [
        Panel(cells(share, rows, columns, "share of the client's images, %", low=0, digits=1), shares, "label mix"),
        Panel(cells(matrix, rows, columns, "row norm", digits=3), alt, "head-row norms"),
    ]
