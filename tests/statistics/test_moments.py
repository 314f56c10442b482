"""Class statistics are a commutative monoid, and any split of the samples adds up to the pooled statistics."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ccvr.core.errors import StatisticsError
from ccvr.models.random_features import Projection
from ccvr.statistics.accumulate import BLOCK, Accumulator
from ccvr.statistics.collect import statistics_of
from ccvr.statistics.kinds import KINDS
from ccvr.statistics.merge import merge
from ccvr.statistics.moments import ClassStatistics
from ccvr.statistics.source import Source

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
        a.shape == b.shape and (not a.numel() or (a - b).abs().max() <= tolerance * b.abs().max().clamp(min=1))
        for a, b in ((left.total, right.total), (left.second, right.second))
    )


def same_bits(left: ClassStatistics, right: ClassStatistics) -> bool:
    names = ("count", "total", "second", "clients", "withheld")
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
        np.testing.assert_allclose(found.second[label], outer, rtol=1e-12, atol=1e-10)


@laws
@given(split_samples())
def test_merged_covariance_is_the_pooled_one_of_numpy(samples):
    z, y, _ = samples
    merged = sum(of_clients(samples).values(), start=ClassStatistics.zeros(5, z.shape[1]))
    for label in range(5):
        rows = z[y == label].numpy()
        if len(rows) < 2:
            assert not merged.scatter(label).any()
            continue
        pooled = np.atleast_2d(np.cov(rows, rowvar=False))
        cov = merged.scatter(label).numpy() / (len(rows) - 1)
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
    assert np.abs(merged.scatter(0).numpy() / 4999 - pooled).max() <= 1e-10 * np.abs(pooled).max()


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
    whole = Accumulator(5)
    for rows, labels in zip(z.split(batch_size), y.split(batch_size), strict=True):
        whole.update(rows, labels)
    assert agree(whole.finish(), statistics_of(z, y, 5)) or not len(y)


def test_float32_features_are_summed_in_float64():
    z = 1000 + torch.rand(4096, 3, generator=torch.Generator().manual_seed(0))
    found = statistics_of(z, torch.zeros(4096, dtype=torch.int64), 1)
    exact = z.numpy().astype(np.float64)
    np.testing.assert_allclose(found.total[0], exact.sum(0), rtol=1e-14)
    np.testing.assert_allclose(found.second[0], exact.T @ exact, rtol=1e-14)
    in_float32 = (z.T @ z).double().numpy()
    assert not np.allclose(in_float32, exact.T @ exact, rtol=1e-12), "the test could not tell the two apart"


SOURCE = Source(model="a", head="fc", taps=("conv",), transform="none")


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (ClassStatistics.zeros(3, 2, kind="pooled", source=SOURCE), "kind 'full' and 'pooled'"),
        (ClassStatistics.zeros(3, 2, source=replace(SOURCE, model="b")), "model 'a' and 'b'"),
        (ClassStatistics.zeros(3, 2, source=replace(SOURCE, head="out")), "head 'fc' and 'out'"),
        (ClassStatistics.zeros(3, 2, source=replace(SOURCE, taps=())), "taps ('conv',) and ()"),
        (
            ClassStatistics.zeros(3, 2, source=replace(SOURCE, transform="tukey:0.5")),
            "transform 'none' and 'tukey:0.5'",
        ),
        (ClassStatistics.zeros(3, 2, source=replace(SOURCE, projection="c")), "projection '' and 'c'"),
        (ClassStatistics.zeros(4, 2, source=SOURCE), "num_classes 3 and 4"),
        (ClassStatistics.zeros(3, 1, source=SOURCE), "num_features 2 and 1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_statistics_that_differ_do_not_add_up(other, what):
    mine = statistics_of(torch.ones(4, 2), torch.tensor([0, 1, 1, 2]), 3, source=SOURCE)
    before = mine.copy()
    for add in (mine.__add__, mine.add_):
        with pytest.raises(StatisticsError) as refused:
            add(other)
        assert str(refused.value) == (
            f"statistics with {what} do not add up. Collect both in the same way from the same model."
        )
    assert same_bits(mine, before)


@pytest.mark.parametrize("label", [-1, 3])
def test_a_label_outside_the_classes_is_refused_and_nothing_is_added(label):
    statistics = Accumulator(3)
    statistics.update(torch.ones(1, 2), torch.tensor([0]))
    with pytest.raises(StatisticsError) as refused:
        statistics.update(torch.ones(2, 2), torch.tensor([1, label]))
    assert str(refused.value) == (
        f"label {label} is not one of 3 classes (0 to 2). Check the labels, or collect with more classes."
    )
    assert same_bits(statistics.finish(), statistics_of(torch.ones(1, 2), torch.tensor([0]), 3))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_features_that_are_not_finite_are_refused(bad):
    with pytest.raises(StatisticsError) as refused:
        statistics_of(torch.tensor([[1.0, 2.0], [bad, 0.0]]), torch.tensor([1, 1]), 3)
    message = "some features are not finite. Check the model: its training may have diverged."
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("z", "y"),
    [
        (torch.ones(3), torch.zeros(3, dtype=torch.int64)),
        (torch.ones(3, 2), torch.zeros(2, dtype=torch.int64)),
        (torch.ones(3, 2), torch.zeros(3)),
    ],
)
def test_features_and_labels_that_do_not_fit_are_refused(z, y):
    with pytest.raises(StatisticsError, match="features of shape"):
        statistics_of(z, y, 3)


# --- kinds ------------------------------------------------------------------------------------------------------------


def plain_scatter(z: np.ndarray, y: np.ndarray, label: int) -> np.ndarray:
    rows = z[y == label]
    return (rows - rows.mean(0)).T @ (rows - rows.mean(0)) if len(rows) else np.zeros((z.shape[1],) * 2)


@laws
@given(split_samples())
def test_smaller_kinds_are_parts_of_the_full_one(samples):
    z, y, _ = samples
    full = statistics_of(z, y, 5)
    for kind in ("pooled", "diagonal"):
        own = statistics_of(z, y, 5, kind=kind)
        assert agree(full.as_kind(kind), own)
        if len(y):
            expected = sum(plain_scatter(z.numpy(), y.numpy(), label) for label in range(5))
            expected = expected if kind == "pooled" else np.diag(np.diag(expected))
            np.testing.assert_allclose(own.pooled_scatter(), expected, rtol=1e-9, atol=1e-9)


@laws
@given(split_samples(), st.sampled_from(list(KINDS)))
def test_every_kind_merges_in_any_split(samples, kind):
    z, y, owners = samples
    parts = [statistics_of(z[owners == k], y[owners == k], 5, kind=kind) for k in range(8)]
    merged = merge(parts)
    backwards = merge(reversed(parts))
    assert agree(merged, backwards)
    assert torch.equal(merged.count, torch.bincount(y, minlength=5))
    present = [len(set(owners[y.numpy() == label])) for label in range(5)]
    assert merged.clients.tolist() == present
    if kind != "means":
        assert agree(merged, statistics_of(z, y, 5, kind=kind))


@laws
@given(split_samples())
def test_means_hold_the_scatter_of_the_clients_means(samples):
    z, y, owners = samples
    merged = merge(statistics_of(z[owners == k], y[owners == k], 5, kind="means") for k in range(8))
    for label in range(5):
        mine = [z.numpy()[(y.numpy() == label) & (owners == k)] for k in range(8)]
        mine = [rows for rows in mine if len(rows)]
        expected = np.zeros((z.shape[1],) * 2)
        for rows in mine:
            away = rows.mean(0) - np.concatenate(mine).mean(0)
            expected += len(rows) * np.outer(away, away)
        np.testing.assert_allclose(merged.scatter(label), expected, rtol=1e-9, atol=1e-8)


@pytest.mark.parametrize(("kind", "asked"), [("pooled", "full"), ("diagonal", "pooled"), ("means", "diagonal")])
def test_what_is_not_there_cannot_be_had(kind, asked):
    with pytest.raises(StatisticsError) as refused:
        ClassStatistics.zeros(2, 2, kind=kind).as_kind(asked)
    assert str(refused.value) == f'these are {kind} statistics, not {asked}. Collect them with kind="{asked}".'


@pytest.mark.parametrize("kind", ["means", "kernel"])
def test_kinds_without_a_covariance_say_so(kind):
    with pytest.raises(
        StatisticsError, match=f'{kind} statistics hold no covariance of a class. Collect with kind="full"'
    ):
        ClassStatistics.zeros(2, 2, kind=kind).gaussians()


def test_gaussians_of_each_kind():
    rng = np.random.default_rng(0)
    z, y = rng.standard_normal((60, 3)) @ rng.standard_normal((3, 3)), np.repeat([0, 1], 30)
    covs = np.stack([np.cov(z[y == label], rowvar=False) for label in (0, 1)])
    expected = {"full": covs, "pooled": np.stack([covs.mean(0)] * 2), "diagonal": covs * np.eye(3)}
    for kind, cov in expected.items():
        found = statistics_of(torch.from_numpy(z), torch.from_numpy(y), 2, kind=kind).gaussians()
        assert found.count.tolist() == [30, 30]
        np.testing.assert_allclose(found.mean, np.stack([z[y == label].mean(0) for label in (0, 1)]), rtol=1e-12)
        np.testing.assert_allclose(found.cov, cov, rtol=1e-9, atol=1e-10)


# --- withholding ------------------------------------------------------------------------------------------------------


@laws
@given(split_samples(), st.integers(0, 12), st.sampled_from(list(KINDS)))
def test_small_classes_are_withheld_as_if_they_were_not_there(samples, min_count, kind):
    z, y, _ = samples
    counts = torch.bincount(y, minlength=5)
    sent = counts[y] >= min_count
    found = statistics_of(z, y, 5, kind=kind, min_count=min_count)
    assert agree(found, statistics_of(z[sent], y[sent], 5, kind=kind))
    assert found.withheld == (~sent).sum()


def test_a_threshold_above_the_block_size_withholds_too():
    z, y = torch.randn(BLOCK + 10, 2), torch.zeros(BLOCK + 10, dtype=torch.int64)
    found = statistics_of(z, y, 1, kind="pooled", min_count=BLOCK + 11)
    assert not found.second.any()
    assert found.withheld == BLOCK + 10


def test_merging_says_how_much_was_withheld():
    y = torch.tensor([0] * 9 + [1] * 3)
    parts = [statistics_of(torch.randn(12, 2), y, 2, min_count=8) for _ in range(4)]
    merged = merge(parts)
    assert merged.withheld == 12
    assert str(merged) == "full statistics of 36 samples, 12 more withheld: 1 of 2 classes, 2 features, 52 bytes"


# --- merge ------------------------------------------------------------------------------------------------------------


def test_merge_folds_a_stream_and_leaves_its_parts_alone():
    parts = [statistics_of(torch.randn(5, 2), torch.tensor([0, 0, 1, 1, 1]), 2) for _ in range(3)]
    kept = [part.copy() for part in parts]
    merged = merge(iter(parts))
    assert same_bits(merged, parts[0] + parts[1] + parts[2])
    assert all(same_bits(part, copy) for part, copy in zip(parts, kept, strict=True))


def test_merge_of_nothing():
    with pytest.raises(StatisticsError, match="there are no statistics to merge"):
        merge([])


def test_a_refused_part_changes_nothing_that_was_merged():
    good = [statistics_of(torch.randn(5, 2), torch.tensor([0, 0, 1, 1, 1]), 2) for _ in range(2)]
    bad = [b"nonsense", ClassStatistics.zeros(3, 2), good[0].to_bytes()[:-4]]
    reasons: list[StatisticsError] = []
    merged = merge([bad[0], good[0], bad[1], good[1].to_bytes(dtype=torch.float64), bad[2]], refused=reasons.append)
    assert agree(merged, good[0] + good[1])
    assert len(reasons) == 3
    with pytest.raises(StatisticsError):
        merge([good[0], bad[1]])


def forged(model: str) -> bytes:
    return ClassStatistics.zeros(2, 2, source=Source(model=model)).to_bytes()


def test_a_hostile_first_client_shuts_nobody_out_where_the_server_knows_what_it_wants():
    good = [statistics_of(torch.randn(5, 2), torch.tensor([0, 0, 1, 1, 1]), 2, source=SOURCE) for _ in range(3)]
    blobs = [forged("evil"), *(part.to_bytes() for part in good)]
    reasons: list[StatisticsError] = []
    merged = merge(blobs, like=ClassStatistics.zeros(2, 2, source=SOURCE), refused=reasons.append)
    assert merged.count.tolist() == [6, 9]
    assert [str(reason).partition(" do not")[0] for reason in reasons] == ["statistics with model 'a' and 'evil'"]
    merge(blobs, refused=reasons.append)
    assert len(reasons) == 4, "without that knowledge the first one decides"


@pytest.mark.parametrize("part", [None, [1], "text"])
def test_a_part_that_is_no_statistics_is_refused(part):
    with pytest.raises(StatisticsError, match="Give statistics, or their bytes"):
        merge([part])


def test_bytes_of_any_kind_are_read():
    blob = statistics_of(torch.randn(5, 2), torch.tensor([0, 0, 1, 1, 1]), 2).to_bytes()
    assert merge([bytearray(blob), memoryview(blob)]).count.tolist() == [4, 6]


def test_a_client_s_means_take_no_square_of_memory():
    """1,000 classes of 3,000 features: 24 MB of sums; second moments of all classes would be 72 GB."""
    client = statistics_of(torch.randn(4, 3000), torch.tensor([1, 1, 7, 7]), 1000, kind="means")
    merged = merge([client, client.to_bytes(), client.to_bytes()])
    assert merged.clients[7] == 3
    assert len(merged.to_bytes()) == merged.num_bytes + 8 + int.from_bytes(merged.to_bytes()[:8], "little")


def test_a_forged_projection_is_refused_when_it_meets_the_true_one():
    mean, std = torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    true = Projection(mean, std, 3, 0.5, 7)
    source = replace(SOURCE, projection=true.digest)
    parts = [
        statistics_of(
            torch.randn(4, 3).cos(), torch.zeros(4).long(), 1, kind="kernel", source=source, projection=projection
        )
        for projection in (true, replace(true, mean=mean + 1))
    ]
    with pytest.raises(StatisticsError, match="different projections of the same name"):
        merge(part.to_bytes() for part in parts)
