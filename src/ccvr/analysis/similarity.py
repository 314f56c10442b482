"""How alike two pictures are."""

import torch
from torch import Tensor
from torch.nn import functional

from ccvr.core.errors import AnalysisError

LEVELS = 255.0
WINDOW, SIGMA = 11, 1.5


def ssim(a: Tensor, b: Tensor) -> Tensor:
    """Structural similarity [N] of pictures [N, C, H, W] with values from 0 to 255 (Wang et al. 2004); 1 for the same.

    The mean over channels and places of (2 mu_a mu_b + C₁)(2 σ_ab + C₂) / ((mu_a² + mu_b² + C₁)(σ_a² + σ_b² + C₂)) in a
    Gaussian window of 11 × 11, that fits into the picture; C₁ = (0.01 · 255)², C₂ = (0.03 · 255)².
    """
    if a.shape != b.shape or a.dim() != 4:
        raise AnalysisError(f"pictures have the shapes {list(a.shape)} and {list(b.shape)}; give two of [N, C, H, W].")
    x, y = a.double(), b.double()
    c1, c2 = (0.01 * LEVELS) ** 2, (0.03 * LEVELS) ** 2
    mu_x, mu_y = _blurred(x), _blurred(y)
    var_x, var_y = _blurred(x * x) - mu_x**2, _blurred(y * y) - mu_y**2
    cov = _blurred(x * y) - mu_x * mu_y
    top = (2 * mu_x * mu_y + c1) * (2 * cov + c2)
    return (top / ((mu_x**2 + mu_y**2 + c1) * (var_x + var_y + c2))).mean((1, 2, 3))


def _blurred(x: Tensor) -> Tensor:
    """Each channel under the Gaussian window, where it lies inside; smaller pictures have an odd window that fits."""
    for axis in (2, 3):
        window = min(WINDOW, (x.shape[axis] - 1) // 2 * 2 + 1)
        places = torch.arange(window, dtype=x.dtype, device=x.device) - window // 2
        weights = torch.exp(-(places**2) / (2 * SIGMA**2))
        kernel = (weights / weights.sum()).view((1, 1, -1, 1) if axis == 2 else (1, 1, 1, -1))
        x = functional.conv2d(x.flatten(0, 1).unsqueeze(1), kernel).unflatten(0, x.shape[:2]).squeeze(2)
    return x
