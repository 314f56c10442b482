"""Shrinkage: the formulas written plainly, and what every shrinkage keeps."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.covariance import shrunk_covariance

from ccvr.calibration.shrinkage import KINDS, Shrinkage, oas
from ccvr.core.errors import SpecError


def covariance(d: int, rank: int, seed: int) -> torch.Tensor:
    factor = np.random.default_rng(seed).standard_normal((d, rank)) * np.linspace(0.2, 3, rank)
    return torch.from_numpy(factor @ factor.T)


def plain_oas(cov: np.ndarray, n: int) -> float:
    """Chen et al. 2010, Eq. 23: traces of matrix products, as printed."""
    d = len(cov)
    above = (1 - 2 / d) * np.trace(cov @ cov) + np.trace(cov) ** 2
    below = (n + 1 - 2 / d) * (np.trace(cov @ cov) - np.trace(cov) ** 2 / d)
    return min(1.0, above / below)


dimensions, ranks, seeds = st.integers(2, 9), st.integers(1, 12), st.integers(0, 2**31)


@given(dimensions, ranks, seeds, st.integers(1, 10_000))
def test_oas_is_the_printed_formula(d, rank, seed, n):
    cov = covariance(d, rank, seed)
    assert oas(cov, n) == pytest.approx(plain_oas(cov.numpy(), n), rel=1e-9)
    shrunk = Shrinkage("oas")(cov, freedom=n)
    np.testing.assert_allclose(shrunk, shrunk_covariance(cov.numpy(), plain_oas(cov.numpy(), n)), rtol=1e-9)


def test_oas_keeps_the_two_over_d_that_some_libraries_drop():
    cov = torch.diag(torch.tensor([1.0, 2.0, 6.0], dtype=torch.float64))
    # tr S² = 41, tr² S = 81, d = 3, n = 10: (41/3 + 81) / ((11 − 2/3) (41 − 27)) = 94.667 / 144.667.
    assert oas(cov, 10) == pytest.approx(284 / 434)
    assert oas(cov, 10) != pytest.approx((41 + 81) / (11 * 14), rel=0.01)


@pytest.mark.parametrize("d", [1, 2, 5])
@pytest.mark.parametrize("scale", [0.0, 3.0])
def test_oas_of_a_sphere_or_of_nothing_is_whole(d, scale):
    cov = scale * torch.eye(d, dtype=torch.float64)
    assert oas(cov, 7) == 1.0
    assert torch.equal(Shrinkage("oas")(cov, freedom=7), cov)


@given(dimensions, st.integers(2, 9), seeds)
def test_more_samples_shrink_less(d, rank, seed):
    cov = covariance(d, rank, seed)
    amounts = [oas(cov, n) for n in (1, 10, 100, 10_000, 10_000_000)]
    assert amounts == sorted(amounts, reverse=True)
    assert amounts[-1] < 1e-3 * max(1, d / (float(cov.square().sum() / cov.trace() ** 2) * d - 1))


@given(dimensions, ranks, seeds, st.floats(0, 1), st.sampled_from(["fixed", "oas"]))
def test_shrinking_towards_the_sphere_keeps_the_trace_and_the_axes(d, rank, seed, amount, kind):
    cov = covariance(d, rank, seed)
    shrunk = Shrinkage(kind, amount)(cov, freedom=5)
    assert shrunk.trace().item() == pytest.approx(cov.trace().item())
    assert torch.equal(shrunk, shrunk.T) or (shrunk - shrunk.T).abs().max() < 1e-12 * shrunk.abs().max()
    before, after = torch.linalg.eigvalsh(cov), torch.linalg.eigvalsh(shrunk)
    assert after.min() >= before.min() - 1e-9 * before.max()
    assert after.max() <= before.max() + 1e-9 * before.max()
    assert torch.allclose(shrunk @ cov, cov @ shrunk, rtol=1e-8, atol=1e-8 * float(cov.abs().max()) ** 2)


@given(dimensions, ranks, seeds, st.floats(0, 1))
def test_the_other_formulas(d, rank, seed, amount):
    cov, pooled = covariance(d, rank, seed), covariance(d, d, seed + 1)
    fixed = Shrinkage("fixed", amount)(cov, freedom=5)
    np.testing.assert_allclose(fixed, shrunk_covariance(cov.numpy(), amount), rtol=1e-9, atol=1e-12)
    towards = Shrinkage("pooled", amount)(cov, freedom=5, pooled=pooled)
    np.testing.assert_allclose(towards, (1 - amount) * cov + amount * pooled, rtol=1e-12)
    assert torch.equal(Shrinkage()(cov, freedom=5), cov)


@given(st.sampled_from(KINDS), seeds)
def test_the_covariance_that_comes_in_is_left_as_it_is(kind, seed):
    cov = covariance(4, 4, seed)
    before = cov.clone()
    Shrinkage(kind, 0.5)(cov, freedom=3, pooled=torch.eye(4, dtype=torch.float64))
    assert torch.equal(cov, before)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("none", Shrinkage()),
        ("oas", Shrinkage("oas")),
        ("fixed", Shrinkage("fixed", 0.1)),
        ("fixed:0.25", Shrinkage("fixed", 0.25)),
        ("pooled:1", Shrinkage("pooled", 1.0)),
    ],
)
def test_text(text, expected):
    assert Shrinkage.parse(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("oa", 'no shrinkage "oa". Did you mean "oas"? Known: fixed, none, oas, pooled.'),
        ("", 'no shrinkage "". Known: fixed, none, oas, pooled.'),
        ("fixed:much", 'shrinkage "fixed:much" has the amount "much"; give a number: fixed:0.1.'),
        ("fixed:1.5", "the amount of shrinkage is 1.5; give a number from 0 to 1."),
        ("fixed:-1", "the amount of shrinkage is -1.0; give a number from 0 to 1."),
        ("fixed:nan", "the amount of shrinkage is nan; give a number from 0 to 1."),
    ],
)
def test_errors(text, message):
    with pytest.raises(SpecError) as refused:
        Shrinkage.parse(text)
    assert str(refused.value) == message
