"""What the machine can hold."""

import os

from ccvr.core.errors import CcvrError


def memory() -> int | None:
    """Bytes of the machine's memory; None where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def require_memory(num_bytes: int, what: str, remedy: str) -> None:
    """Refuse what cannot fit: a process that tries is killed, and its user is told nothing."""
    there = memory()
    if there is not None and num_bytes > there:
        need, have = f"{num_bytes / 1e9:,.1f} GB", f"{there / 1e9:,.1f} GB"
        raise CcvrError(f"the {what} need {need} of memory; this machine has {have}. {remedy}.")
