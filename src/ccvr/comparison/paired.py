"""Paired differences of two methods over seeds: an interval, a test, and a correction for many tests."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from scipy.special import stdtr, stdtrit

LEVEL = 0.05
"""Differences with a smaller corrected p are more than noise; intervals cover 1 − LEVEL."""


@dataclass(frozen=True)
class Paired:
    """The mean of n differences; with n > 1 its t interval and the p of the paired t test (two-sided)."""

    n: int
    mean: float
    low: float | None = None
    high: float | None = None
    p: float | None = None

    @classmethod
    def of(cls, differences: Sequence[float]) -> "Paired":
        """Mean ± t(1 − LEVEL/2, n − 1) s/√n, and p = 2 P(T < −|mean| √n/s); of one difference the mean alone."""
        n, middle = len(differences), mean(differences)
        if n < 2:
            return cls(n, middle)
        error = stdev(differences) / math.sqrt(n)
        half = float(stdtrit(n - 1, 1 - LEVEL / 2)) * error
        equal = 0.0 if middle else 1.0  # the limit
        p = 2 * float(stdtr(n - 1, -abs(middle) / error)) if error else equal
        return cls(n, middle, middle - half, middle + half, p)


def holm(p_values: Sequence[float]) -> list[float]:
    """Corrected p of m tests: the i-th smallest times m − i + 1, at least those before it, at most 1 (Holm 1979)."""
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = largest
    return corrected
