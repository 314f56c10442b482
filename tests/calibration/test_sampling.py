"""Virtual features: Gaussians merged as in the paper, drawn exactly, and continuous in what they are drawn from."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ccvr.calibration.sampling import allocate, draw, symmetric_root
from ccvr.calibration.shrinkage import Shrinkage
from ccvr.core.errors import CalibrationError, CcvrError
from ccvr.statistics.collect import statistics_of
from ccvr.statistics.gaussians import ClassGaussians
from ccvr.statistics.moments import ClassStatistics
from ccvr.statistics.source import Source

laws = settings(deadline=None)
C = 4


@st.composite
def clients(any_of: st.DrawFn) -> list[tuple[np.ndarray, np.ndarray]]:
    """Features and labels of each client; any of them may lack any class, or have one sample of it."""
    d, num_clients = any_of(st.integers(1, 5)), any_of(st.integers(1, 6))
    counts = any_of(st.lists(st.tuples(*[st.integers(0, 5)] * C), min_size=num_clients, max_size=num_clients))
    rng = np.random.default_rng(any_of(st.integers(0, 2**32 - 1)))
    mean = rng.uniform(-30, 30, (C, d))
    labels = [np.repeat(np.arange(C), count) for count in counts]
    return [(mean[y] + rng.standard_normal((len(y), d)), y) for y in labels]


def statistics(z: np.ndarray, y: np.ndarray) -> ClassStatistics:
    return statistics_of(torch.from_numpy(z), torch.from_numpy(y), C)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def equation_4(parts: list[tuple[np.ndarray, np.ndarray]], label: int) -> tuple[np.ndarray, np.ndarray]:
    """mu_c and Sigma_c of Luo et al. 2021, Eq. 2 to 4, term by term; defined for N_c of at least 2."""
    own = [z[y == label] for z, y in parts]
    own = [rows for rows in own if len(rows)]
    n_c = sum(map(len, own))
    mu = sum(len(rows) / n_c * rows.mean(0) for rows in own)
    sigma = -n_c / (n_c - 1) * np.outer(mu, mu)
    for rows in own:
        n, mu_k = len(rows), rows.mean(0)
        sigma_k = sum(np.outer(row - mu_k, row - mu_k) for row in rows) / (n - 1) if n > 1 else 0.0
        sigma = sigma + (n - 1) / (n_c - 1) * sigma_k + n / (n_c - 1) * np.outer(mu_k, mu_k)
    return mu, sigma


@laws
@given(clients())
def test_from_sums_from_the_paper_s_merge_and_pooled_are_one(parts):
    z, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    from_sums = statistics(z, y).gaussians()
    merged = ClassGaussians.merge([statistics(*part).gaussians() for part in parts])
    for label in range(C):
        rows = z[y == label]
        for found in (from_sums, merged):
            assert found.count[label] == len(rows)
            if len(rows) > 0:
                np.testing.assert_allclose(found.mean[label], rows.mean(0), rtol=1e-12, atol=1e-12)
            if len(rows) > 1:
                mu, sigma = equation_4(parts, label)
                np.testing.assert_allclose(found.mean[label], mu, rtol=1e-12, atol=1e-12)
                np.testing.assert_allclose(found.cov[label], sigma, rtol=1e-10, atol=1e-10)
                pooled = np.cov(rows, rowvar=False).reshape(sigma.shape)
                np.testing.assert_allclose(found.cov[label], pooled, rtol=1e-10, atol=1e-10)
            else:
                assert not found.cov[label].any()


def test_a_class_that_nobody_has_and_a_class_with_one_sample():
    found = statistics(np.array([[3.0, -4.0]]), np.array([2])).gaussians()
    assert found.count.tolist() == [0, 0, 1, 0]
    assert found.mean.tolist() == [[0, 0], [0, 0], [3, -4], [0, 0]]
    assert not found.cov.any()


# --- drawing --------------------------------------------------------------------------------------------------------


def gaussian(mean: Tensor, cov: Tensor, count: int = 100) -> ClassStatistics:
    """One class alone: the sums of samples that have this mean and covariance."""
    mean, one = mean.double(), torch.tensor([count])
    second = (count - 1) * cov.double() + count * torch.outer(mean, mean)
    total = count * mean.unsqueeze(0)
    sums = (one, total, second.unsqueeze(0), torch.tensor([1]), torch.tensor(0))
    return ClassStatistics.of_sums("full", Source(), *sums)


def root_of(cov: Tensor, rank: int | None = None) -> Tensor:
    """The symmetric root itself, of the two factors that are kept."""
    vectors, scales = symmetric_root(cov, rank=rank)
    return (vectors * scales) @ vectors.T


def random_covariance(d: int, rank: int, seed: int = 0) -> Tensor:
    factor = torch.randn(d, rank, dtype=torch.float64, generator=seeded(seed))
    return factor @ factor.T


def test_draws_have_the_mean_and_covariance_of_the_gaussian():
    d, n = 6, 40_000
    mean, cov = 5 * torch.randn(d, dtype=torch.float64, generator=seeded(1)), random_covariance(d, d, seed=2)
    z, y = draw(gaussian(mean, cov), [n], rng=seeded(3))
    assert (z.shape, z.dtype, y.tolist()) == ((n, d), torch.float32, [0] * n)
    drawn = z.double()
    # Standard errors: √(Σ_ii / n) of a mean, √((Σ_ii Σ_jj + Σ_ij²) / n) of a covariance; 5 of them on 42 numbers.
    assert ((drawn.mean(0) - mean).abs() <= 5 * (cov.diag() / n).sqrt()).all()
    error = ((torch.outer(cov.diag(), cov.diag()) + cov**2) / n).sqrt()
    assert ((drawn.T.cov() - cov).abs() <= 5 * error).all()
    # Draws are independent: neighbours do not correlate, up to 5 / √n.
    white = (drawn - mean) @ torch.linalg.inv(root_of(cov))
    assert (white[1:].T @ white[:-1] / n).abs().max() < 5 / math.sqrt(n)


@given(st.integers(1, 8), st.integers(0, 8), st.integers(0, 2**31))
@laws
def test_draws_of_a_singular_gaussian_stay_in_its_span(d, rank, seed):
    cov, mean = random_covariance(d, min(rank, d), seed), torch.randn(d, generator=seeded(seed))
    z, _ = draw(gaussian(mean, cov), [50], rng=seeded(seed))
    values, vectors = torch.linalg.eigh(cov)
    scale = float(values.max().sqrt()) + float(mean.abs().max()) + 1
    outside = vectors[:, : d - min(rank, d)]  # where the Gaussian has no spread
    distance = ((z.double() - mean.double()) @ outside).abs()
    assert distance.numel() == 0 or distance.max() <= 1e-6 * scale


def test_fewer_samples_than_features():
    rng = np.random.default_rng(0)
    z = rng.standard_normal((6, 40))
    found = statistics(z, np.zeros(6, np.int64))
    drawn, _ = draw(found, [300, 0, 0, 0], rng=seeded())
    basis = np.linalg.qr((z - z.mean(0)).T)[0][:, :5]  # the five directions in which six samples differ
    centred = drawn.numpy() - z.mean(0)
    assert np.abs(centred - centred @ basis @ basis.T).max() < 1e-6
    assert np.linalg.matrix_rank(centred, tol=1e-3) == 5, "and they fill it"


def test_a_class_with_one_sample_draws_its_mean_exactly():
    one = statistics(np.array([[0.1, -7.3, 1e4]]), np.array([1]))
    z, y = draw(one, [9, 9, 9, 9], rng=seeded())
    assert y.tolist() == [1] * 9
    assert torch.equal(z, torch.tensor([[0.1, -7.3, 1e4]]).expand(9, 3))


def test_a_class_that_nobody_has_draws_nothing_and_the_others_what_was_asked():
    z = np.random.default_rng(0).standard_normal((20, 3))
    found = statistics(z, np.repeat([0, 3], 10))
    drawn, labels = draw(found, [4, 5, 6, 7], rng=seeded())
    assert torch.bincount(labels, minlength=C).tolist() == [4, 0, 0, 7]
    assert drawn.shape == (11, 3)


def test_the_same_seed_gives_the_same_bits():
    found = statistics(np.random.default_rng(0).standard_normal((30, 3)), np.repeat([0, 1, 2], 10))
    first, again, other = (draw(found, [5] * C, rng=seeded(seed))[0] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


# --- continuity -----------------------------------------------------------------------------------------------------


def noise(d: int) -> Tensor:
    return torch.randn(200, d, dtype=torch.float64, generator=seeded(9))


def eigenvector_root(cov: Tensor) -> Tensor:
    """What is not used: noise @ (V √Λ)ᵀ has the right covariance, but V turns freely where eigenvalues repeat."""
    values, vectors = torch.linalg.eigh(cov)
    return (vectors * values.clamp(min=0).sqrt()).T


def cholesky_root(cov: Tensor, jitter: float = 1e-20) -> Tensor:
    """What is not used: a singular covariance needs jitter, and then its factor jumps."""
    return torch.linalg.cholesky(cov + jitter * torch.eye(len(cov), dtype=cov.dtype)).T


@pytest.mark.parametrize("spectrum", [[2.0] * 6, [1.0, 1.0, 1.0, 4.0, 4.0, 9.0]], ids=["sphere", "pairs"])
def test_a_tiny_change_of_repeated_eigenvalues_changes_draws_by_a_tiny_amount(spectrum):
    d = len(spectrum)
    axes = torch.linalg.qr(torch.randn(d, d, dtype=torch.float64, generator=seeded(1)))[0]
    cov = (axes * torch.tensor(spectrum, dtype=torch.float64)) @ axes.T
    change = torch.randn(d, d, dtype=torch.float64, generator=seeded(2))
    nearby = cov + 1e-9 * (change + change.T)
    before, after = (draw(gaussian(torch.zeros(d), each), [200], rng=seeded(9))[0] for each in (cov, nearby))
    assert (before - after).abs().max() < 1e-6, "float32 rounding and no more"
    exact = noise(d) @ root_of(cov) - noise(d) @ root_of(nearby)
    assert exact.abs().max() < 1e-7
    wrong = noise(d) @ eigenvector_root(cov) - noise(d) @ eigenvector_root(nearby)
    assert wrong.abs().max() > 0.1, "the alternative jumps"


def test_a_tiny_change_of_a_singular_covariance_changes_draws_by_a_tiny_amount():
    cov = torch.tensor([[0.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    nearby = torch.tensor([[1e-18, 1e-9], [1e-9, 1.0]], dtype=torch.float64)
    before, after = (draw(gaussian(torch.zeros(2), each), [200], rng=seeded(9))[0] for each in (cov, nearby))
    assert (before - after).abs().max() < 1e-6
    with pytest.raises(RuntimeError):
        torch.linalg.cholesky(cov)
    wrong = noise(2) @ cholesky_root(cov) - noise(2) @ cholesky_root(nearby)
    assert wrong.abs().max() > 0.1, "the alternative jumps"


def test_rounding_on_the_wire_does_not_change_draws_visibly():
    rng = np.random.default_rng(0)
    z, y = rng.standard_normal((400, 12)), np.repeat(np.arange(C), 100)
    sent = statistics(z, y)
    noise = torch.rand(12, 12, dtype=torch.float64, generator=seeded(1))
    second = sent.second * (1 + 1e-9 * (noise + noise.T))
    shaken = ClassStatistics.of_sums("full", sent.source, sent.count, sent.total, second, sent.clients, sent.withheld)
    before, after = (draw(each, [50] * C, rng=seeded())[0] for each in (sent, shaken))
    assert (before - after).abs().max() < 1e-6


@given(st.integers(1, 8), st.integers(0, 8), st.integers(0, 2**31))
@laws
def test_the_symmetric_root(d, rank, seed):
    cov = random_covariance(d, min(rank, d), seed)
    root = root_of(cov)
    scale = cov.abs().max().clamp(min=1e-12)
    assert (root @ root - cov).abs().max() <= 1e-12 * scale
    assert (root - root.T).abs().max() <= 1e-12 * scale.sqrt()
    assert torch.linalg.eigvalsh(root).min() >= -1e-7 * scale.sqrt()


@settings(max_examples=30)
@given(st.integers(40, 60), st.integers(0, 5), st.integers(0, 3), st.integers(0, 2**31))
def test_the_root_of_a_matrix_of_known_low_rank_is_the_same_root(d, rank, slack, seed):
    """From a few products with random vectors; the rank may be less than what is known of it."""
    cov = random_covariance(d, rank, seed)
    vectors, _ = symmetric_root(cov, rank=rank + slack)
    assert vectors.shape[1] < d, "it was brought down"
    scale = cov.abs().max().clamp(min=1e-12).sqrt()
    assert (root_of(cov, rank=rank + slack) - root_of(cov)).abs().max() <= 1e-6 * scale


def test_rounding_below_zero_counts_as_no_spread():
    root = root_of(torch.diag(torch.tensor([-1e-14, 4.0], dtype=torch.float64)))
    assert root.tolist() == [[0, 0], [0, 2]]


def test_more_draws_than_memory_are_refused():
    with pytest.raises(CcvrError, match=r"the virtual features need .* GB of memory; .* Lower the option num_virtual"):
        draw(gaussian(torch.zeros(4), torch.eye(4)), [10**15], rng=torch.Generator())


# --- kinds and shrinkage ----------------------------------------------------------------------------------------------


def unequal(seed: int = 0, counts: tuple[int, ...] = (40, 1, 0, 9), d: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Features of four classes with spreads of their own; one is absent, one has a single sample."""
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(C), counts)
    return 4 * rng.standard_normal((C, d))[y] + (1 + y[:, None]) * rng.standard_normal((len(y), d)), y


