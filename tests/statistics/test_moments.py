"""Class statistics are a commutative monoid, and any split of the samples adds up to the pooled statistics."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ccvr.core.errors import StatisticsError
from ccvr.statistics.moments import ClassStatistics, statistics_of
from ccvr.statistics.wire import scatter

laws = settings(deadline=None)
Samples = tuple[Tensor, Tensor, np.ndarray]


@st.composite
def split_samples(draw: st.DrawFn) -> Samples:
    """Features [N, d], labels [N] and the owner of each sample: classes and clients may be empty or have one sample."""
    num_classes, d = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    labels = draw(st.lists(st.integers(0, num_classes - 1), max_size=60))
    owners = draw(st.lists(st.integers(0, 7), min_size=len(labels), max_size=len(labels)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    mean = rng.uniform(-30, 30, (num_classes, d))
    y = np.array(labels, dtype=np.int64)
    z = mean[y] + rng.standard_normal((len(y), d))
    return torch.from_numpy(z), torch.from_numpy(y), np.array(owners, dtype=np.int64)


def of_clients(samples: Samples, num_classes: int = 5) -> dict[int, ClassStatistics]:
    """Statistics by client id, of 8 clients whose ids are neither small nor in order; many have no samples at all."""
    z, y, owners = samples
    return {901 - 113 * k: statistics_of(z[owners == k], y[owners == k], num_classes) for k in range(8)}


def agree(left: ClassStatistics, right: ClassStatistics, tolerance: float = 1e-12) -> bool:
    return torch.equal(left.count, right.count) and all(
        (a - b).abs().max() <= tolerance * b.abs().max().clamp(min=1)
        for a, b in ((left.total, right.total), (left.outer, right.outer))
    )


def same_bits(left: ClassStatistics, right: ClassStatistics) -> bool:
    names = ("count", "total", "outer")
    return all(torch.equal(getattr(left, name), getattr(right, name)) for name in names)


@laws
@given(split_samples(), st.randoms(use_true_random=False))
def test_any_split_in_any_order_merges_to_the_pooled_statistics(samples, random):
    clients = list(of_clients(samples).values())
    random.shuffle(clients)
    merged = sum(clients, start=ClassStatistics.zeros(5, samples[0].shape[1]))
    assert agree(merged, statistics_of(*samples[:2], 5))


@laws
@given(split_samples())
def test_statistics_are_counts_sums_and_sums_of_outer_products(samples):
    z, y = samples[0].numpy(), samples[1].numpy()
    found = statistics_of(*samples[:2], 5)
    for label in range(5):
        rows = [z[i] for i in range(len(y)) if y[i] == label]
        assert found.count[label] == len(rows)
        np.testing.assert_allclose(found.total[label], sum(rows, np.zeros(z.shape[1])), rtol=1e-12, atol=1e-11)
        outer = sum((np.multiply.outer(row, row) for row in rows), np.zeros((z.shape[1],) * 2))
        np.testing.assert_allclose(found.outer[label], outer, rtol=1e-12, atol=1e-10)


@laws
@given(split_samples())
def test_merged_covariance_is_the_pooled_one_of_numpy(samples):
    z, y, _ = samples
    merged = sum(of_clients(samples).values(), start=ClassStatistics.zeros(5, z.shape[1]))
    for label in range(5):
        rows = z[y == label].numpy()
        if len(rows) < 2:
            assert not scatter(merged)[label].any()
            continue
        pooled = np.atleast_2d(np.cov(rows, rowvar=False))
        cov = scatter(merged)[label].numpy() / (len(rows) - 1)
        # A spread much below the features' own unit (two samples that nearly coincide) is not promised.
        assert np.abs(cov - pooled).max() <= 1e-10 * max(np.abs(pooled).max(), 0.1)


@pytest.mark.parametrize("num_clients", [1, 3, 100])
def test_covariance_of_features_thirty_deviations_from_zero(num_clients):
    rng = np.random.default_rng(3)
    mixing = rng.standard_normal((32, 32))
    z = rng.standard_normal((5000, 32)) @ mixing
    z += 30 * z.std(0) * rng.choice([-1, 1], 32)
    y, owners = torch.zeros(5000, dtype=torch.int64), rng.integers(0, num_clients, 5000)
    parts = [statistics_of(torch.from_numpy(z[owners == k]), y[owners == k], 1) for k in range(num_clients)]
    merged = sum(parts, start=ClassStatistics.zeros(1, 32))
    pooled = np.cov(z, rowvar=False)
    assert np.abs(scatter(merged)[0].numpy() / 4999 - pooled).max() <= 1e-10 * np.abs(pooled).max()


@laws
@given(split_samples())
def test_addition_commutes_and_has_zeros_as_identity(samples):
    z, y, owners = samples
    left, right = (statistics_of(z[part], y[part], 5) for part in (owners < 4, owners >= 4))
    zeros = ClassStatistics.zeros(5, z.shape[1])
    assert same_bits(left + right, right + left)
    assert same_bits(left + zeros, left)
    assert same_bits(zeros + left, left)


@laws
@given(split_samples())
def test_adding_in_place_equals_adding(samples):
    z, y, owners = samples
    left, right = (statistics_of(z[part], y[part], 5) for part in (owners < 4, owners >= 4))
    expected = left + right
    assert same_bits(left, statistics_of(z[owners < 4], y[owners < 4], 5)), "+ leaves its operands alone"
    left.add_(right)
    assert same_bits(left, expected)


@laws
@given(split_samples(), st.integers(1, 7))
def test_updates_batch_by_batch_equal_one_update(samples, batch_size):
    z, y, _ = samples
    whole = ClassStatistics.zeros(5, z.shape[1])
    for rows, labels in zip(z.split(batch_size), y.split(batch_size), strict=True):
        whole.update(rows, labels)
    assert agree(whole, statistics_of(z, y, 5))


def test_float32_features_are_summed_in_float64():
    z = 1000 + torch.rand(4096, 3, generator=torch.Generator().manual_seed(0))
    found = statistics_of(z, torch.zeros(4096, dtype=torch.int64), 1)
    exact = z.numpy().astype(np.float64)
    np.testing.assert_allclose(found.total[0], exact.sum(0), rtol=1e-14)
    np.testing.assert_allclose(found.outer[0], exact.T @ exact, rtol=1e-14)
    in_float32 = (z.T @ z).double().numpy()
    assert not np.allclose(in_float32, exact.T @ exact, rtol=1e-12), "the test could not tell the two apart"


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            ClassStatistics.zeros(3, 2, transform="tukey:0.5", digest="a"),
            "statistics with transform 'none' and 'tukey:0.5' do not add up. Collect both from the same model.",
        ),
        (
            ClassStatistics.zeros(3, 2, digest="b"),
            "statistics with digest 'a' and 'b' do not add up. Collect both from the same model.",
        ),
        (
            ClassStatistics.zeros(4, 2, digest="a"),
            "statistics with num_classes 3 and 4 do not add up. Collect both from the same model.",
        ),
        (
            ClassStatistics.zeros(3, 1, digest="a"),
            "statistics with num_features 2 and 1 do not add up. Collect both from the same model.",
        ),
    ],
)
def test_statistics_of_different_kinds_do_not_add_up(other, message):
    mine = ClassStatistics.zeros(3, 2, digest="a")
    for add in (mine.__add__, mine.add_):
        with pytest.raises(StatisticsError) as refused:
            add(other)
        assert str(refused.value) == message


@pytest.mark.parametrize("label", [-1, 3])
def test_a_label_outside_the_classes_is_refused_and_nothing_is_added(label):
    statistics = ClassStatistics.zeros(3, 2)
    with pytest.raises(StatisticsError) as refused:
        statistics.update(torch.ones(2, 2), torch.tensor([1, label]))
    assert str(refused.value) == (
        f"label {label} is not one of 3 classes (0 to 2). Check the labels, or collect with more classes."
    )
    assert same_bits(statistics, ClassStatistics.zeros(3, 2))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_features_that_are_not_finite_are_refused(bad):
    statistics = ClassStatistics.zeros(3, 2)
    with pytest.raises(StatisticsError) as refused:
        statistics.update(torch.tensor([[1.0, 2.0], [bad, 0.0]]), torch.tensor([1, 1]))
    message = "some features are not finite. Check the model: its training may have diverged."
    assert str(refused.value) == message
    assert same_bits(statistics, ClassStatistics.zeros(3, 2))
