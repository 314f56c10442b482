"""All clients' statistics as one, folded as they come."""

from collections.abc import Callable, Iterable

from ccvr.core.errors import StatisticsError
from ccvr.models.settings import eager, settled
from ccvr.statistics.moments import ClassStatistics

Refusal = Callable[[StatisticsError], None]


@eager
def merge(
    parts: Iterable[ClassStatistics | bytes], *, like: ClassStatistics | None = None, refused: Refusal | None = None
) -> ClassStatistics:
    """All clients' statistics, folded one at a time; bytes are read as ``from_bytes`` reads them.

    Without ``refused`` the first part that does not fit is an error. With it, it is called with the error, the part is
    left out, and what was merged stays as it was. ``like``: the server's own statistics, say of one random batch;
    without them the first part says what the others must be, and a hostile first client shuts out everybody.
    """
    total: ClassStatistics | None = None
    for part in parts:
        try:
            statistics = _read(part, like if total is None else total)
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


@settled
def _read(part: object, like: ClassStatistics | None) -> ClassStatistics:
    """Statistics, or those in bytes, that are ``like`` others."""
    if isinstance(part, ClassStatistics):
        statistics = part
    elif isinstance(part, bytes | bytearray | memoryview):
        statistics = ClassStatistics.from_bytes(bytes(part), like=like)
    else:
        raise StatisticsError(f"a part is a {type(part).__name__}. Give statistics, or their bytes.")
    if like is not None:
        like.require_alike(statistics)
    return statistics
