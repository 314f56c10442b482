"""What the rounds brought and what they cost."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ccvr.report.figures.panel import Panel, lines
from ccvr.report.runs import RunFiles

Points = list[tuple[float, float]]
Record = dict[str, Any]


def _series(runs: Sequence[RunFiles], value: Callable[[Record], float | None]) -> dict[str, Points]:
    """Run → (round, value) where the rounds have one."""
    found = {
        run.label: [
            (float(each["round"]), float(y))
            for each in run.rounds
            if (y := value(each)) is not None and math.isfinite(y)
        ]
        for run in runs
    }
    return {name: points for name, points in found.items() if points}


def _ends(series: dict[str, Points], unit: str) -> str:
    return "; ".join(
        f"{name}: {points[0][1]:.4g}{unit} in round {points[0][0]:g}, {points[-1][1]:.4g}{unit} in round "
        f"{points[-1][0]:g}"
        for name, points in series.items()
    )


def by_round(series: dict[str, Points], what: str, unit: str, name: str = "") -> list[Panel]:
    """One panel of lines, if there is anything to show."""
    if not series:
        return []
    label = f"{what}, {unit}" if unit else what
    figure, axes = lines(series, "round", label, unit=f" {unit}" if unit else "")
    if min(y for points in series.values() for _, y in points) >= 0:
        axes.set_ylim(bottom=0)
    return [Panel(figure, f"{what} by round. {_ends(series, f' {unit}' if unit else '')}.", name)]


def accuracy(runs: Sequence[RunFiles]) -> list[Panel]:
    series = _series(runs, lambda each: each.get("accuracy"))
    return by_round(series, "test accuracy", "%")


def losses(runs: Sequence[RunFiles]) -> list[Panel]:
    test = by_round(_series(runs, lambda each: each.get("loss")), "test loss", "", "on the test set")
    return test + by_round(_series(runs, _training_loss), "training loss", "", "on the clients, before averaging")


def times(runs: Sequence[RunFiles]) -> list[Panel]:
    seconds = by_round(_series(runs, lambda each: each.get("seconds")), "time", "s", "seconds a round")
    speeds: dict[str, Points] = {}
    for run in runs:
        epochs = int(run.setting("training.local_epochs", 1))
        speeds |= _series([run], partial(_speed, epochs=epochs))
    return seconds + by_round(speeds, "speed", "samples/s", "training samples a second")


def _training_loss(record: Record) -> float | None:
    """The mean over clients, weighted by their examples."""
    parts = [(each["examples"], each["loss"]) for each in record.get("clients", ()) if each.get("loss") is not None]
    examples = sum(count for count, _ in parts)
    return sum(count * loss for count, loss in parts) / examples if examples else None


def _speed(record: Record, epochs: int) -> float | None:
    samples = epochs * sum(each["examples"] for each in record.get("clients", ()))
    return samples / record["seconds"] if samples and record.get("seconds") else None