def plain_root(cov: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(cov)
    return (vectors * np.sqrt(values.clip(min=0))) @ vectors.T


def plain_draws(means: dict[int, np.ndarray], covs: dict[int, np.ndarray], number: int) -> np.ndarray:
    """mu_c + noise Sigma_c^½, class after class, from the noise of seed 7."""
    rng, rows = seeded(7), []
    for label, mean in means.items():
        noise = torch.randn(number, len(mean), dtype=torch.float64, generator=rng).numpy()
        rows.append(mean + noise @ plain_root(covs[label]))
    return np.concatenate(rows)


def pooled_covariance(z: np.ndarray, y: np.ndarray) -> np.ndarray:
    centred = np.concatenate([z[y == label] - z[y == label].mean(0) for label in np.unique(y)])
    return centred.T @ centred / (len(y) - len(np.unique(y)))


def own_covariance(z: np.ndarray) -> np.ndarray:
    return np.cov(z, rowvar=False) if len(z) > 1 else np.zeros((z.shape[1],) * 2)


def plain_oas(cov: np.ndarray, n: int) -> np.ndarray:
    d, trace, squares = len(cov), np.trace(cov), np.trace(cov @ cov)
    below = (n + 1 - 2 / d) * (squares - trace**2 / d)
    rho = min(1.0, ((1 - 2 / d) * squares + trace**2) / below) if below > 0 else 1.0
    return (1 - rho) * cov + rho * trace / d * np.eye(d)


@pytest.mark.parametrize("kind", ["full", "pooled", "diagonal"])
@pytest.mark.parametrize("shrinkage", ["none", "fixed:0.3", "pooled:0.4", "oas"])
def test_draws_of_every_kind_with_every_shrinkage(kind, shrinkage):
    z, y = unequal()
    pooled, covs = pooled_covariance(z, y), {}
    if kind == "diagonal":
        pooled = np.diag(np.diag(pooled))
    for label in np.unique(y):
        rows = z[y == label]
        cov = pooled if kind == "pooled" else own_covariance(rows)
        cov = np.diag(np.diag(cov)) if kind == "diagonal" else cov
        freedom = len(y) - len(np.unique(y)) if kind == "pooled" else len(rows) - 1  # samples less means
        covs[label] = {
            "none": cov,
            "fixed:0.3": 0.7 * cov + 0.3 * np.trace(cov) / len(cov) * np.eye(len(cov)),
            "pooled:0.4": 0.6 * cov + 0.4 * pooled,
            "oas": plain_oas(cov, freedom),
        }[shrinkage]
    sums = statistics_of(torch.from_numpy(z), torch.from_numpy(y), C, kind=kind)
    drawn, labels = draw(sums, [30] * C, rng=seeded(7), shrinkage=Shrinkage.parse(shrinkage))
    assert labels.tolist() == np.repeat(np.unique(y), 30).tolist()
    expected = plain_draws({label: z[y == label].mean(0) for label in covs}, covs, 30)
    np.testing.assert_allclose(drawn, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["means", "kernel"])
def test_statistics_without_covariances_draw_nothing(kind):
    z, y = unequal()
    sums = statistics_of(torch.from_numpy(z), torch.from_numpy(y), C, kind=kind)
    with pytest.raises(CcvrError, match=f'^{kind} statistics hold no covariance of a class. Collect with kind="full"'):
        draw(sums, [3] * C, rng=seeded())


# --- how many ---------------------------------------------------------------------------------------------------------


def test_as_many_for_each_class():
    assert allocate(torch.tensor([5, 0, 1, 900]), 70, "uniform") == [70, 0, 70, 70]


def test_in_proportion_to_the_counts():
    assert allocate(torch.tensor([10, 0, 30, 60]), 100, "counts") == [30, 0, 90, 180]
    assert allocate(torch.tensor([1, 0, 0, 99_999]), 100, "counts") == [1, 0, 0, 200], "every class there has one"


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=20).filter(any), st.integers(1, 3000))
def test_allocation_by_counts_has_num_virtual_as_its_mean(counts, num_virtual):
    numbers = allocate(torch.tensor(counts), num_virtual, "counts")
    present = [number for number, count in zip(numbers, counts, strict=True) if count]
    assert all(number == 0 for number, count in zip(numbers, counts, strict=True) if not count)
    assert min(present) >= 1
    assert abs(sum(present) - num_virtual * len(present)) <= len(present), "up to rounding and the one that each has"
    ideal = [num_virtual * len(present) * count / sum(counts) for count in counts if count]
    assert all(abs(number - wish) <= 1 for number, wish in zip(present, ideal, strict=True))


