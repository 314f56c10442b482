"""Looks at a run, at two, or at a curve: the numbers in words, and whether they are as the paper says."""

import numpy as np

from ccvr.core.arrays import Array
from ccvr.report.comparison import EXACT
from ccvr.report.figures.clients import round_norms
from ccvr.report.figures.likeness import OWN
from ccvr.report.reproduced import layer
from ccvr.report.runs import UNCALIBRATED, RunFiles

BEFORE_AFTER = (UNCALIBRATED, "ccvr")

Found = tuple[str, bool] | None
"""None where the runs do not say."""


def _means(run: RunFiles) -> dict[str, float]:
    """Layer → mean CKA."""
    about = run.analyses[OWN][1]
    return {layer(path): mean for path, mean in zip(about["layers"], about["mean"], strict=True)}


def deeper_is_less_alike(run: RunFiles) -> Found:
    means = list(_means(run).items())
    chosen = [means[0], means[len(means) // 2], means[-1]]
    values = [mean for _, mean in chosen]
    return ", ".join(f"{name} {mean:.3f}" for name, mean in chosen), values == sorted(set(values), reverse=True)


def head_is_least_alike(run: RunFiles) -> Found:
    *others, (head, mean) = _means(run).items()
    lowest, least = min(others, key=lambda each: each[1])
    return f"{head} {mean:.3f}, {lowest} {least:.3f}", mean < least


def _gains(run: RunFiles, peer: RunFiles) -> list[float]:
    own, others = _means(run), _means(peer)
    return [own[name] - others[name] for name in own if name in others]


def more_alike(run: RunFiles, peer: RunFiles) -> Found:
    """In all layers."""
    gains = _gains(run, peer)
    return f"by {min(gains):+.3f} to {max(gains):+.3f}", min(gains) > 0


def less_alike(run: RunFiles, peer: RunFiles) -> Found:
    """In all layers."""
    losses = _gains(run, peer)
    return f"by {min(losses):+.3f} to {max(losses):+.3f}", max(losses) < 0


def head_is_less_alike(run: RunFiles, peer: RunFiles) -> Found:
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


def norms_follow_samples(run: RunFiles) -> Found:
    first, last = _lean(run, 0), _lean(run, -1)
    if first is None or last is None:
        return None
    return f"correlation {first:.2f} in round {run.rounds[0]['round']}, {last:.2f} in the last", first > 0


def leans_less(run: RunFiles, peer: RunFiles) -> Found:
    """By half at least: whose first rounds are the same differs by rounding."""
    own, other = _lean(run, 0), _lean(peer, 0)
    return None if own is None or other is None else (f"correlation {own:.2f}, FedAvg {other:.2f}", own < other / 2)


def _unevenness(norms: Array) -> float:
    """Standard deviation over mean of each head's row norms, mean over heads."""
    return float(np.mean(norms.std(axis=-1) / norms.mean(axis=-1)))


def more_uneven(run: RunFiles, peer: RunFiles) -> Found:
    own, other = (list(_norms(each, -1).values()) for each in (run, peer))
    if not own or not other:
        return None
    ours, theirs = _unevenness(np.array(own)), _unevenness(np.array(other))
    return f"deviation over mean {ours:.3f}, iid {theirs:.3f}", ours > 1.1 * theirs


def norms_get_even(run: RunFiles) -> Found:
    arrays, about = run.analyses["norms"]
    norms = dict(zip(about["heads"], arrays["norms"], strict=True))
    if not set(BEFORE_AFTER) <= set(norms):
        return None
    before, after = (_unevenness(norms[head]) for head in BEFORE_AFTER)
    return f"deviation over mean {before:.3f} before, {after:.3f} after", after < before


def most_of_the_gain(found: dict[str, float]) -> Found:
    some, whole = (found[head] - found[UNCALIBRATED] for head in ("oracle-partial-100", "oracle"))
    return (f"{some:+.2f} of {whole:+.2f}", some > whole / 2) if whole > 0 else None


def few_do_much(found: dict[str, float]) -> Found:
    gain = found["ccvr-m50"] - found[UNCALIBRATED]
    return f"{gain:+.2f}", round(gain, EXACT) > 0


def more_do_more(found: dict[str, float]) -> Found:
    few, many = found["ccvr-m50"], found["ccvr-m2000"]
    return f"{few:.2f}, {many:.2f}", round(many - few, EXACT) > 0
