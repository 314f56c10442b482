"""Errors found in public implementations of CCVR: the wrong formula beside ours, on a case where they differ."""

import numpy as np
import pytest
import torch
from torch import nn

from ccvr.calibration.calibrator import Descent
from ccvr.calibration.methods import parse_calibration
from ccvr.calibration.retrain import retrain
from ccvr.calibration.sampling import draw
from ccvr.calibration.table import CALIBRATORS
from ccvr.core.errors import StatisticsError
from ccvr.data.augment import ShiftAndMirror
from ccvr.data.batches import TrainingSamples, epoch, in_order
from ccvr.data.samples import Samples
from ccvr.models.heads import LinearHead
from ccvr.models.preprocess import Normalize
from ccvr.models.random_features import RandomFeatures
from ccvr.models.split import SplitModel, split_model
from ccvr.statistics.collect import collect, random_features, statistics_of
from ccvr.statistics.gaussians import ClassGaussians
from ccvr.statistics.merge import merge
from ccvr.statistics.moments import ClassStatistics
from ccvr.statistics.source import Source

D = 4


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def small_clients(num_clients: int = 60, each: int = 5, seed: int = 0) -> list[np.ndarray]:
    """Many clients with few samples of the one class, whose means differ as much as their samples."""
    rng = np.random.default_rng(seed)
    mixing = rng.standard_normal((D, D))
    return [3 + rng.standard_normal(D) + rng.standard_normal((each, D)) @ mixing for _ in range(num_clients)]


def gaussians(parts: list[np.ndarray]) -> ClassGaussians:
    """Ours, by both ways, which agree."""
    statistics = [statistics_of(torch.from_numpy(z), torch.zeros(len(z), dtype=torch.int64), 1) for z in parts]
    ours = merge(statistics).gaussians()
    literal = ClassGaussians.merge([client.gaussians() for client in statistics])
    torch.testing.assert_close(ours.cov, literal.cov, rtol=1e-10, atol=1e-10)
    return ours


def merge_as_sent(counts: list[int], means: list[np.ndarray], covs: list[np.ndarray]) -> np.ndarray:
    """Eq. 4 with whatever was sent."""
    n = sum(counts)
    mu = sum(c * m for c, m in zip(counts, means, strict=True)) / n
    cov = sum((c - 1) * s + c * np.outer(m, m) for c, m, s in zip(counts, means, covs, strict=True))
    return (cov - n * np.outer(mu, mu)) / (n - 1)


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def test_1_client_covariances_with_1_over_n_merged_with_n_minus_1_weights():
    parts = small_clients()
    pooled = np.cov(np.concatenate(parts), rowvar=False)
    counts, means = [len(z) for z in parts], [z.mean(0) for z in parts]
    wrong = merge_as_sent(counts, means, [np.cov(z, rowvar=False, bias=True) for z in parts])
    assert np.trace(wrong) < 0.95 * np.trace(pooled), "the scatter within clients falls short by a fifth at n = 5"
    assert relative(merge_as_sent(counts, means, [np.cov(z, rowvar=False) for z in parts]), pooled) < 1e-10
    assert relative(gaussians(parts).cov[0].numpy(), pooled) < 1e-10


def test_2_covariances_looked_up_by_client_id_in_a_positional_list():
    """Clients 2, 0 and 1 replied in that order; the sender's id is not its place in the list."""
    rng = np.random.default_rng(1)
    by_id = {k: rng.standard_normal((n, D)) * scale for k, n, scale in ((0, 5, 1.0), (1, 50, 3.0), (2, 200, 9.0))}
    arrived = [2, 0, 1]
    pooled = np.cov(np.concatenate(list(by_id.values())), rowvar=False)
    covs = [np.cov(by_id[k], rowvar=False) for k in arrived]
    counts, means = [len(by_id[k]) for k in arrived], [by_id[k].mean(0) for k in arrived]
    wrong = merge_as_sent(counts, means, [covs[k] for k in arrived])
    assert relative(wrong, pooled) > 0.5
    assert relative(merge_as_sent(counts, means, covs), pooled) < 1e-10
    for order in ([2, 0, 1], [0, 1, 2], [1, 2, 0]):
        assert relative(gaussians([by_id[k] for k in order]).cov[0].numpy(), pooled) < 1e-10


