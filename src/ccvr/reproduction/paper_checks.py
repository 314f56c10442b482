"""What the paper sees in its figures, and whether ours show it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ccvr.core.arrays import Array
from ccvr.core.results import UNCALIBRATED
from ccvr.report.figures.cka import OWN
from ccvr.report.figures.clients import round_norms
from ccvr.report.runs import RunFiles
from ccvr.reproduction.cells import Scale
from ccvr.reproduction.comparison import EXACT, TableRow
from ccvr.reproduction.paper_figures import Shown, layer

BEFORE_AFTER = (UNCALIBRATED, "ccvr")

Observation = tuple[str, bool] | None
"""Numbers, and whether they show what the paper sees; None where the runs lack the data."""


def _means(run: RunFiles) -> dict[str, float]:
    """Layer → mean CKA."""
    about = run.analyses[OWN][1]
    return {layer(path): mean for path, mean in zip(about["layers"], about["mean"], strict=True)}


def deeper_is_less_alike(run: RunFiles) -> Observation:
    means = list(_means(run).items())
    chosen = [means[0], means[len(means) // 2], means[-1]]
    values = [mean for _, mean in chosen]
    return ", ".join(f"{name} {mean:.3f}" for name, mean in chosen), values == sorted(set(values), reverse=True)


def head_is_least_alike(run: RunFiles) -> Observation:
    *others, (head, mean) = _means(run).items()
    lowest, least = min(others, key=lambda each: each[1])
    return f"{head} {mean:.3f}, {lowest} {least:.3f}", mean < least


def _gains(run: RunFiles, peer: RunFiles) -> list[float]:
    own, others = _means(run), _means(peer)
    return [own[name] - others[name] for name in own if name in others]


def more_alike(run: RunFiles, peer: RunFiles) -> Observation:
    """In all layers."""
    gains = _gains(run, peer)
    return f"by {min(gains):+.3f} to {max(gains):+.3f}", min(gains) > 0


def less_alike(run: RunFiles, peer: RunFiles) -> Observation:
    """In all layers."""
    losses = _gains(run, peer)
    return f"by {min(losses):+.3f} to {max(losses):+.3f}", max(losses) < 0


def head_is_less_alike(run: RunFiles, peer: RunFiles) -> Observation:
    own, other = list(_means(run).values())[-1], list(_means(peer).values())[-1]
    return f"{own:.3f}, FedAvg {other:.3f}", own < other


def _norms(run: RunFiles, place: int) -> dict[int, Array]:
    """Client → norms of its head's rows after its training in the first round (0) or the last (-1)."""
    return {client: np.array(own, dtype=float) for client, own in round_norms(run.rounds[place]).items()}


def _lean(run: RunFiles, place: int) -> float | None:
    """Correlation of row norms and samples of the classes, mean over the clients of a round."""
    if run.label_counts is None:
        return None
    pairs = [(own, run.label_counts[client]) for client, own in _norms(run, place).items()]
    found = [np.corrcoef(own, owned)[0, 1] for own, owned in pairs if own.std() and owned.std()]
    return float(np.mean(found)) if found else None


def norms_follow_samples(run: RunFiles) -> Observation:
    first, last = _lean(run, 0), _lean(run, -1)
    if first is None or last is None:
        return None
    return f"correlation {first:.2f} in round {run.rounds[0]['round']}, {last:.2f} in the last", first > 0


def leans_less(run: RunFiles, peer: RunFiles) -> Observation:
    """By half at least: whose first rounds are the same differs by rounding."""
    own, other = _lean(run, 0), _lean(peer, 0)
    return None if own is None or other is None else (f"correlation {own:.2f}, FedAvg {other:.2f}", own < other / 2)


def _unevenness(norms: Array) -> float:
    """Standard deviation over mean of each head's row norms, mean over heads."""
    return float(np.mean(norms.std(axis=-1) / norms.mean(axis=-1)))


def more_uneven(run: RunFiles, peer: RunFiles) -> Observation:
    own, other = (list(_norms(each, -1).values()) for each in (run, peer))
    if not own or not other:
        return None
    ours, theirs = _unevenness(np.array(own)), _unevenness(np.array(other))
    return f"deviation over mean {ours:.3f}, iid {theirs:.3f}", ours > 1.1 * theirs


def norms_get_even(run: RunFiles) -> Observation:
    arrays, about = run.analyses["norms"]
    norms = dict(zip(about["heads"], arrays["norms"], strict=True))
    if not set(BEFORE_AFTER) <= set(norms):
        return None
    before, after = (_unevenness(norms[head]) for head in BEFORE_AFTER)
    return f"deviation over mean {before:.3f} before, {after:.3f} after", after < before


def most_of_the_gain(found: dict[str, float]) -> Observation:
    some, whole = (found[head] - found[UNCALIBRATED] for head in ("oracle-partial-100", "oracle"))
    return (f"{some:+.2f} of {whole:+.2f}", some > whole / 2) if whole > 0 else None


def few_do_much(found: dict[str, float]) -> Observation:
    gain = found["ccvr-m50"] - found[UNCALIBRATED]
    return f"{gain:+.2f}", round(gain, EXACT) > 0


def more_do_more(found: dict[str, float]) -> Observation:
    few, many = found["ccvr-m50"], found["ccvr-m2000"]
    return f"{few:.2f}, {many:.2f}", round(many - few, EXACT) > 0


ENOUGH = 4
"""Runs that a correlation needs."""


class Seen(NamedTuple):
    """A place, the numbers there, and whether they show what the paper sees."""

    where: str
    numbers: str
    as_said: bool

    @property
    def text(self) -> str:
        return f"{self.where} ({self.numbers})"


