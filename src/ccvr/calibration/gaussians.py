"""One Gaussian per class: exact merging and exact drawing."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ccvr.core.machine import require_memory
from ccvr.statistics.moments import ClassStatistics
from ccvr.statistics.wire import scatter


@dataclass(frozen=True)
class ClassGaussians:
    """count [C], mean [C, d] and cov [C, d, d] in float64; a class nobody has: zeros; one sample: no spread."""

    count: Tensor
    mean: Tensor
    cov: Tensor

    @classmethod
    def of(cls, statistics: ClassStatistics) -> "ClassGaussians":
        """mu_c = s_c / n_c, Sigma_c = (Q_c − n_c mu_c mu_cᵀ) / (n_c − 1): Luo et al. 2021, Eq. 3 and 4, from sums."""
        count = statistics.count
        mean = statistics.total / count.clamp(min=1).unsqueeze(1)
        return cls(count, mean, scatter(statistics) / (count - 1).clamp(min=1).view(-1, 1, 1))

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

    def sample(self, numbers: Sequence[int], *, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """``numbers[c]`` virtual features of each class c that has samples: z [M, d] float32 and labels [M].

        Drawn with the symmetric root V √max(Λ, 0) Vᵀ: exact for singular covariances, and continuous in them.
        """
        require_memory(4 * sum(numbers) * self.mean.shape[1], "virtual features", "Lower calibration.num_virtual")
        draws, labels = [], []
        for label, number in enumerate(numbers):
            if self.count[label] > 0:
                noise = torch.randn(number, self.mean.shape[1], dtype=torch.float64, generator=rng)
                draws.append((self.mean[label] + noise @ symmetric_root(self.cov[label])).to(torch.float32))
                labels.append(torch.full((number,), label))
        return torch.cat(draws), torch.cat(labels)


def symmetric_root(cov: Tensor) -> Tensor:
    """V √max(Λ, 0) Vᵀ of a symmetric matrix."""
    values, vectors = torch.linalg.eigh(cov)
    root: Tensor = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
    return root


def _outer(mean: Tensor) -> Tensor:
    return mean.unsqueeze(2) * mean.unsqueeze(1)
