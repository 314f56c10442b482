"""What the machine has."""

import contextlib
import ctypes
import math
import os
from collections.abc import Iterator
from pathlib import Path

from ccvr.core.errors import CcvrError

CGROUPS, OURS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def cores() -> int:
    """Cores that this process may use: a container or `taskset` may give it fewer than there are."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([allowed, *_quotas()]))


def _quotas() -> Iterator[int]:
    """Cores that control groups allow: ours and those around it (version 2), or the container's (version 1)."""
    groups = [line.rstrip("\n").partition("::")[2] for line in _words(OURS, "\n") if line.startswith("0::")]
    around = [folder for group in groups for folder in (Path(group), *Path(group).parents)]
    for folder in [Path("/"), *around]:
        yield from _cores_of(_words(CGROUPS / folder.relative_to("/") / "cpu.max"))
    yield from _cores_of([word for name in ("quota", "period") for word in _words(CGROUPS / f"cpu/cpu.cfs_{name}_us")])


def _words(path: Path, separator: str | None = None) -> list[str]:
    try:
        return path.read_text().split(separator)
    except OSError:  # no such group, no such system
        return []


def _cores_of(words: list[str]) -> Iterator[int]:
    """Quota and period, if there is a quota."""
    if len(words) == 2 and words[0].isdecimal() and words[1].isdecimal():
        yield math.ceil(int(words[0]) / int(words[1]))


def memory() -> int | None:
    """Bytes of the machine's memory; None where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def require_memory(num_bytes: int, what: str, remedy: str) -> None:
    """Refuse what does not fit into memory: the system would kill the process without a message."""
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
