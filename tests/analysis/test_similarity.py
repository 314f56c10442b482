import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from torch import Tensor

from ccvr.analysis.similarity import ssim
from ccvr.core.errors import AnalysisError


def pictures(n: int, side: int, seed: int = 0) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, 3, side, side + 2), dtype=torch.uint8, generator=rng)


def plain_ssim(a: np.ndarray, b: np.ndarray) -> float:
    """Of one channel: means and moments by SciPy's filter, the places whose window lies inside."""

    def blurred(x: np.ndarray) -> np.ndarray:
        return gaussian_filter(x, 1.5, radius=5)[5:-5, 5:-5]

    x, y = a.astype(float), b.astype(float)
    mean_x, mean_y = blurred(x), blurred(y)
    var_x, var_y, cov = blurred(x * x) - mean_x**2, blurred(y * y) - mean_y**2, blurred(x * y) - mean_x * mean_y
    luminance = (2 * mean_x * mean_y + 6.5025) / (mean_x**2 + mean_y**2 + 6.5025)
    return float(np.mean(luminance * (2 * cov + 58.5225) / (var_x + var_y + 58.5225)))


def test_it_is_the_formula_by_other_means() -> None:
    a = pictures(3, 20)
    b = (0.7 * a.float() + 0.3 * pictures(3, 20, seed=1).float()).to(torch.uint8)
    found = ssim(a, b)
    for i in range(3):
        channels = [plain_ssim(a[i, c].numpy(), b[i, c].numpy()) for c in range(3)]
        assert found[i].item() == pytest.approx(np.mean(channels), abs=1e-10)
    assert 0.3 < found.mean() < 0.98


@pytest.mark.parametrize("side", [1, 2, 8, 32])
def test_the_same_is_one_and_order_does_not_matter(side: int) -> None:
    a, b = pictures(2, side), pictures(2, side, seed=1)
    assert torch.allclose(ssim(a, a), torch.ones(2, dtype=torch.float64))
    assert torch.allclose(ssim(a, b), ssim(b, a))
    assert (ssim(a, b) < 0.9).all()


def test_plain_areas_are_compared_by_their_level() -> None:
    a, b = torch.full((1, 1, 16, 16), 100), torch.full((1, 1, 16, 16), 50)
    assert ssim(a, b).item() == pytest.approx((2 * 100 * 50 + 6.5025) / (100**2 + 50**2 + 6.5025))


def test_other_shapes_are_refused() -> None:
    with pytest.raises(AnalysisError, match="shapes"):
        ssim(pictures(2, 8), pictures(3, 8))
