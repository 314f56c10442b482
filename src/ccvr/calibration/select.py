"""Choose a head without harm: by counts on parts that entered neither training nor statistics."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from ccvr.core.arguments import require_iterable, require_type
from ccvr.core.errors import CalibrationError
from ccvr.core.results import UNCALIBRATED
from ccvr.models.scoring import ClassCounts
from ccvr.models.settings import eager
from ccvr.statistics.limits import MAX_COUNT

Candidate = TypeVar("Candidate")


@dataclass(frozen=True)
class Selection(Generic[Candidate]):
    """The candidate that won, and why."""

    name: str
    chosen: Candidate
    recall: dict[str, float]
    """Mean recall in percent over the classes that the held-out parts have, by candidate."""
    error: dict[str, float]
    """Its binomial standard error, in percent."""

    def __str__(self) -> str:
        lines = [f"{name}: {self.recall[name]:.2f} ± {self.error[name]:.2f} %" for name in self.recall]
        return f"chosen: {self.name} ({'; '.join(lines)})"


@eager
def select(
    candidates: Mapping[str, Candidate],
    counts: Iterable[Mapping[str, ClassCounts]],
    *,
    original: str = UNCALIBRATED,
) -> Selection[Candidate]:
    """The candidate with the highest mean recall, if it beats the original by more than one standard error.

    ``counts``: from each client, its correct and total samples per class for every candidate, on its held-out part.
    They are untrusted: a client whose counts cannot be is an error.
    """
    require_type("candidates", candidates, Mapping, "candidates by name")
    require_iterable("counts", counts, "the counts of each client, by candidate")
    if original not in candidates:
        known = ", ".join(candidates)
        raise CalibrationError(f'the original "{original}" is not among the candidates: {known}. Add it.')
    sums: dict[str, ClassCounts] = {}
    for client, replies in enumerate(counts):
        require_valid_counts(candidates, replies, client)
        if sums and replies[original].total.shape != sums[original].total.shape:
            raise CalibrationError(f"client {client} counts other classes than those before it.")
        for name in candidates:
            reply = ClassCounts(replies[name].correct, replies[name].total)
            sums[name] = sums[name] + reply if name in sums else reply
    if not sums or not int(sums[original].total.sum()):
        raise CalibrationError(
            "no client held out samples, or as many of a class as it tells of, so nothing can be compared. "
            "Hold more out: in a run with data.validation."
        )
    recall, error = {}, {}
    for name, total in sums.items():
        recall[name], error[name] = _mean_recall(total)
    best = max(recall, key=lambda name: (recall[name], name == original))
    margin = max(error[best], error[original])
    name = best if recall[best] - recall[original] > margin else original
    return Selection(name, candidates[name], recall, error)


def _mean_recall(counts: ClassCounts) -> tuple[float, float]:
    """Mean over classes with samples, and √(Σ_c r_c (1 − r_c) / n_c) / C₊, both in percent.

    In the error r_c stays 1 / (n_c + 2) away from 0 and 1: there it would be 0, as if few samples made certain.
    """
    seen = counts.total > 0
    right, total = counts.correct[seen].double(), counts.total[seen].double()
    recall, least = right / total, 1 / (total + 2)
    inner = recall.clamp(min=least, max=1 - least)
    error = (inner * (1 - inner) / total).sum().sqrt() / len(total)
    return 100 * recall.mean().item(), 100 * error.item()


def require_valid_counts(candidates: Iterable[str], replies: Mapping[str, ClassCounts], client: int) -> None:
    """Refuse counts of one client that no samples have."""
    if not isinstance(replies, Mapping):
        raise CalibrationError(f"client {client} sent a {type(replies).__name__}, not counts by candidate.")
    totals = []
    for name in candidates:
        if name not in replies:
            raise CalibrationError(f'client {client} sent no counts for "{name}".')
        if not isinstance(replies[name], ClassCounts):
            raise CalibrationError(f'client {client} sent a {type(replies[name]).__name__} for "{name}", not counts.')
        correct, total = replies[name].correct, replies[name].total
        if (
            correct.dtype != torch.int64
            or total.dtype != torch.int64
            or correct.shape != total.shape
            or total.dim() != 1
        ):
            raise CalibrationError(f'the counts of client {client} for "{name}" are not two lists of whole numbers.')
        if (correct < 0).any() or (correct > total).any():
            raise CalibrationError(f'client {client} counts more right than there are, or below 0, for "{name}".')
        if (total > MAX_COUNT).any():
            raise CalibrationError(f"client {client} counts more than {MAX_COUNT:,} samples of a class.")
        totals.append(total)
    if any(total.shape != totals[0].shape or not torch.equal(total, totals[0]) for total in totals):
        raise CalibrationError(f"client {client} counted the candidates on different samples.")