@pytest.mark.parametrize("priors", ["uniform", "counts"])
@pytest.mark.parametrize("kind", ["full", "pooled", "diagonal"])
def test_no_samples_at_all(kind, priors):
    nobody = ClassStatistics.zeros(3, 2, kind=kind)
    with pytest.raises(CalibrationError) as refused:
        draw(nobody, allocate(nobody.count, 10, priors), rng=seeded())
    assert str(refused.value) == "the statistics hold no samples. Collect them from clients that have some."


@pytest.mark.parametrize("kind", ["full", "pooled", "diagonal"])
def test_matched_draws_have_the_very_moments_of_their_class(kind):
    rng = np.random.default_rng(5)
    y = np.repeat([0, 1, 2], 40)
    z = rng.standard_normal((120, 5)) @ rng.standard_normal((5, 9)) + rng.standard_normal((3, 9))[y]  # rank 5 of 9
    found = statistics_of(torch.from_numpy(z), torch.from_numpy(y), 3, kind=kind)
    drawn, labels = draw(found, [30, 30, 30], rng=torch.Generator().manual_seed(0), matched=True)
    plain, _ = draw(found, [30, 30, 30], rng=torch.Generator().manual_seed(0))
    for label in range(3):
        cov, rows = found.covariance(label).numpy(), drawn[labels == label].double().numpy()
        scale = np.abs(cov).max()
        np.testing.assert_allclose(rows.mean(0), found.mean[label], atol=1e-5)
        assert np.abs(np.cov(rows, rowvar=False) - cov).max() < 1e-5 * scale
        assert np.abs(np.cov(plain[labels == label].numpy(), rowvar=False) - cov).max() > 0.05 * scale


def test_too_few_draws_to_match_are_plain_ones():
    found = statistics_of(torch.randn(50, 6), torch.zeros(50, dtype=torch.int64), 1)
    few = [draw(found, [6], rng=torch.Generator().manual_seed(0), matched=matched)[0] for matched in (True, False)]
    assert torch.equal(*few)
    enough = [draw(found, [8], rng=torch.Generator().manual_seed(0), matched=matched)[0] for matched in (True, False)]
    assert not torch.equal(*enough)


def test_matched_draws_of_a_class_without_spread():
    one = statistics_of(torch.tensor([[3.0, -1.0]]), torch.tensor([0]), 1)
    drawn, _ = draw(one, [4], rng=torch.Generator().manual_seed(0), matched=True)
    assert torch.equal(drawn, torch.tensor([[3.0, -1.0]]).expand(4, 2))
