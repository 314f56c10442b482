"""What the machine has."""

import contextlib
import ctypes
import math
import os
from pathlib import Path

from ccvr.core.errors import CcvrError

QUOTA = Path("/sys/fs/cgroup/cpu.max")


def cores() -> int:
    """Cores that this process may use: a container or `taskset` may give it fewer than there are."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):  # no cgroup, or no quota
        quota, period = QUOTA.read_text().split()
        allowed = min(allowed, math.ceil(int(quota) / int(period)))
    return max(1, allowed)


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


def keep_freed_memory() -> None:
    """Let this process keep what it frees (up to 1 GB) for its next step, where the C library is glibc.

    By default glibc gives a step's tensors back to the system and asks for them again: up to a thousand page faults in
    each step of a small network.
    """
    trim_threshold, mmap_threshold = -1, -3  # mallopt's names for them
    with contextlib.suppress(OSError, AttributeError, TypeError):  # no glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(mmap_threshold, 2**25)  # the most that glibc takes
        mallopt(trim_threshold, 2**30)