Look = Callable[[Sequence[Shown], Sequence[TableRow]], Iterator[Seen]]


@dataclass(frozen=True)
class Finding:
    """What the paper sees in a figure, and the check of ours."""

    says: str
    look: Look

    def text(self, runs: Sequence[Shown], rows: Sequence[TableRow]) -> str:
        seen = list(self.look(runs, rows))
        parts = [
            f" {verdict}: {'; '.join(each.text for each in seen if each.as_said is as_said)}."
            for verdict, as_said in (("Ours shows it", True), ("Ours does not show it", False))
            if any(each.as_said is as_said for each in seen)
        ]
        return f"The paper: {self.says}." + ("".join(parts) or " Ours cannot tell yet.")


def of_runs(look: Callable[[RunFiles], Observation], which: Callable[[Shown], bool] = lambda _: True) -> Look:
    """In each run by itself."""

    def seen(runs: Sequence[Shown], _: Sequence[TableRow]) -> Iterator[Seen]:
        for run in filter(which, runs):
            if found := look(run.files):
                yield Seen(_where(run.files.label, run.scale), *found)

    return seen


def beside(which: Callable[[Shown], bool], other: Callable[[Shown], bool], look: Callable[..., Observation]) -> Look:
    """In each of some runs beside another of the same scale."""

    def seen(runs: Sequence[Shown], _: Sequence[TableRow]) -> Iterator[Seen]:
        for run in filter(which, runs):
            for peer in filter(other, runs):
                if peer.scale == run.scale and (found := look(run.files, peer.files)):
                    yield Seen(_where(run.files.label, run.scale), *found)

    return seen


def _where(name: str, scale: Scale | None) -> str:
    return f"{name}, {scale.name} scale" if scale else name


def _of(*methods: str) -> Callable[[Shown], bool]:
    return lambda run: run.method in methods


def _iid(run: Shown) -> bool:
    return bool(run.files.setting("partition.kind") == "iid")


def _non_iid(run: Shown) -> bool:
    return not _iid(run)


def separability_tells(runs: Sequence[Shown], _: Sequence[TableRow]) -> Iterator[Seen]:
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


def of_curves(look: Callable[[dict[str, float]], Observation], *heads: str, without: str = "") -> Look:
    """In the accuracies by head of each cell and scale that has these; not in settings that end so."""

    def seen(_: Sequence[Shown], rows: Sequence[TableRow]) -> Iterator[Seen]:
        for cell, scale in dict.fromkeys((row.cell, row.scale) for row in rows if row.ours):
            own = [row for row in rows if (row.cell, row.scale) == (cell, scale)]
            found: dict[str, float] = {row.head: row.ours.mean for row in own if row.ours}
            if set(heads) <= set(found) and not (without and own[0].setting.endswith(without)):
                plain = next(row for row in own if row.head == UNCALIBRATED)
                where = f"{plain.method}, {plain.setting.partition(', ')[2]}"
                if told := look(found):
                    yield Seen(_where(where, scale), *told)

    return seen


OF_VIRTUAL = (
    Finding("50 virtual features per class raise the accuracy", of_curves(few_do_much, UNCALIBRATED, "ccvr-m50")),
    Finding(
        "2000 do more than 50 at α 0.05 and 0.1",
        of_curves(more_do_more, UNCALIBRATED, "ccvr-m50", "ccvr-m2000", without="α = 0.5"),
    ),
)
FINDINGS: dict[str, tuple[Finding, ...]] = {
    "figure1": (Finding("the deeper the layer, the less alike the clients", of_runs(deeper_is_less_alike)),),
    "figure2": (
        Finding("non-IID clients are less alike than IID ones, in all layers", beside(_non_iid, _iid, less_alike)),
        Finding("the head is the least alike of all layers", of_runs(head_is_least_alike, _non_iid)),
    ),
    "figure3": (
        Finding("at first, row norms follow the client's samples", of_runs(norms_follow_samples, _non_iid)),
        Finding(
            "at the end, heads are more uneven than with IID data; we ask for a tenth more",
            beside(_non_iid, _iid, more_uneven),
        ),
    ),
    "figure4": (
        Finding(
            "1/50 of the samples (100 per class) does well; we ask for more than half of what all gain",
            of_curves(most_of_the_gain, UNCALIBRATED, "oracle-partial-100", "oracle"),
        ),
    ),
    "figure6": (Finding("the farther apart the classes, the more whole data reach", separability_tells),),
    "figure7": OF_VIRTUAL,
    "figure10": (Finding("CCVR evens out the row norms", of_runs(norms_get_even)),),
    "figure11": (
        Finding(
            "FedProx and MOON make clients more alike than FedAvg, in all layers",
            beside(_of("FedProx", "MOON"), _of("FedAvg"), more_alike),
        ),
        Finding(
            "clsnorm and clsprox make the clients' heads less alike",
            beside(_of("FedAvg + clsnorm", "FedAvg + clsprox"), _of("FedAvg"), head_is_less_alike),
        ),
    ),
    "figure12": (
        Finding(
            "in round 1 the norms of FedAvg and FedProx follow the samples",
            of_runs(norms_follow_samples, _of("FedAvg", "FedProx")),
        ),
        Finding(
            "in round 1 the norms of MOON do not follow them; we ask for less than half of FedAvg's correlation",
            beside(_of("MOON"), _of("FedAvg"), leans_less),
        ),
    ),
    "figure14": OF_VIRTUAL,
}
"""What numbers can decide. docs/analysis.md describes the planes and pictures."""
