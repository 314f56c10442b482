"""Paired differences against SciPy's own test, and Holm's correction against its definition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ccvr.comparison.paired import LEVEL, Paired, holm


@pytest.mark.parametrize("n", [3, 4, 5, 30])
def test_the_interval_and_the_p_are_those_of_the_paired_t_test(n: int) -> None:
    rng = np.random.default_rng(n)
    a, b = rng.normal(60, 2, n), rng.normal(61, 2, n)
    found, expected = Paired.of(list(b - a)), stats.ttest_rel(b, a)
    low, high = expected.confidence_interval(1 - LEVEL)
    assert (found.n, found.mean) == (n, pytest.approx(b.mean() - a.mean()))
    assert (found.low, found.high, found.p) == pytest.approx((low, high, expected.pvalue), rel=1e-9)


def test_one_difference_has_a_mean_alone() -> None:
    assert Paired.of([1.5]) == Paired(1, 1.5, None, None, None)


@pytest.mark.parametrize("differences", [[0.5], [0.0] * 3, [0.28, 0.28], [-0.5] * 3])
def test_equal_differences_say_nothing_about_noise(differences: list[float]) -> None:
    assert Paired.of(differences) == Paired(len(differences), pytest.approx(differences[0]))


def test_two_differences_have_an_interval_and_no_test() -> None:
    found = Paired.of([0.2, 0.4])
    assert found.p is None
    assert (found.low, found.high) == pytest.approx((0.3 - 12.7062 * 0.1, 0.3 + 12.7062 * 0.1), abs=1e-4)


def test_holm_on_an_example_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0.001, 0.5))
def test_holm_rejects_as_its_procedure_does(p_values: list[float], level: float) -> None:
    """Step down: reject the smallest as long as p ≤ level / (tests left); stop at the first that is larger."""
    rejected = set[int]()
    for rank, place in enumerate(np.argsort(p_values, kind="stable")):
        if p_values[place] * (len(p_values) - rank) > level:
            break
        rejected.add(int(place))
    corrected = holm(p_values)
    assert {place for place, p in enumerate(corrected) if p <= level} == rejected
    assert all(p <= new <= 1 for p, new in zip(p_values, corrected, strict=True))
