"""What every table and figure needs, and what that costs on this machine."""

from collections.abc import Sequence

from ccvr.experiment.cost import Rates, training_samples
from ccvr.report.text_table import TextTable, Value
from ccvr.reproduction.items import Item
from ccvr.reproduction.run_index import RunIndex
from ccvr.reproduction.work import Job

COSTS = ("trained", "recorded", "without data", "million samples", "hours")


def listing(items: Sequence[Item], jobs: Sequence[Job], records: RunIndex, rates: Rates, scale: str) -> TextTable:
    """A row for each item, and one for all together, in which shared cells count once."""
    values: list[dict[str, Value]] = []
    for item in items:
        own = [job for job in jobs if item.trains and job.cell.name in item.cells]
        what = f"{item.title}{f' ({item.remark})' if item.remark else ''}"
        values.append({"id": item.id, "what": what, "cells": len(own), **_cost(own, records, rates)})
    values.append({"id": "all", "what": "each cell once", "cells": len(jobs), **_cost(jobs, records, rates)})
    caption = (
        f"Tables and figures at scale {scale}; hours of training on this machine, if it does nothing else, by a few "
        "timed steps. Recorded: numbers are in --results; without data: cells whose data set is not here"
    )
    return _table("list", caption, ("id", "what", "cells", *COSTS), values, ("id", "what"))


def cell_listing(jobs: Sequence[Job], records: RunIndex, rates: Rates) -> TextTable:
    """A row for each cell and seed, the names that --cells takes first."""
    values: list[dict[str, Value]] = [
        {"cell": job.cell.name, "seed": job.spec.seed, **_cost([job], records, rates)} for job in jobs
    ]
    return _table("cells", "Their cells", ("cell", "seed", *COSTS), values, ("cell",))


def _cost(jobs: Sequence[Job], records: RunIndex, rates: Rates) -> dict[str, Value]:
    samples = sum(training_samples(job.spec) for job in jobs)
    hours = sum(rates.seconds(job.spec) for job in jobs) / 3600
    recorded = sum(records.get(job.cell_spec) is not None for job in jobs)
    counts = sum(job.is_trained for job in jobs), recorded, sum(not job.has_data for job in jobs)
    return dict(zip(COSTS, (*counts, round(samples / 1e6, 2), round(hours, 2)), strict=True))


def _table(
    name: str, caption: str, headers: Sequence[str], values: Sequence[dict[str, Value]], words: Sequence[str]
) -> TextTable:
    rows = [list(map(_text, row.values())) for row in values]
    return TextTable(caption, headers, rows, words, values, name)


def _text(value: Value) -> str:
    return f"{value:,.{1 if value >= 10 else 2}f}" if isinstance(value, float) else str(value)