def test_3_the_outer_product_of_two_means_as_a_scalar():
    """``mu @ mu.T`` of a 1-D array is the inner product, and broadcasting hides it."""
    parts = small_clients()
    z = np.concatenate(parts)
    pooled, n, mu = np.cov(z, rowvar=False), len(z), z.mean(0)
    wrong = (z.T @ z - n * (mu @ mu.T)) / (n - 1)
    assert wrong.shape == pooled.shape, "nothing would have complained"
    assert relative(wrong, pooled) > 0.5
    assert relative(gaussians(parts).cov[0].numpy(), pooled) < 1e-10


def test_4_a_class_s_features_not_reset_between_classes():
    rng = np.random.default_rng(2)
    y = np.repeat([0, 1, 2], 40)
    z = 5 * y[:, None] + rng.standard_normal((120, D))
    kept: list[np.ndarray] = []
    wrong = []
    for label in range(3):
        kept.extend(z[y == label])  # the list should have been emptied first
        wrong.append(np.mean(kept, axis=0))
    ours = statistics_of(torch.from_numpy(z), torch.from_numpy(y), 3).gaussians()
    for label in range(3):
        rows = z[y == label]
        np.testing.assert_allclose(ours.mean[label], rows.mean(0), rtol=1e-12)
        np.testing.assert_allclose(ours.cov[label], np.cov(rows, rowvar=False), rtol=1e-9, atol=1e-10)
        assert bool(np.abs(wrong[label] - rows.mean(0)).max() > 1) is (label > 0)


def test_5_n_over_n_minus_1_without_its_brackets():
    parts = small_clients(num_clients=2)
    z = np.concatenate(parts)
    pooled, n, mu = np.cov(z, rowvar=False), len(z), z.mean(0)
    wrong = z.T @ z / (n - 1) - (n / n - 1) * np.outer(mu, mu)
    right = z.T @ z / (n - 1) - n / (n - 1) * np.outer(mu, mu)
    assert relative(wrong, pooled) > 0.5
    assert relative(right, pooled) < 1e-10
    assert relative(gaussians(parts).cov[0].numpy(), pooled) < 1e-10


@pytest.mark.filterwarnings("ignore:.*(empty slice|invalid value|divide by zero|Degrees of freedom).*:RuntimeWarning")
def test_6_absent_class_one_sample_and_singular_covariance():
    """Class 0 is absent, class 1 has one sample, class 2 three samples of four features."""
    rng = np.random.default_rng(3)
    z, y = rng.standard_normal((4, D)), np.array([1, 2, 2, 2])
    assert np.isnan(z[y == 0].mean(0)).all(), "absent: the plain mean is no number"
    assert np.isnan(np.cov(z[y == 1], rowvar=False)).all(), "one sample: the plain covariance is no number"
    with pytest.raises(np.linalg.LinAlgError):  # singular: rounding decides, and it may fall on the wrong side of 0
        np.linalg.cholesky(np.cov(z[y == 2], rowvar=False) - 1e-12 * np.eye(D))
    ours = statistics_of(torch.from_numpy(z), torch.from_numpy(y), 3)
    drawn, labels = draw(ours, [10, 10, 10], rng=seeded())
    assert drawn.isfinite().all()
    assert torch.bincount(labels, minlength=3).tolist() == [0, 10, 10]
    assert torch.equal(drawn[labels == 1], torch.from_numpy(z[:1]).float().expand(10, D))
    centred = drawn[labels == 2].double().numpy() - z[y == 2].mean(0)
    assert (np.linalg.svd(centred, compute_uv=False)[2:] < 1e-6).all(), "no jitter: the draws fill two directions"
    jittered = np.linalg.cholesky(np.cov(z[y == 2], rowvar=False) + 1e-3 * np.eye(D))
    silent = rng.standard_normal((10, D)) @ jittered.T
    assert np.linalg.svd(silent, compute_uv=False)[2] > 0.01, "jitter would have invented a spread"


def network() -> SplitModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        body = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 2))
    return split_model(body, Normalize([0.5], [0.25]), torch.zeros(2, 1, 8, 8, dtype=torch.uint8))


