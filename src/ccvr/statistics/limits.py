"""Bounds of what statistics may say: what can be counted, and what no features give."""

from torch import Tensor

from ccvr.core.errors import StatisticsError
from ccvr.models.transform import FeatureTransform
from ccvr.statistics.kinds import Kind
from ccvr.statistics.source import Source

MAX_CLASSES = 10**6
MAX_FEATURES = 10**6
MAX_COUNT = 10**9
"""Samples of a class that one client may have, and samples that it may withhold."""
MAX_CLIENTS = 10**6
"""Clients that statistics may be of. Sums of so many clients' counts are exact in float64."""
MAX_MAGNITUDE = 1e6
"""Of a mean and of a root mean square. Sums of such features stay exact enough in float64."""

FACTOR = 10.0
"""By which a client's means and spreads may be beyond the largest of the server's own statistics."""
FLOAT32 = 1e-5
"""What rounding to float32 may add to what is exactly at a bound, in proportion."""


def require_room(
    count: Tensor, more: Tensor, clients: Tensor, more_clients: Tensor, withheld: Tensor, more_withheld: Tensor
) -> None:
    """Refuse sums that could not be counted, or read when they are sent on.

    Raises:
        StatisticsError: more clients than ``MAX_CLIENTS``, or more samples than these may have.
    """
    most = MAX_CLIENTS * MAX_COUNT
    for what, mine, theirs, limit in (
        ("clients of a class", clients, more_clients, MAX_CLIENTS),
        ("samples of a class", count, more, most),
        ("samples withheld", withheld, more_withheld, most),
    ):
        # Each of the three, because a sum of 64 bits may come out small again.
        if any(((numbers > limit) | (numbers < -limit)).any() for numbers in (mine, theirs, mine + theirs)):
            raise StatisticsError(
                f"the sum would be of more than {limit:,} {what}. "
                "Refuse parts that claim too much by max_count and max_clients."
            )


def require_numbers(numbers: Tensor, most: float, what: str) -> None:
    """Refuse what is not finite, or larger than any feature gives."""
    if not numbers.isfinite().all():
        raise ValueError(f"{what} is not finite")
    if numbers.numel() and numbers.abs().max() > most:
        raise ValueError(f"{what} is as large as {numbers.abs().max():.3g}; the most is {most:.3g}")


def require_possible(kind: Kind, source: Source, count: Tensor, mean: Tensor, spread: Tensor) -> None:
    """Refuse means [P, d] and spreads diag W [B, d] that no ``count`` [P] samples of such features have.

    Random features are cosines, so |mu| ≤ 1 and Σ z² ≤ n. Features of a transform that has a lowest value are not below
    it; where that is 0, Σ z² ≤ (Σ z)².

    Raises:
        ValueError: what cannot be.
    """
    lowest = -1.0 if kind.projected else FeatureTransform.parse(source.transform).lowest
    if mean.numel() and mean.min() < lowest - FLOAT32:
        raise ValueError(f"a mean is {mean.min():.3g}, and no such feature is below {lowest:g}")
    if kind.projected and mean.numel() and mean.max() > 1 + FLOAT32:
        raise ValueError(f"a mean is {mean.max():.3g}, and no cosine is above 1")
    weights = count.double().unsqueeze(1)
    centres, whole, sums = weights * mean.square(), weights, (weights * mean).square()
    if not kind.by_class:
        centres, whole, sums = (part.sum(0, keepdim=True)[: len(spread)] for part in (centres, whole, sums))
    most = 1.0 if kind.projected else MAX_MAGNITUDE**2
    squares = spread + centres
    if (squares > most * whole * (1 + FLOAT32)).any():
        reached = float((squares / whole).max().sqrt())
        raise ValueError(f"the root mean square of a feature is {reached:.3g}; the most is {most**0.5:g}")
    if lowest == 0 and (squares > sums * (1 + FLOAT32)).any():
        raise ValueError("features that are not below 0 spread further than their sums allow")


def require_claims(count: Tensor, clients: Tensor, max_count: int | None, max_clients: int | None) -> None:
    """Refuse a part that claims more samples of a class, or more clients, than one part may hold.

    Raises:
        StatisticsError: it does.
    """
    if max_clients is not None and len(clients) and int(clients.max()) > max_clients:
        raise StatisticsError(
            f"a part is of {int(clients.max()):,} clients; the most is {max_clients:,}. "
            "Leave it out, or raise max_clients where servers send what they merged."
        )
    if max_count is not None and len(count) and int(count.max()) > max_count:
        raise StatisticsError(
            f"a part counts {int(count.max()):,} samples of class {int(count.argmax())}; the most is {max_count:,}. "
            "Leave it out, or raise max_count."
        )


def require_magnitudes(mean: Tensor, squares: Tensor, expected_norm: float, expected_feature: float) -> None:
    """Refuse means [P, d] and mean squares [B, d] far beyond those of the server's own statistics.

    Raises:
        StatisticsError: a mean's norm or a feature's root mean square is more than ``FACTOR`` times the largest there.
    """
    for what, reached, expected in (
        ("the norm of a class mean", float(mean.norm(dim=1).max()) if len(mean) else 0.0, expected_norm),
        ("the root mean square of a feature", float(squares.max()) ** 0.5 if len(squares) else 0.0, expected_feature),
    ):
        if reached > FACTOR * expected:
            raise StatisticsError(
                f"{what} is {reached:.3g}; the server's own statistics show at most {expected:.3g}, "
                f"and {FACTOR:g} times that is allowed. Leave the part out, or give others as like."
            )
