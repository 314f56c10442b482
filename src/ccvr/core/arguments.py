"""Checks of arguments: what was given, and what to give, in one line."""

import math
from typing import Any

from ccvr.core.errors import UsageError, printable

MAX_SEED = 2**63 - 1


def shown(value: object) -> str:
    """A value for a message, in a few letters."""
    return printable(repr(value), 60)


def require_whole(name: str, value: object, least: int, most: int) -> None:
    """Refuse what is no whole number from ``least`` to ``most``.

    Raises:
        UsageError: which argument it is, and its value.

    Example:
        >>> require_whole("num_classes", 10, 1, 100)
    """
    if type(value) is not int or not least <= value <= most:
        raise UsageError(f"{name} is {shown(value)}; give a whole number from {least:,} to {most:,}.")


def require_positive(name: str, value: Any) -> None:
    """Refuse what is no finite number above 0."""
    if type(value) not in (int, float) or not 0 < value < math.inf:
        raise UsageError(f"{name} is {shown(value)}; give a finite number above 0.")


def require_seed(value: object) -> None:
    """Refuse what is no seed."""
    require_whole("seed", value, 0, MAX_SEED)


def require_type(name: str, value: object, kind: Any, words: str) -> None:
    """Refuse a value of another type than ``kind``; ``words`` say what to give."""
    if not isinstance(value, kind):
        raise UsageError(f"{name} is {shown(value)}; give {words}.")


def require_iterable(name: str, value: object, words: str) -> None:
    """Refuse what nobody can iterate over, before it is tried: a caller's iterable may fail by itself."""
    if isinstance(value, str | bytes) or not any(hasattr(type(value), how) for how in ("__iter__", "__getitem__")):
        raise UsageError(f"{name} is {shown(value)}; give {words}.")
