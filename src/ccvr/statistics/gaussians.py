"""One Gaussian per class, and the paper's own way to merge them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ClassGaussians:
    """count [C], mean [C, d] and cov [C, d, d] in float64; a class nobody has: zeros; one sample: no spread."""

    count: Tensor
    mean: Tensor
    cov: Tensor

    @classmethod
    def merge(cls, clients: Sequence["ClassGaussians"]) -> "ClassGaussians":
        """The merged Gaussians of clients that sent counts, means and covariances: Luo et al. 2021, Eq. 3 and 4.

        Sigma_c = Σ_k (N_ck − 1)/(N_c − 1) Sigma_ck + Σ_k N_ck/(N_c − 1) mu_ck mu_ckᵀ − N_c/(N_c − 1) mu_c mu_cᵀ.
        """
        count = torch.stack([client.count for client in clients]).sum(0)
        weighted = [client.count.unsqueeze(1) * client.mean for client in clients]
        mean = torch.stack(weighted).sum(0) / count.clamp(min=1).unsqueeze(1)
        cov = -count.view(-1, 1, 1) * _outer(mean)
        for client in clients:
            cov += (client.count - 1).clamp(min=0).view(-1, 1, 1) * client.cov
            cov += client.count.view(-1, 1, 1) * _outer(client.mean)
        return cls(count, mean, cov / (count - 1).clamp(min=1).view(-1, 1, 1))


def _outer(mean: Tensor) -> Tensor:
    return mean.unsqueeze(2) * mean.unsqueeze(1)
