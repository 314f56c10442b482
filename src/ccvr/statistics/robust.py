"""Which clients' statistics lie far outside the others': a plausible lie is seen by comparing clients.

Two clients that have the same class are compared by its mean and by its spread. Their distance is the root of the
squared difference over what honest clients show: sampling noise, which the counts tell, and a tolerance, within which a
quarter of all pairs stays. A client's score is the distance at which it is at least from more than half of the clients
that it can be compared with, and from at least two. A suspect's is above ``THRESHOLD`` times the median client's.

Of each client this keeps counts, means and variances, 2 C d numbers, and of all one matrix [d, d]; comparing K clients
takes K² numbers.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ccvr.core.errors import StatisticsError
from ccvr.models.settings import settled
from ccvr.statistics.kinds import find_kind
from ccvr.statistics.moments import ClassStatistics

THRESHOLD = 3.0
"""A suspect differs this many times as much as honest clients do."""
TOLERANCE = 0.03
"""How much honest clients may always differ: in standard deviations of features, and in the logarithm of the spread."""
HONEST_QUANTILE = 0.25
"""Of all pairs of clients: so many are pairs of honest ones as long as half of the clients are honest."""
MIN_VOTES = 2
"""Of two clients that contradict each other, nobody can tell which one is wrong."""
MIN_COUNT = 8
"""Samples from which on a class can show that two clients agree."""
MIN_VARIANCE = 1e-3
"""Of a direction, against the mean variance: what never varies would otherwise decide alone."""
MAX_FEATURES = 8_000
"""Of clients that are compared: a matrix of 0.5 GB."""
MEASURES = ("mean", "spread")
ALL_CLASSES = -1


@dataclass(frozen=True)
class Suspect:
    """A client whose statistics lie far outside those of most clients that it shares classes with."""

    position: int
    """Of its part among the parts, from 0."""
    measure: str
    """mean or spread, whichever is further outside."""
    labels: tuple[int, ...]
    """The classes in which it contradicts clients that are no suspects; () of spreads of all classes together."""
    distance: float
    """How far it is at least from most others; of honest clients about 1."""
    threshold: float

    def __str__(self) -> str:
        labels = ", ".join(map(str, self.labels[:10])) + (" …" if len(self.labels) > 10 else "")
        where = f"class{'es' * (len(self.labels) > 1)} {labels}" if self.labels else "all classes"
        return (
            f"part {self.position}: the {self.measure} of {where} is {self.distance:.1f} times as far from most other "
            f"clients' as honest clients differ (threshold {self.threshold:g})"
        )


@dataclass(frozen=True)
class Claims:
    """What one measure of one class is at each client that has the class."""

    measure: str
    label: int
    clients: Tensor
    """[k] int64: indices of the clients."""
    values: Tensor
    """[k, q]"""
    noise: Tensor
    """[k]: the squared error of each value that sampling alone explains."""
    informative: Tensor
    """[k] bool: whether there are samples enough to agree with anybody."""

    def squares(self) -> tuple[Tensor, Tensor]:
        """Squared differences of each pair of clients, and what of them is sampling noise, both [k, k]."""
        squared = torch.cdist(self.values, self.values, compute_mode="donot_use_mm_for_euclid_dist").square()
        return squared, self.noise.unsqueeze(1) + self.noise

    def both_informative(self) -> Tensor:
        """Of which pairs of clients it can be told that they agree, [k, k] bool."""
        return self.informative.unsqueeze(1) & self.informative


Rows = tuple[Tensor, Tensor, Tensor]
"""[k], [k] and [k, d]."""


@dataclass
class Sketches:
    """What is kept of each part of a merge: enough to compare clients, and no second moments of a class."""

    positions: list[int] = field(default_factory=list)
    _means: list[Rows] = field(default_factory=list)
    """Labels, counts and means of one client's classes."""
    _variances: list[Rows] = field(default_factory=list)
    """Labels, degrees of freedom and variances, by class or of all classes together."""
    _traces: list[Tensor] = field(default_factory=list)
    _shape: Tensor = field(default_factory=lambda: torch.zeros(()))
    """Σ w_k S_k / tr(S_k) of covariances within classes. A client counts for at most d samples: none decides alone."""

    def require(self, statistics: ClassStatistics) -> None:
        """Refuse statistics that cannot be compared."""
        if statistics.num_features > MAX_FEATURES:
            raise StatisticsError(
                f"clients of {statistics.num_features:,} features are not compared: that takes the square of it in "
                f"memory, and {MAX_FEATURES:,} are the most. Merge without suspects."
            )
        if find_kind(statistics.kind).made_of_means:
            raise StatisticsError(
                f"{statistics.kind} statistics hold no variances, so clients cannot be compared. "
                'Collect with kind="diagonal", "pooled" or "full".'
            )

    @settled
    def add(self, position: int, statistics: ClassStatistics) -> None:
        """Keep what is needed of one client's statistics."""
        labels = (statistics.count > 0).nonzero().flatten()
        freedom = (statistics.count[labels].sum() - len(labels)).double()
        cov = statistics.pooled_covariance()
        self.positions.append(position)
        self._means.append((labels, statistics.count[labels].double(), statistics.means_of(labels)))
        self._variances.append(_variances(statistics, labels, cov.diagonal(), freedom))
        trace = cov.trace()
        if freedom > 0 and trace > 0 and cov.isfinite().all():
            self._traces.append(trace)
            self._shape = self._shape + cov * (freedom.clamp(max=len(cov)) / trace)

    def claims(self) -> Iterator[Claims]:
        """All measures of all classes, of the clients that have them; nothing where nobody has a variance."""
        if not self._traces:
            return
        scale = torch.stack(self._traces).median() / self._shape.trace()
        root, variance = _root_metric(self._shape * scale)
        clients, labels, counts, means = _stacked(self._means)
        values = (means - means.nanmedian(0).values) @ root
        yield from _by_label("mean", clients, labels, values, 1 / counts, counts >= MIN_COUNT)
        clients, labels, freedom, variances = _stacked(self._variances)
        spreads = (variances / variance).mean(1, keepdim=True)
        spreads = torch.where(spreads >= 0, spreads.clamp(min=1e-12).log(), torch.nan)  # noise may make them negative
        noise = torch.special.polygamma(1, freedom / 2)  # the variance of a logarithm of chi²
        yield from _by_label("spread", clients, labels, spreads, noise, freedom >= MIN_COUNT - 1)

    @settled
    def suspects(self, threshold: float = THRESHOLD) -> list[Suspect]:
        """The suspects, worst first."""
        every, number = list(self.claims()), len(self.positions)
        tolerated = {measure: _tolerated(each for each in every if each.measure == measure) for measure in MEASURES}
        found = [(claims, _distances(claims, tolerated[claims.measure], threshold)) for claims in every]
        furthest = torch.full((number, number), torch.nan, dtype=torch.float64)
        for claims, distances in found:
            pairs = claims.clients.unsqueeze(1), claims.clients
            furthest[pairs] = furthest[pairs].fmax(distances)
        furthest[_without_judges(every, number) & furthest.isnan()] = 0.0
        outside = majority_outside(furthest.fill_diagonal_(torch.nan), threshold)
        others = torch.ones(number, dtype=torch.bool)
        others[list(outside)] = False
        return [
            Suspect(self.positions[client], *_where(found, client, others, threshold), distance, threshold)
            for client, distance in outside.items()
        ]


