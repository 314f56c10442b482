"""A scatter W [d, d] as the upper-trapezoidal factor R of W = RᵀR.

R is the row-echelon Cholesky factor with positive pivots. It is unique, so it says of the samples what W says and no
more. A plain QR decomposition of the rows is not: for [[0, 1], [0, 2]], whose first feature is always 0, it gives the
rows themselves.
"""

import torch
from torch import Tensor

NEGLIGIBLE = 1e-12
"""Of a feature's root mean square: what is left of it when other features are taken away, if it depends on them."""
CLEAR = 1e-10
"""The same of a feature that clearly depends on no other."""
OF_MATRIX = 1e-6
"""``NEGLIGIBLE`` of rows that were made of a matrix, where squares were summed."""
PANEL = 64


def factor_of_rows(rows: Tensor, rank: int, scale: Tensor, *, negligible: float = NEGLIGIBLE) -> Tensor:
    """R [rank, d] of W = FᵀF for rows F [m, d] of at most this rank.

    ``scale`` [d]: the norm of each feature before its mean was taken away, which its rounding is measured against.
    """
    d = rows.shape[1]
    factor = torch.zeros(rank, d, dtype=torch.float64)
    alive = (rows.norm(dim=0) > negligible * scale).nonzero().flatten()
    if not rank or not len(alive):
        return factor
    whole = len(alive) == d
    rows, scale = (rows, scale) if whole else (rows[:, alive], scale[alive])
    upper = torch.linalg.qr(rows, mode="r").R
    plain = _is_echelon(upper, rank, scale, negligible)
    found = _positive(upper[:rank]) if plain else _echelon(upper, rank, scale, negligible)
    factor[: len(found), slice(None) if whole else alive] = found
    return factor


def _is_echelon(upper: Tensor, rank: int, scale: Tensor, negligible: float) -> bool:
    """Whether the first pivots are clearly not zero, and whatever follows the last of them is."""
    pivots = upper.diagonal().abs()
    poor = (pivots <= max(CLEAR, negligible) * scale[: len(pivots)]).nonzero().flatten()
    number = min(int(poor[0]) if len(poor) else len(pivots), rank)
    return bool((upper[number:].norm(dim=0) <= negligible * scale).all())


def _positive(upper: Tensor) -> Tensor:
    signs = torch.where(upper.diagonal() < 0, -1.0, 1.0).to(upper.dtype)
    return upper.triu() * signs.unsqueeze(1)


def _echelon(rows: Tensor, rank: int, scale: Tensor, negligible: float) -> Tensor:
    """Rows [at most rank, d] of the row-echelon factor: Gram-Schmidt over the columns, which skips dependent ones."""
    rest, found = rows.clone(), []
    d, left = rows.shape[1], rank
    for start in range(0, d, PANEL):
        if not left:
            break
        basis, pivots = _panel(rest[:, start : start + PANEL], left, negligible * scale[start : start + PANEL])
        if not pivots:
            continue
        block = basis.T @ rest[:, start:]
        for row, pivot in zip(block, pivots, strict=True):
            row[:pivot] = 0
        found.append(torch.cat([block.new_zeros(len(block), start), block], dim=1))
        rest[:, start:] -= basis @ block
        left -= len(pivots)
    return torch.cat(found) if found else rows[:0]


def _panel(columns: Tensor, most: int, tolerances: Tensor) -> tuple[Tensor, list[int]]:
    """An orthonormal basis [m, k ≤ most] of some columns, and those that brought a direction each."""
    rest, basis, pivots = columns.clone(), [], list[int]()
    for column, tolerance in enumerate(tolerances.tolist()):
        norm = float(rest[:, column].norm())
        if norm > tolerance and len(pivots) < most:
            direction = rest[:, column] / norm
            rest[:, column:] -= torch.outer(direction, direction @ rest[:, column:])
            basis.append(direction)
            pivots.append(column)
    return (torch.stack(basis, dim=1) if basis else columns[:, :0]), pivots


def factor_of_matrix(scatter: Tensor, rank: int, squares: Tensor) -> Tensor:
    """R [rank, d] of a scatter W [d, d] of this rank; ``squares`` [d] are Σ z², from which W was left.

    Where rounding makes W indefinite, it is the factor of W + s I, s at the level of that rounding.
    """
    d = len(scatter)
    alive = ((squares > 0) & (scatter.diagonal() > 0)).nonzero().flatten()
    if rank < len(alive):
        return factor_of_rows(_root(scatter, rank), rank, squares.sqrt(), negligible=OF_MATRIX)
    factor = torch.zeros(rank, d, dtype=torch.float64)
    whole = len(alive) == d
    part = scatter if whole else scatter[alive][:, alive]
    factor[: len(alive), slice(None) if whole else alive] = _cholesky(part, float(squares.sum()))
    return factor


def _cholesky(scatter: Tensor, trace: float) -> Tensor:
    shift = 10 * torch.finfo(torch.float64).eps * trace
    upper, info = torch.linalg.cholesky_ex(scatter, upper=True)
    while int(info) or not (upper.diagonal().square() > shift / 2).all():
        shifted = scatter.clone()
        shifted.diagonal().add_(shift)
        upper, info = torch.linalg.cholesky_ex(shifted, upper=True)
        if not int(info):
            break
        shift *= 10
    found: Tensor = upper
    return found


def _root(scatter: Tensor, rank: int) -> Tensor:
    """Rows F [rank, d] of the nearest W = FᵀF of this rank."""
    values, vectors = torch.linalg.eigh(scatter)
    found: Tensor = values[-rank:].clamp(min=0).sqrt().unsqueeze(1) * vectors[:, -rank:].T if rank else vectors[:0]
    return found
