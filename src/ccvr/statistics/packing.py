"""Triangles and trapezoids as rows of numbers, and whether a triangle is that of a covariance."""

import torch
from torch import Tensor

JITTER = 1e-5
"""Of the trace of a scatter: what rounding to float32 may have added to each of its eigenvalues."""
ROUNDING = 4 * torch.finfo(torch.float64).eps
"""Of a scatter against n |mu|², of which it is what is left when the mean is taken away."""
SMALLEST = 1e-30
"""The least norm of a feature's column that float32 holds with all its digits."""


def length_of_trapezoid(rank: int, d: int) -> int:
    """Numbers of an upper trapezoid [rank ≤ d, d]."""
    return rank * d - rank * (rank - 1) // 2


def pack_trapezoid(factor: Tensor) -> Tensor:
    """An upper trapezoid [r, d], row by row without what is below the diagonal."""
    return factor.masked_select(_upper(*factor.shape)) if len(factor) else factor.flatten()


def unpack_trapezoid(packed: Tensor, rank: int, d: int) -> Tensor:
    """The upper trapezoid [rank, d], float64."""
    factor = torch.zeros(rank, d, dtype=torch.float64)
    return factor.masked_scatter_(_upper(rank, d), packed.to(torch.float64)) if rank else factor


def _upper(rank: int, d: int) -> Tensor:
    return torch.ones(rank, d, dtype=torch.bool).triu()


def fits_float32(factor: Tensor) -> bool:
    """Whether float32 holds every column of a factor to 1e-7 of its norm."""
    norms = factor.norm(dim=0)
    return not len(factor) or bool(((norms == 0) | (norms > SMALLEST)).all())


def pack_triangle(scatter: Tensor) -> Tensor:
    """The upper triangle of a symmetric matrix; a diagonal as it is."""
    return scatter if scatter.dim() == 1 else pack_trapezoid(scatter)


def unpack_triangle(packed: Tensor, d: int) -> Tensor:
    """The symmetric matrix [d, d] of its packed upper triangle, float64."""
    upper = unpack_trapezoid(packed, d, d)
    return upper + upper.triu(1).T


def is_covariance(scatter: Tensor, rank: int, rounding: float) -> bool:
    """Whether a matrix is that of samples which span ``rank`` directions, up to float32 and ``rounding``.

    Of full rank, Cholesky of W + (1e-5 tr W / d + rounding) I succeeds. Of less, so many eigenvalues alone are above
    1e-5 tr W, and none is below minus that.
    """
    if not scatter.any():
        return True
    trace = float(scatter.trace())
    if not trace > 0:
        return False
    d = len(scatter)
    shifted = (scatter + (JITTER * trace / d + rounding) * torch.eye(d, dtype=torch.float64)) / trace
    if int(torch.linalg.cholesky_ex(shifted).info):
        return False
    if rank >= d:
        return True
    most = JITTER * trace + rounding
    return bool((torch.linalg.eigvalsh(scatter)[: d - rank] <= most).all())
