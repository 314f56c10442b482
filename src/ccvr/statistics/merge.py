"""All clients' statistics as one, folded as they come."""

from collections.abc import Callable, Iterable, Iterator

from ccvr.core.arguments import require_whole
from ccvr.core.errors import StatisticsError
from ccvr.models.settings import eager, settled
from ccvr.statistics.limits import MAX_CLIENTS, MAX_COUNT, require_claims
from ccvr.statistics.moments import ClassStatistics
from ccvr.statistics.robust import Sketches, Suspect

Refusal = Callable[[StatisticsError], None]


@eager
def merge(
    parts: Iterable[ClassStatistics | bytes],
    *,
    like: ClassStatistics | None = None,
    refused: Refusal | None = None,
    suspects: Callable[[Suspect], None] | None = None,
    robust: bool = False,
    max_count: int | None = None,
    max_clients: int | None = None,
) -> ClassStatistics:
    """All clients' statistics, folded one at a time; bytes are read as ``from_bytes`` reads them.

    Args:
        parts: statistics of each client, or their bytes.
        like: the server's own statistics, say of one random batch. Without them the first part says what the others
            must be, and a hostile first client shuts out everybody. They also bound how large means and spreads of each
            part may be, by ``FACTOR`` times the largest that they show.
        refused: called with the error of each part that does not fit. The part is left out, and what was merged stays
            as it was. Without it the first such part is an error.
        suspects: called, after the last part, with each client whose class means or spreads lie far outside those of
            most clients that have the same classes. It is only named: its statistics are in the sum.
        robust: leave out the suspects. What remains is exact. If there are any, the parts are read a second time.
        max_count: samples of one class that one part may hold. Without it bytes hold at most 10⁹.
        max_clients: clients that one part may be of. Without it bytes are of one client, and statistics of any number.
            A server of servers passes how many clients stand behind each part.

    Raises:
        StatisticsError: a part does not fit; there is none; ``robust`` parts can be read only once; clients' means
            alone cannot be compared.

    Example:
        >>> import torch, ccvr
        >>> z, y = torch.randn(60, 4), torch.arange(60) % 2
        >>> parts = [ccvr.statistics_of(z[:20], y[:20]), ccvr.statistics_of(z[20:40], y[20:40])]
        >>> liar = ccvr.statistics_of(z[40:] + 9, y[40:])
        >>> int(ccvr.merge([*parts, liar], robust=True).count.sum())
        40
    """
    _require_arguments(parts, like, max_count, max_clients)
    if robust and isinstance(parts, Iterator):
        raise StatisticsError(
            f"a robust merge may read the parts twice, and a {type(parts).__name__} is read once. Give a list."
        )
    watched = Sketches() if robust or suspects is not None else None
    left_out: set[int] = set()
    limits = (max_count, max_clients)
    total = _fold(parts, like, refused, left_out, watched, *limits)
    found = watched.suspects() if watched is not None else []
    if suspects is not None:
        for suspect in found:
            suspects(suspect)
    if robust and found:
        left_out |= {suspect.position for suspect in found}
        total = _fold(parts, like, None, left_out, None, *limits)
    return total


def _fold(
    parts: Iterable[ClassStatistics | bytes],
    like: ClassStatistics | None,
    refused: Refusal | None,
    left_out: set[int],
    watched: Sketches | None,
    max_count: int | None,
    max_clients: int | None,
) -> ClassStatistics:
    """The sum of all parts but those at the positions ``left_out``, to which refused ones are added."""
    total: ClassStatistics | None = None
    for position, part in enumerate(parts):
        if position in left_out:
            continue
        try:
            statistics = _read(part, total, like)
            if watched is not None:
                watched.require(statistics)
            most = 1 if max_clients is None and statistics is not part else max_clients
            total = _added(total, statistics, max_count, most)
            if watched is not None:
                watched.add(position, statistics)
        except StatisticsError as error:
            if refused is None:
                raise
            left_out.add(position)
            refused(error)
    if total is None:
        raise StatisticsError("there are no statistics to merge. Collect them from at least one client.")
    return total


def _require_arguments(parts: object, like: object, max_count: object, max_clients: object) -> None:
    """Refuse arguments that would switch a limit off, or blame a part for the caller's mistake."""
    if not isinstance(parts, Iterable):
        raise StatisticsError(f"the parts are a {type(parts).__name__}. Give a list of statistics, or of their bytes.")
    if like is not None and not isinstance(like, ClassStatistics):
        raise StatisticsError(f"like is a {type(like).__name__}. Give statistics, as ccvr.collect makes them.")
    for name, value, most in (
        ("max_count", max_count, MAX_CLIENTS * MAX_COUNT),
        ("max_clients", max_clients, MAX_CLIENTS),
    ):
        if value is not None:
            require_whole(name, value, 1, most)


@settled
def _added(
    total: ClassStatistics | None, part: ClassStatistics, max_count: int | None, max_clients: int | None
) -> ClassStatistics:
    """The sum with a part in it; the part stays as it is."""
    require_claims(part.count, part.clients, max_count, max_clients)
    if total is None:
        return part.copy()
    total.add_(part)
    return total


@settled
def _read(part: object, total: ClassStatistics | None, like: ClassStatistics | None) -> ClassStatistics:
    """Statistics, or those in bytes, that are ``like`` others."""
    if isinstance(part, ClassStatistics):
        statistics = part
        if like is not None:
            like.require_expected(statistics)
    elif isinstance(part, bytes | bytearray | memoryview):
        kind = "" if total is None else total.kind
        statistics = ClassStatistics.from_bytes(bytes(part), like=like, kind=kind)
    else:
        raise StatisticsError(f"a part is a {type(part).__name__}. Give statistics, or their bytes.")
    if total is not None:
        total.require_alike(statistics)
    return statistics