def test_7_features_in_train_mode_with_augmentation_or_of_a_local_model():
    rng = np.random.default_rng(4)
    pixels = torch.from_numpy(rng.integers(0, 256, (40, 1, 8, 8), dtype=np.uint8))
    images = Samples(pixels, torch.arange(40) % 2)
    model = network().train()
    ours = collect(model, in_order(images), num_classes=2)

    with torch.no_grad():
        right = statistics_of(network().eval().features(pixels), images.labels, 2)
        in_train_mode = statistics_of(network().train().features(pixels), images.labels, 2)
    augmented = next(iter(epoch(TrainingSamples.prepare(images, ShiftAndMirror()), np.arange(40), 40, rng=rng)))
    with torch.no_grad():
        moved = statistics_of(network().eval().features(augmented[0]), augmented[1], 2)

    def distance(other: ClassStatistics) -> float:
        return float((ours.second - other.second).abs().max() / ours.second.abs().max())

    assert distance(right) < 1e-6
    assert distance(in_train_mode) > 0.01
    assert distance(moved) > 0.01
    local = network()
    with torch.no_grad():
        next(local.backbone.parameters()).mul_(1.01)  # one client's own training
    with pytest.raises(StatisticsError, match=r"^statistics with model .* do not add up"):
        ours + collect(local, in_order(images), num_classes=2)


def statistics_for(kind: str, z: torch.Tensor, y: torch.Tensor) -> ClassStatistics:
    if kind != "kernel":
        return statistics_of(z, y, 2, kind=kind)
    projection = random_features(statistics_of(z, y, 2, kind="diagonal"), num_features=20)
    source = Source(projection=projection.digest)
    phi = RandomFeatures.of(projection)(z)
    return statistics_of(phi, y, 2, kind=kind, source=source, projection=projection)


@pytest.mark.parametrize("name", CALIBRATORS)
def test_8_the_calibrated_head_is_an_object_to_keep_and_the_old_one_stays(name):
    rng = np.random.default_rng(5)
    y = torch.arange(60) % 2
    z = torch.from_numpy(rng.standard_normal((60, 108))).float() + 3 * y.unsqueeze(1)

    model = network()
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    options = {"num_virtual": 30, "epochs": 2, "iterations": 10, "per_class": 20}
    method = parse_calibration(name, options).method
    given = (z, y) if method.raw else statistics_for(method.kinds[0], z, y)
    calibrated = model.with_head(method.fit(model.head, given, rng=seeded()))
    after = calibrated.state_dict()
    assert not torch.equal(after["head.weight"], before["head.weight"]), "what is saved is the new head"
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())
    assert all(torch.equal(after[key], before[key]) for key in before if not key.startswith("head."))
    assert calibrated.digest() == model.digest()


def test_8_retraining_in_place_is_on_a_copy_of_the_caller_s():
    head = LinearHead(torch.zeros(2, 3), torch.zeros(2))
    copied = LinearHead(head.weight, head.bias)
    retrain(copied, torch.eye(3)[:2], torch.tensor([0, 1]), Descent(), rng=seeded())
    assert not head.weight.any()
    assert copied.weight.any()


def test_9_variance_where_a_standard_deviation_belongs():
    sd = torch.tensor([0.5, 2.0, 5.0], dtype=torch.float64)
    # Eight samples with mean 0 and covariance diag(sd²).
    signs = torch.tensor([[1, 1, 1], [-1, 1, -1], [1, -1, -1], [-1, -1, 1]], dtype=torch.float64)
    z = torch.cat([signs, -signs]) * sd * np.sqrt(7 / 8)
    one = statistics_of(z, torch.zeros(8, dtype=torch.int64), 1)
    torch.testing.assert_close(one.covariance(0), torch.diag(sd**2))
    n = 20_000
    drawn = draw(one, [n], rng=seeded())[0].double()
    wrong = torch.randn(n, 3, dtype=torch.float64, generator=seeded()) * sd**2
    error = 5 * sd / np.sqrt(2 * n)  # five standard errors of a standard deviation
    assert ((drawn.std(0) - sd).abs() < error).all()
    assert ((wrong.std(0) - sd).abs() > 10 * error).all()
