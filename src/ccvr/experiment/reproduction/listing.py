"""What every table and figure needs, and what that costs on this machine."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ccvr.experiment.cost import seconds_per_sample, training_samples
from ccvr.experiment.reproduction.items import Item
from ccvr.experiment.reproduction.work import Job
from ccvr.experiment.spec import Spec
from ccvr.report.sheet import Sheet


@dataclass(frozen=True)
class Rates:
    """Seconds of training, from samples and the rate of a few steps, which is measured once for each kind of step."""

    measured: dict[object, float] = field(default_factory=dict)

    def seconds(self, spec: Spec) -> float:
        train = spec.training
        kind = (spec.model.name, train.algorithm, train.clsnorm, bool(train.clsprox), spec.workers)
        if kind not in self.measured:
            self.measured[kind] = seconds_per_sample(spec)
        return training_samples(spec) * self.measured[kind]


HEADERS = ("id", "what", "cells", "trained", "million samples", "hours")
WORDS = ("id", "what")


def listing(items: Sequence[Item], jobs: Sequence[Job], rates: Rates, scale: str) -> Sheet:
    """A row for each item, and one for all together, in which shared cells count once."""
    needed = {item.id: [job for job in jobs if item.trains and job.cell.name in item.cells] for item in items}
    rows = [
        [item.id, f"{item.title}{f' ({item.remark})' if item.remark else ''}", *_cost(needed[item.id], rates)]
        for item in items
    ]
    rows.append(["all", "each cell once", *_cost(jobs, rates)])
    caption = f"Tables and figures at scale {scale}; hours of training on this machine, by a few timed steps"
    return Sheet(caption, HEADERS, rows, WORDS)


def cell_listing(jobs: Sequence[Job], rates: Rates) -> Sheet:
    """A row for each cell and seed, the names that --cells takes first."""
    rows = [[job.cell.name, str(job.spec.seed), *_cost([job], rates)[1:]] for job in jobs]
    headers = ("cell", "seed", "trained", "million samples", "hours")
    return Sheet("Their cells", headers, rows, ("cell",))


def _cost(jobs: Sequence[Job], rates: Rates) -> list[str]:
    trained = sum(job.is_trained for job in jobs)
    samples = sum(training_samples(job.spec) for job in jobs)
    hours = sum(rates.seconds(job.spec) for job in jobs) / 3600
    return [str(len(jobs)), str(trained), f"{samples / 1e6:,.1f}", f"{hours:,.1f}"]
