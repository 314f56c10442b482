"""Norms of a head's rows: classes that a client has many samples of get long ones (Luo et al. 2021, 3.2)."""

import torch
from torch import Tensor

from ccvr.core.errors import AnalysisError


def row_norms(weight: Tensor) -> Tensor:
    """‖w_c‖₂ [C] of a head's weight [C, d], in float64."""
    if weight.dim() != 2:
        raise AnalysisError(f"the weight has shape {list(weight.shape)}; give one row for each class, [C, d].")
    norms: Tensor = torch.linalg.vector_norm(weight.detach().cpu().double(), dim=1)
    return norms


def spread(norms: Tensor) -> float:
    """Standard deviation over mean: 0 where all classes have the same norm; nan where all norms are 0."""
    return (norms.std(correction=0) / norms.mean()).item()


def lean(norms: Tensor, counts: Tensor) -> Tensor:
    """How far each client's head leans towards what the client has, [K] float64: row norms against samples, [K, C].

    Pearson's correlation over the classes: 1 where norms grow with samples; nan where one of the two does not vary.
    """
    if norms.shape != counts.shape or norms.dim() != 2:
        shapes = f"{list(norms.shape)} and {list(counts.shape)}"
        raise AnalysisError(f"norms and samples have the shapes {shapes}; give two of clients and classes, [K, C].")
    x, y = (each.double() - each.double().mean(1, keepdim=True) for each in (norms, counts))
    found: Tensor = (x * y).sum(1) / (x.norm(dim=1) * y.norm(dim=1))  # 0 / 0 is nan
    return found
