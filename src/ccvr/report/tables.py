"""Tables for the terminal."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from ccvr.core.results import UNCALIBRATED, Personal, Results, personal_rows
from ccvr.core.terminal import cell


def results_table(runs: Sequence[tuple[str, Results]]) -> Table:
    """One row per head of each run: accuracy, gain over the trained head, worst class, worst client."""
    table = Table(
        title="Test accuracy in percent",
        title_justify="left",
        caption="* saved as the run's model",
        caption_justify="left",
    )
    table.add_column("run", overflow="fold")
    table.add_column("head", overflow="fold")
    for name in ("accuracy", "gain", "worst class", "worst client"):
        table.add_column(name, justify="right")
    for number, (name, results) in enumerate(runs):
        if number:
            table.add_section()
        for label, accuracy in results["accuracy"].items():
            table.add_row(Text(cell(name)), *_head_cells(results, label, accuracy))
            name = ""
    return table


def headline(results: Results) -> str:
    """What calibration brought, in one sentence."""
    before, label = results["accuracy"][UNCALIBRATED], results["deployed"]
    after = results["accuracy"][label]
    if label == UNCALIBRATED:
        return f"Test accuracy {before:.2f} %; the model is saved without calibration."
    return (
        f"Test accuracy {before:.2f} % before calibration, {after:.2f} % after ({label}): {after - before:+.2f} points."
    )


def _head_cells(results: Results, label: str, accuracy: float) -> list[Text]:
    before = results["accuracy"][UNCALIBRATED]
    gain = "" if label == UNCALIBRATED else f"{accuracy - before:+.2f}"
    shown = f"{label} *" if label == results["deployed"] else label
    worst = _percent(results["client_accuracy"][label]["worst"])
    cells = [shown, f"{accuracy:.2f}", gain, worst_class(results, label), worst]
    return [Text(cell(each)) for each in cells]


def worst_class(results: Results, label: str) -> str:
    """The lowest recall of a class, and the class."""
    recalls = results["per_class_recall"][label]
    known = [(recall, name) for recall, name in zip(recalls, results["class_names"], strict=True) if recall is not None]
    return f"{min(known)[0]:.2f} ({min(known)[1]})" if known else "–"


def personal_table(runs: Sequence[tuple[str, Results]]) -> Table:
    """One row per personalisation of each run: the clients' own models, and the global one in brackets."""
    table = Table(
        title="Clients' own models: percent under each client's label mix",
        title_justify="left",
        caption="in brackets the global model under the head that they started from",
        caption_justify="left",
    )
    names = ["run"] if len(runs) > 1 else []
    for name in [*names, "own models", "from head"]:
        table.add_column(name, overflow="fold")
    for name in ("mean client", "gain", "worst client"):
        table.add_column(name, justify="right")
    for name, results in runs:
        for label, row in personal_rows(results).items():
            cells = [*([name] if names else []), label, row["head"], *_personal_cells(results, row)]
            table.add_row(*(Text(cell(each)) for each in cells))
            name = ""
    return table


def _personal_cells(results: Results, row: Personal) -> list[str]:
    shared, own = results["client_accuracy"][row["head"]], row["accuracy"]
    before, after = shared["mean"], own["mean"]
    gain = "–" if before is None or after is None else f"{after - before:+.2f}"
    worst = f"{_percent(own['worst'])} ({_percent(shared['worst'])})"
    return [f"{_percent(after)} ({_percent(before)})", gain, worst]


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def repeats_table(rows: Sequence[tuple[str, Sequence[float], float]]) -> Table:
    """Mean and spread of repeated calibrations; each row is a name, its accuracies, and the accuracy before."""
    table = Table(title="Test accuracy in percent, over repeats", title_justify="left")
    table.add_column("calibration")
    for name in ("n", "mean", "std", "gain"):
        table.add_column(name, justify="right")
    for name, accuracies, before in rows:
        mean = sum(accuracies) / len(accuracies)
        std = (sum((value - mean) ** 2 for value in accuracies) / max(len(accuracies) - 1, 1)) ** 0.5
        table.add_row(Text(cell(name)), str(len(accuracies)), f"{mean:.2f}", f"{std:.2f}", f"{mean - before:+.2f}")
    return table


def owners_table(label_counts: Sequence[Sequence[int]], class_names: Sequence[str], *, most: int = 12) -> Table:
    """Clients × classes: how many samples each client has; the middle of a long or wide table is left out."""
    columns = _ends(len(class_names), most)
    width = len(str(max(map(sum, label_counts))))  # numbers stay whole; a narrow terminal cuts the names
    padding = 1 if (len(columns) + 2) * (width + 3) <= 80 else 0
    table = Table(title="Training samples of each client, by class", title_justify="left", padding=(0, padding))
    table.add_column("client", justify="right", min_width=width, no_wrap=True)
    for column in columns:
        name = Text("…" if column is None else cell(class_names[column]))
        table.add_column(name, justify="right", min_width=width - 1, no_wrap=True)
    table.add_column("all", justify="right", min_width=width, no_wrap=True)
    for row in _ends(len(label_counts), 2 * most):
        if row is None:
            table.add_row(*["…"] * (len(columns) + 2))
        else:
            counts = label_counts[row]
            cells = ["…" if column is None else str(counts[column] or "·") for column in columns]
            table.add_row(str(row), *cells, str(sum(counts)))
    return table


def _ends(length: int, most: int) -> list[int | None]:
    """0 … length − 1, with None in place of a middle that is too long."""
    if length <= most:
        return list(range(length))
    return [*range(most - 2), None, length - 1]


def recall_table(recalls: Sequence[float | None], class_names: Sequence[str]) -> Table:
    table = Table(title="Recall of each class in percent", title_justify="left")
    table.add_column("class")
    table.add_column("recall", justify="right")
    for name, recall in zip(class_names, recalls, strict=True):
        table.add_row(Text(cell(name)), "no samples" if recall is None else f"{recall:.2f}")
    return table


def listing_table(rows: Sequence[Any], root: Path) -> Table:
    """Data sets: what they are and where they lie."""
    table = Table(title=Text(cell(f"Data sets (looked for in {root})"), style="table.title"), title_justify="left")
    for name in ("name", "what", "train", "test", "where"):
        table.add_column(name, justify="right" if name in ("train", "test") else "left", overflow="fold")
    for row in rows:
        where = row.where or f"missing: ccvr data get {row.name}"
        table.add_row(row.name, row.description, f"{row.train:,}", f"{row.test:,}", Text(cell(where)))
    return table