def majority_outside(distances: Tensor, threshold: float) -> dict[int, float]:
    """Clients that are further than ``threshold`` from most others, and how far, from distances [K, K].

    NaN stands for clients that cannot be compared. Where the median client is further than 1 from most others, that is
    the unit. The worst is taken out first, and no longer counts among the others.
    """
    distances = distances.clone()
    found: dict[int, float] = {}
    while distances.numel():
        scores = _from_most(distances)
        judged = scores[~scores.isnan()]
        unit = judged.median().clamp(min=1) if len(judged) else torch.ones(())
        far, worst = (scores / unit).nan_to_num(nan=-1.0, posinf=torch.inf).max(0)
        if far <= threshold:
            break
        found[int(worst)] = float(far)
        distances[worst] = distances[:, worst] = torch.nan
    return found


def _from_most(distances: Tensor) -> Tensor:
    """How far each client is at least from more than half of those that it can be compared with, and from two; NaN."""
    ranked = distances.nan_to_num(nan=-1.0, posinf=torch.inf).sort(dim=1, descending=True).values
    comparable = (ranked >= 0).sum(1)
    votes = (comparable // 2 + 1).clamp(min=MIN_VOTES)
    last = (votes - 1).clamp(max=len(distances) - 1).unsqueeze(1)
    return torch.where(comparable >= votes, ranked.gather(1, last).squeeze(1), torch.nan)


def _variances(statistics: ClassStatistics, labels: Tensor, pooled: Tensor, freedom: Tensor) -> Rows:
    """Labels, degrees of freedom and variances: by class where statistics have such, else of all classes together."""
    diagonal = _diagonal(statistics)
    if diagonal is None:
        kept = [0] if freedom > 0 else []
        return torch.tensor([ALL_CLASSES])[kept], freedom.unsqueeze(0)[kept], pooled.unsqueeze(0)[kept]
    several = labels[statistics.count[labels] > 1]
    freedom = statistics.count[several].double() - 1
    variances = torch.zeros(len(several), statistics.num_features, dtype=torch.float64)
    for row, label in enumerate(several.tolist()):
        variances[row] = diagonal.scatter(label) / freedom[row]
    return several, freedom, variances


def _diagonal(statistics: ClassStatistics) -> ClassStatistics | None:
    """Variances of each class; None where there are none, or noise may exceed them."""
    try:
        return statistics.as_kind("diagonal") if find_kind(statistics.kind).exact else None
    except StatisticsError:
        return None


def _root_metric(cov: Tensor) -> tuple[Tensor, Tensor]:
    """Q [d, d] and the variances [d] of the features: |(a − b) Q|² is 1/n + 1/m for means of n and m samples.

    Q Qᵀ is S^(−1/2) / tr(S^(1/2)), half way between Euclid's and Mahalanobis' distance. Directions of large variance
    rule the first, where small shifts do not show; all d directions have the same weight in the second, where classes,
    which differ in few of them, look alike.
    """
    values, vectors = torch.linalg.eigh(cov)
    values = values.clamp(min=float(values.mean()) * MIN_VARIANCE)
    variance = cov.diagonal().clamp(min=float(cov.diagonal().mean()) * MIN_VARIANCE)
    return vectors * values.pow(-0.25) / values.sqrt().sum().sqrt(), variance


def _stacked(rows: Sequence[Rows]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """All clients' rows, one client after the other, behind the client of each."""
    clients = torch.repeat_interleave(torch.tensor([len(labels) for labels, _, _ in rows], dtype=torch.int64))
    first, second, third = (torch.cat(parts) for parts in zip(*rows, strict=True))
    return clients, first, second, third


def _by_label(
    measure: str, clients: Tensor, labels: Tensor, values: Tensor, noise: Tensor, informative: Tensor
) -> Iterator[Claims]:
    for label in labels.unique().tolist():
        rows = (labels == label).nonzero().flatten()
        yield Claims(measure, label, clients[rows], values[rows], noise[rows], informative[rows])


def _tolerated(every: Iterable[Claims]) -> float:
    """What honest clients' squared differences have beyond sampling noise, at least TOLERANCE² from each of the two."""
    excesses = [np.empty(0)]
    for claims in every:
        squared, noise = claims.squares()
        above = torch.ones_like(squared, dtype=torch.bool).triu(1)
        excesses.append(torch.nan_to_num(squared - noise, nan=torch.inf)[above].numpy())
    excess = np.concatenate(excesses)
    found = np.quantile(excess, HONEST_QUANTILE, method="lower") if len(excess) else 0.0
    return max(float(found), 2 * TOLERANCE**2)


def _distances(claims: Claims, tolerated: float, threshold: float) -> Tensor:
    """Distances of all pairs of clients [k, k]; NaN where two agree only for want of samples."""
    squared, noise = claims.squares()
    distances = torch.nan_to_num((squared / (noise + tolerated)).sqrt(), nan=torch.inf)
    unknown = claims.values.isnan().any(1) if claims.measure == "spread" else torch.zeros_like(claims.informative)
    undecided = ~claims.both_informative() & (distances <= threshold)
    return distances.masked_fill(undecided | unknown.unsqueeze(1) | unknown, torch.nan)


def _without_judges(every: Iterable[Claims], number: int) -> Tensor:
    """Pairs (client, other) [K, K] that share a class, of clients that nobody can agree with for want of samples.

    Else such an honest client would be compared with liars alone, whom it contradicts.
    """
    meets = torch.zeros(number, number, dtype=torch.bool)
    is_judged = torch.zeros(number, dtype=torch.bool)
    for claims in every:
        meets[claims.clients.unsqueeze(1), claims.clients] = True
        is_judged[claims.clients] |= claims.both_informative().fill_diagonal_(False).any(1)
    return meets & ~is_judged.unsqueeze(1)


def _where(
    found: Sequence[tuple[Claims, Tensor]], client: int, others: Tensor, threshold: float
) -> tuple[str, tuple[int, ...]]:
    """The measure by which a suspect is furthest from the others, and the classes where it contradicts any of them."""
    furthest: dict[str, float] = {}
    labels: dict[str, list[int]] = {"mean": [], "spread": []}
    for claims, distances in found:
        for row in distances[claims.clients == client]:
            outside = row[others[claims.clients] & (row > threshold)]
            if len(outside):
                furthest[claims.measure] = max(furthest.get(claims.measure, 0.0), float(outside.median()))
                labels[claims.measure].append(claims.label)
    measure = max(furthest, key=lambda name: furthest[name], default="mean")
    return measure, tuple(label for label in labels[measure] if label != ALL_CLASSES)
