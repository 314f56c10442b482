"""Norms of a head's rows: classes that a client has many samples of get long ones (Luo et al. 2021, 3.2)."""

from dataclasses import dataclass

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


@dataclass(frozen=True)
class NormChange:
    """Norms [C] of two heads' rows."""

    before: Tensor
    after: Tensor

    @property
    def spread_before(self) -> float:
        return spread(self.before)

    @property
    def spread_after(self) -> float:
        return spread(self.after)


def norm_change(before: Tensor, after: Tensor) -> NormChange:
    """The row norms of two weights [C, d] and [C, d'], say of a head and the calibrated one."""
    if before.shape[:1] != after.shape[:1]:
        raise AnalysisError(f"the heads have {len(before)} and {len(after)} classes; give heads of the same classes.")
    return NormChange(row_norms(before), row_norms(after))
