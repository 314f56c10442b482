"""Paired differences of two methods over seeds: an interval, a test, and a correction for many tests."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from scipy.special import stdtr, stdtrit

LEVEL = 0.05
"""Differences with a smaller corrected p are more than noise; intervals cover 1 − LEVEL."""


MIN_SEEDS = 3
"""No test is made of two differences: accuracies are whole numbers of samples, so they are often equal by chance."""


@dataclass(frozen=True)
class Paired:
    """The mean of n differences, its t interval from two on, and from three on the p of the paired t test (two-sided).

    Neither is known where all differences are equal: their spread says nothing then.
    """

    n: int
    mean: float
    low: float | None = None
    high: float | None = None
    p: float | None = None

    @classmethod
    def of(cls, differences: Sequence[float]) -> "Paired":
        """Mean ± t(1 − LEVEL/2, n − 1) s/√n, and p = 2 P(T < −|mean| √n/s)."""
        n, middle = len(differences), mean(differences)
        error = stdev(differences) / math.sqrt(n) if n > 1 else 0.0
        if not error:
            return cls(n, middle)
        half = float(stdtrit(n - 1, 1 - LEVEL / 2)) * error
        p = 2 * float(stdtr(n - 1, -abs(middle) / error)) if n >= MIN_SEEDS else None
        return cls(n, middle, middle - half, middle + half, p)


def holm(p_values: Sequence[float]) -> list[float]:
    """Corrected p of m tests: the i-th smallest times m − i + 1, at least those before it, at most 1 (Holm 1979)."""
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = largest
    return corrected
