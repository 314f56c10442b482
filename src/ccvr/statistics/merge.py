"""All clients' statistics as one, folded as they come."""

from collections.abc import Callable, Iterable

from ccvr.core.errors import StatisticsError
from ccvr.statistics.limits import require_claims
from ccvr.statistics.moments import ClassStatistics

Refusal = Callable[[StatisticsError], None]


def merge(
    parts: Iterable[ClassStatistics | bytes],
    *,
    like: ClassStatistics | None = None,
    refused: Refusal | None = None,
    max_count: int | None = None,
    max_clients: int | None = None,
) -> ClassStatistics:
    """All clients' statistics, folded one at a time; bytes are read as ``from_bytes`` reads them.

    Args:
        parts: statistics, or their bytes.
        like: the server's own statistics, say of one random batch. Without them the first part says what the others
            must be, and a hostile first client shuts out everybody. They also bound how large means and spreads of each
            part may be (docs/library.md): by ``FACTOR`` times the largest that they show.
        refused: called with the error of each part that does not fit, which is left out; what was merged stays as it
            was. Without it the first such part is an error.
        max_count: samples of one class that one part may hold. Without it bytes hold at most 10⁹.
        max_clients: clients that one part may be of. Without it bytes are of one client, and statistics of any number;
            a server of servers passes how many clients stand behind each.

    Returns:
        The sum.

    Raises:
        StatisticsError: a part does not fit and ``refused`` is not given, or there is none.

    Example:
        >>> import torch
        >>> import ccvr
        >>> part = ccvr.statistics_of(torch.eye(3), torch.tensor([0, 0, 1]))
        >>> ccvr.merge([part, part.to_bytes()], max_count=100).count
        tensor([4, 2])
    """
    total: ClassStatistics | None = None
    for part in parts:
        try:
            statistics = _read(part, total, like)
            most = 1 if max_clients is None and statistics is not part else max_clients
            require_claims(statistics.count, statistics.clients, max_count, most)
            if total is None:
                total = statistics.copy() if statistics is part else statistics
            else:
                total.add_(statistics)
        except StatisticsError as error:
            if refused is None:
                raise
            refused(error)
    if total is None:
        raise StatisticsError("there are no statistics to merge. Collect them from at least one client.")
    return total


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
