"""What the paper sees in its figures, and whether ours show it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ccvr.report import looks
from ccvr.report.comparison import Row
from ccvr.report.looks import Found
from ccvr.report.reproduced import Shown, at
from ccvr.report.runs import UNCALIBRATED, RunFiles

ENOUGH = 4
"""Runs that a correlation needs."""


class Seen(NamedTuple):
    """Where one looked, the numbers there, and whether they are as the paper says."""

    where: str
    numbers: str
    as_said: bool

    @property
    def text(self) -> str:
        return f"{self.where} ({self.numbers})"


Look = Callable[[Sequence[Shown], Sequence[Row]], Iterator[Seen]]


@dataclass(frozen=True)
class Finding:
    """What the paper says of a figure, and how to see whether it is so in ours."""

    says: str
    look: Look

    def text(self, runs: Sequence[Shown], rows: Sequence[Row]) -> str:
        seen = list(self.look(runs, rows))
        parts = [
            f" {verdict}: {'; '.join(each.text for each in seen if each.as_said is as_said)}."
            for verdict, as_said in (("Ours shows it", True), ("Ours does not show it", False))
            if any(each.as_said is as_said for each in seen)
        ]
        return f"The paper: {self.says}." + ("".join(parts) or " Ours cannot tell yet.")


def of_runs(look: Callable[[RunFiles], Found], which: Callable[[Shown], bool] = lambda _: True) -> Look:
    """In each run by itself."""

    def seen(runs: Sequence[Shown], _: Sequence[Row]) -> Iterator[Seen]:
        for run in filter(which, runs):
            if found := look(run.files):
                yield Seen(_where(run.files.label, run.scale), *found)

    return seen


def beside(which: Callable[[Shown], bool], other: Callable[[Shown], bool], look: Callable[..., Found]) -> Look:
    """In each of some runs beside another of the same scale."""

    def seen(runs: Sequence[Shown], _: Sequence[Row]) -> Iterator[Seen]:
        for run in filter(which, runs):
            for peer in filter(other, runs):
                if peer.scale == run.scale and (found := look(run.files, peer.files)):
                    yield Seen(_where(run.files.label, run.scale), *found)

    return seen


def _where(name: str, scale: str) -> str:
    return f"{name}, {at(scale.partition(' (')[0])}"


def _of(*methods: str) -> Callable[[Shown], bool]:
    return lambda run: run.method in methods


def _iid(run: Shown) -> bool:
    return bool(run.files.setting("partition.kind") == "iid")


def _non_iid(run: Shown) -> bool:
    return not _iid(run)


def separability_tells(runs: Sequence[Shown], _: Sequence[Row]) -> Iterator[Seen]:
    """By the accuracy that whole data reach, as the paper's sentence has it; its figure's axis is what they gain."""
    for scale in dict.fromkeys(run.scale for run in runs):
        own = [run.files for run in runs if run.scale == scale and "oracle" in run.files.accuracy]
        points = np.array(
            [
                (files.analyses["separability"][1]["mean"], files.accuracy["oracle"], files.accuracy[UNCALIBRATED])
                for files in own
            ]
        )
        if len(points) >= ENOUGH and points.std(axis=0).all():
            distance, reached, before = points.T
            accuracy, gain = (float(np.corrcoef(distance, each)[0, 1]) for each in (reached, reached - before))
            numbers = f"correlation {accuracy:+.2f} with the accuracy, {gain:+.2f} with the gain"
            yield Seen(_where(f"{len(points)} runs", scale), numbers, accuracy > 0)


def of_curves(look: Callable[[dict[str, float]], Found], *heads: str, without: str = "") -> Look:
    """In the accuracies by head of each cell and scale that has these; not in settings that end so."""

    def seen(_: Sequence[Shown], rows: Sequence[Row]) -> Iterator[Seen]:
        for cell, scale in dict.fromkeys((row.cell, row.scale) for row in rows if row.ours):
            own = [row for row in rows if (row.cell, row.scale) == (cell, scale)]
            found = {row.head: row.ours.mean for row in own if row.ours}
            if set(heads) <= set(found) and not (without and own[0].setting.endswith(without)):
                plain = next(row for row in own if row.head == UNCALIBRATED)
                where = f"{plain.method}, {plain.setting.partition(', ')[2]}"
                if told := look(found):
                    yield Seen(_where(where, scale), *told)

    return seen


OF_VIRTUAL = (
    Finding("50 virtual features per class raise the accuracy", of_curves(looks.few_do_much, UNCALIBRATED, "ccvr-m50")),
    Finding(
        "2000 do more than 50 at α 0.05 and 0.1",
        of_curves(looks.more_do_more, UNCALIBRATED, "ccvr-m50", "ccvr-m2000", without="α = 0.5"),
    ),
)
FINDINGS: dict[str, tuple[Finding, ...]] = {
    "figure1": (Finding("the deeper the layer, the less alike the clients", of_runs(looks.deeper_is_less_alike)),),
    "figure2": (
        Finding(
            "non-IID clients are less alike than IID ones, in all layers", beside(_non_iid, _iid, looks.less_alike)
        ),
        Finding("the head is the least alike of all layers", of_runs(looks.head_is_least_alike, _non_iid)),
    ),
    "figure3": (
        Finding("at first, row norms follow the client's samples", of_runs(looks.norms_follow_samples, _non_iid)),
        Finding(
            "at the end, heads are more uneven than with IID data; we ask for a tenth more",
            beside(_non_iid, _iid, looks.more_uneven),
        ),
    ),
    "figure4": (
        Finding(
            "1/50 of the samples (100 per class) does well; we ask for more than half of what all gain",
            of_curves(looks.most_of_the_gain, UNCALIBRATED, "oracle-partial-100", "oracle"),
        ),
    ),
    "figure6": (Finding("the farther apart the classes, the more whole data reach", separability_tells),),
    "figure7": OF_VIRTUAL,
    "figure10": (Finding("CCVR evens out the row norms", of_runs(looks.norms_get_even)),),
    "figure11": (
        Finding(
            "FedProx and MOON make clients more alike than FedAvg, in all layers",
            beside(_of("FedProx", "MOON"), _of("FedAvg"), looks.more_alike),
        ),
        Finding(
            "clsnorm and clsprox make the clients' heads less alike",
            beside(_of("FedAvg + clsnorm", "FedAvg + clsprox"), _of("FedAvg"), looks.head_is_less_alike),
        ),
    ),
    "figure12": (
        Finding(
            "in round 1 the norms of FedAvg and FedProx follow the samples",
            of_runs(looks.norms_follow_samples, _of("FedAvg", "FedProx")),
        ),
        Finding(
            "in round 1 the norms of MOON do not follow them; we ask for less than half of FedAvg's correlation",
            beside(_of("MOON"), _of("FedAvg"), looks.leans_less),
        ),
    ),
    "figure14": OF_VIRTUAL,
}
"""What numbers can decide. Of planes and pictures docs/analysis.md tells what we saw."""
