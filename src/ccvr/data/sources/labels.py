"""Labels against what the authors of a data set publish about them."""

import numpy as np

from ccvr.core.arrays import IntArray
from ccvr.data.sources.source import Place


def check_range(labels: IntArray, num_classes: int, place: Place, member: str = "") -> None:
    """Refuse a label that is no class."""
    wrong = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if wrong.size:
        fact = f"has label {labels[wrong[0]]} at image {wrong[0]}, expected 0 to {num_classes - 1}"
        raise place.damaged(fact, member)


def check_census(labels: IntArray, expected: tuple[int, ...], place: Place, part: str) -> None:
    """Refuse labels whose class counts are not the published ones: damaged, or those of another data set."""
    counts = np.bincount(labels, minlength=len(expected))
    for label, (found, wanted) in enumerate(zip(counts, expected, strict=True)):
        if found != wanted:
            fact = f"has {found} {part} images of class {label}, expected {wanted}; it is damaged or not {place.name}"
            raise place.damaged(fact)
