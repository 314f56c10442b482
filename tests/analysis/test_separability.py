import numpy as np
import ot
import pytest
import torch
from torch import Tensor

from ccvr.analysis.separability import Separability, separability
from ccvr.core.errors import AnalysisError
from ccvr.statistics.gaussians import ClassGaussians


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def gaussians(mean: Tensor, cov: Tensor, count: tuple[int, ...] | None = None) -> ClassGaussians:
    return ClassGaussians(torch.tensor(count or (9,) * len(mean)), mean.double(), cov.double())


def skewed(d: int, seed: int) -> Tensor:
    root = torch.randn(d, d, dtype=torch.float64, generator=rng(seed)) * torch.linspace(0.1, 2, d)
    return root @ root.T / d


def test_it_is_that_of_samples() -> None:
    d, n = 6, 5000
    mean = torch.stack([torch.zeros(d), torch.linspace(-0.5, 0.5, d), torch.full((d,), 0.1)])
    cov = torch.stack([skewed(d, 1), 4 * skewed(d, 2), 0.2 * skewed(d, 3)])
    found = separability(gaussians(mean, cov), rng=rng(), num_directions=2000).distances
    bases = torch.cat(  # whole bases: fewer directions do
        [torch.linalg.qr(torch.randn(d, d, dtype=torch.float64, generator=rng(seed))).Q for seed in range(30)], dim=1
    )
    numpy = np.random.default_rng(0)
    draws = [numpy.multivariate_normal(m.numpy(), c.numpy(), n) for m, c in zip(mean, cov, strict=True)]
    for i, j in ((0, 1), (0, 2), (1, 2)):
        expected = ot.sliced_wasserstein_distance(draws[i], draws[j], projections=bases.numpy())
        assert found[i, j].item() == pytest.approx(expected, rel=0.03)


def test_one_dimension_has_a_closed_form() -> None:
    found = separability(gaussians(torch.tensor([[1.0], [4.0]]), torch.tensor([[[4.0]], [[36.0]]])), rng=rng())
    assert found.distances[0, 1].item() == pytest.approx(5)  # √(3² + (6 − 2)²)
    assert found.mean == pytest.approx(5)


def test_the_same_covariance_leaves_the_means() -> None:
    d = 9
    mean = torch.zeros(2, d)
    mean[1, 3] = 6
    found = separability(gaussians(mean, skewed(d, 1).expand(2, d, d)), rng=rng(), num_directions=3)
    assert found.distances[0, 1].item() == pytest.approx(6 / 3)  # ‖δ‖ / √d


def test_balls_of_two_sizes() -> None:
    eye = torch.eye(5)
    found = separability(gaussians(torch.zeros(2, 5), torch.stack([eye, 9 * eye])), rng=rng(), num_directions=2)
    assert found.distances[0, 1].item() == pytest.approx(2)


def test_it_is_a_distance() -> None:
    d = 5
    mean = torch.randn(4, d, generator=rng(1))
    cov = torch.stack([skewed(d, seed) for seed in range(4)])
    found = separability(gaussians(mean, cov), rng=rng()).distances
    assert torch.equal(found, found.T)
    assert torch.equal(found.diagonal(), torch.zeros(4, dtype=torch.float64))
    for i in range(4):
        for j in range(4):
            assert (found[i, j] <= found[i] + found[:, j] + 1e-12).all()
    doubled = separability(gaussians(2 * mean, 4 * cov), rng=rng()).distances
    assert torch.allclose(doubled, 2 * found)


def test_classes_without_samples_are_left_out_and_single_ones_are_points() -> None:
    mean = torch.tensor([[0.0], [100.0], [3.0]])
    found = separability(gaussians(mean, torch.zeros(3, 1, 1), (1, 0, 7)), rng=rng())
    assert found.classes.tolist() == [0, 2]
    assert found.distances.tolist() == [[0, 3], [3, 0]]


def test_the_mean_is_of_different_classes() -> None:
    distances = torch.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, 6.0], [2.0, 6.0, 0.0]])
    assert Separability(torch.arange(3), distances).mean == pytest.approx(3)


def test_one_class_is_refused() -> None:
    with pytest.raises(AnalysisError, match="1 classes have samples"):
        separability(gaussians(torch.zeros(2, 1), torch.zeros(2, 1, 1), (4, 0)), rng=rng())
