"""The factor of a scatter is a function of the scatter alone, and gives it back."""

import numpy as np
import pytest
import torch
from torch import Tensor

from ccvr.statistics.collect import statistics_of
from ccvr.statistics.factor import factor_of_matrix, factor_of_rows
from ccvr.statistics.squares import Square, sum_of_products

SIZES = [(2, 5), (5, 9), (40, 100), (100, 40), (90, 200)]
SAMPLES = ["plain", "dead", "constant", "collinear", "repeated samples", "rectified", "sparse", "all"]


def features(which: str, n: int, d: int) -> Tensor:
    rng = np.random.default_rng(n)
    z = rng.standard_normal((n, d)) + 3
    if which in ("dead", "all"):
        z[:, [0, 2]] = 0
    if which in ("constant", "all"):
        z[:, 1] = 5.1
    if which in ("collinear", "all"):
        z[:, 4] = 2 * z[:, 3]
        z[:, -1] = z[:, 0] + z[:, 3]
    if which in ("repeated samples", "all"):
        z[1] = z[0]
        z[-1] = z[n // 2]
    if which in ("rectified", "sparse"):
        z = np.maximum(z - (3 if which == "rectified" else 4.8), 0)
    return torch.from_numpy(z)


def centred(z: Tensor) -> tuple[Tensor, int, Tensor]:
    """Rows, rank and scale of ``factor_of_rows``."""
    return z - z.mean(0), min(len(z) - 1, z.shape[1]), z.norm(dim=0)


def rotation(n: int) -> Tensor:
    """A random orthogonal U [n, n] that keeps the mean of samples."""
    rng = torch.Generator().manual_seed(7)
    ones = torch.ones(n, 1, dtype=torch.float64)
    noise = torch.randn(n, n - 1, dtype=torch.float64, generator=rng)
    basis = torch.linalg.qr(torch.cat([ones, noise], dim=1)).Q
    turn = torch.linalg.qr(torch.randn(n - 1, n - 1, dtype=torch.float64, generator=rng)).Q
    return basis @ torch.block_diag(torch.ones(1, 1, dtype=torch.float64), turn) @ basis.T


@pytest.mark.parametrize("which", SAMPLES)
@pytest.mark.parametrize(("n", "d"), SIZES)
def test_it_gives_the_scatter_back(which, n, d):
    rows, rank, scale = centred(features(which, n, d))
    factor = factor_of_rows(rows, rank, scale)
    assert factor.shape == (rank, d)
    assert torch.equal(factor, factor.triu())
    scatter = rows.T @ rows
    assert (factor.T @ factor - scatter).abs().max() <= 1e-12 * scatter.abs().max()


@pytest.mark.parametrize("which", SAMPLES)
@pytest.mark.parametrize(("n", "d"), SIZES)
def test_samples_of_equal_scatter_have_equal_factors(which, n, d):
    z = features(which, n, d)
    turned = rotation(n) @ z
    torch.testing.assert_close(turned.mean(0), z.mean(0), rtol=1e-9, atol=1e-9)
    factor, other = factor_of_rows(*centred(z)), factor_of_rows(*centred(turned))
    assert (factor - other).abs().max() <= 1e-8 * factor.abs().max()


def test_a_dead_feature_does_not_give_the_samples_away():
    """Their decomposition by QR is the samples themselves."""
    z = torch.tensor([[0.0, 1.0], [0.0, 2.0]], dtype=torch.float64)
    assert torch.linalg.qr(z, mode="r").R.abs().tolist() == z.tolist()
    factor = factor_of_rows(z, 2, z.norm(dim=0))
    torch.testing.assert_close(factor, torch.tensor([[0.0, 5.0**0.5], [0.0, 0.0]]).double())


@pytest.mark.parametrize("which", ["plain", "dead", "rectified", "repeated samples"])
def test_rows_and_matrix_have_the_same_factor(which):
    z = features(which, 100, 40)
    rows, rank, scale = centred(z)
    found = factor_of_matrix(rows.T @ rows, rank, scale.square())
    expected = factor_of_rows(rows, rank, scale)
    assert (found - expected).abs().max() <= 1e-8 * expected.abs().max()


@pytest.mark.parametrize("which", SAMPLES)
@pytest.mark.parametrize(("n", "d"), SIZES)
def test_a_matrix_has_a_factor_of_the_rank_that_was_asked_for(which, n, d):
    rows, rank, scale = centred(features(which, n, d))
    scatter = rows.T @ rows
    factor = factor_of_matrix(scatter, rank, scale.square())
    assert factor.shape == (rank, d)
    assert (factor.T @ factor - scatter).abs().max() <= 1e-10 * max(scatter.abs().max(), 1e-9)


def test_a_matrix_that_rounding_made_indefinite_has_one():
    rng = torch.Generator().manual_seed(0)
    thin = torch.randn(30, 20, generator=rng).double() @ torch.randn(20, 25, generator=rng).double()
    scatter = thin.T @ thin - 1e-13 * torch.eye(25, dtype=torch.float64)
    assert int(torch.linalg.cholesky_ex(scatter).info)
    factor = factor_of_matrix(scatter, 25, thin.square().sum(0))
    assert (factor.T @ factor - scatter).abs().max() <= 1e-11 * scatter.abs().max()


@pytest.mark.parametrize("width", [3, 700])
def test_products_are_symmetric_and_read_what_is_not_zero(width):
    rng = torch.Generator().manual_seed(0)
    rows = torch.randn(40, width, dtype=torch.float64, generator=rng)
    factor = torch.randn(min(width, 600), width, dtype=torch.float64, generator=rng).triu()
    found = sum_of_products(width, [rows], [factor])
    torch.testing.assert_close(found, rows.T @ rows + factor.T @ factor, rtol=1e-10, atol=1e-10)
    assert torch.equal(found, found.T)


def test_a_block_keeps_samples_as_rows_until_they_are_more_than_features():
    few = statistics_of(torch.randn(8, 9), torch.zeros(8).long(), 1)
    assert few.seconds.blocks[0].matrix is None
    both = few + few
    assert isinstance(both.seconds.blocks[0], Square)
    assert both.seconds.blocks[0].matrix is not None
    assert not both.seconds.blocks[0].rows


@pytest.mark.parametrize("kind", ["full", "pooled", "means"])
def test_sums_are_the_same_bits_in_any_order(kind):
    rng = np.random.default_rng(1)
    z, y = torch.from_numpy(rng.standard_normal((60, 30))), torch.arange(60) % 2
    parts = [statistics_of(rows, labels, 2, kind=kind) for rows, labels in zip(z.split(7), y.split(7), strict=True)]
    few = parts[:3]
    forwards, backwards = few[0] + few[1] + few[2], few[2] + (few[1] + few[0])
    assert forwards.to_bytes() == backwards.to_bytes()
    assert torch.equal(forwards.second, backwards.second)
    left, right = parts[0] + parts[1] + parts[2] + parts[3], parts[4] + parts[5] + parts[6] + parts[7]
    assert (left + right).to_bytes() == (right + left).to_bytes()
