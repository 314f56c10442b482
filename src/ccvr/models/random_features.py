"""Random features of a kernel, cos(((u − mean) / std) Ω + b): Ω and b from a public seed (Rahimi and Recht 2007)."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from ccvr.core.errors import CcvrError, StatisticsError
from ccvr.models.tensor_file import tensors_from_bytes, tensors_to_bytes

FORMAT = "ccvr-projection/1"


MAX_FEATURES = 20_000
"""Random features of a projection. With so many, one client's statistics take 0.8 GB on their way."""
MAX_WEIGHTS = 10**8
"""Weights of a projection, 0.4 GB, which are drawn to compare their digest."""
MAX_MAGNITUDE = 2e9
BLOCK = 10**6
"""Weights that are drawn at once."""


@dataclass(frozen=True, eq=False)
class Projection:
    """What server and clients agree on: u's mean [p] and std [p], how many, Ω ~ N(0, bandwidth² / p), the seed."""

    mean: Tensor
    std: Tensor
    num_features: int
    bandwidth: float
    seed: int

    def __post_init__(self) -> None:
        """Refuse what no server asks for, before any weight is drawn.

        Raises:
            StatisticsError: numbers of the wrong type, beyond their range, or too many of them.
        """
        whole = all(isinstance(n, int) and not isinstance(n, bool) for n in (self.num_features, self.seed))
        real = isinstance(self.bandwidth, int | float) and not isinstance(self.bandwidth, bool)
        if not whole or not real or not (0 < self.num_features <= MAX_FEATURES and 0 < self.bandwidth < 1e6):
            raise StatisticsError(
                f"random features: number {self.num_features!r}, bandwidth {self.bandwidth!r}; "
                f"give a whole number of 1 to {MAX_FEATURES:,}, and a bandwidth above 0 and below a million."
            )
        if not 0 <= self.seed < 2**63:
            raise StatisticsError(f"random features: the seed is {self.seed!r}; give a whole number of 0 to 2**63 - 1.")
        _require_layers(self.mean, self.std)
        if len(self.mean) * self.num_features > MAX_WEIGHTS:
            raise StatisticsError(
                f"random features: {self.num_features:,} of {len(self.mean):,} numbers take more than "
                f"{MAX_WEIGHTS:,} weights. Lower num_features, or read fewer layers."
            )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Projection):
            return NotImplemented
        numbers = [(each.num_features, each.bandwidth, each.seed) for each in (self, other)]
        same = torch.equal(self.mean, other.mean) and torch.equal(self.std, other.std)
        return same and numbers[0] == numbers[1]

    def to_bytes(self) -> bytes:
        """What the server sends to its clients: means and deviations; the weights come from the seed."""
        numbers = {"num_features": self.num_features, "bandwidth": self.bandwidth, "seed": self.seed}
        return tensors_to_bytes({"mean": self.mean, "std": self.std}, format=FORMAT, digest=self.digest, **numbers)

    @classmethod
    def from_bytes(cls, blob: bytes) -> "Projection":
        """The projection in a blob; one whose weights come out otherwise here than at the server is refused."""
        try:
            header, tensors = tensors_from_bytes(blob, format=FORMAT)
            numbers = (header["num_features"], header["bandwidth"], header["seed"])
            found = cls(tensors["mean"], tensors["std"], *numbers)
            agrees = found.digest == header["digest"]
        except (LookupError, TypeError, ValueError, OverflowError, RuntimeError, CcvrError) as error:
            raise StatisticsError(f"these bytes are not a projection ({str(error).removesuffix('.')}).") from error
        if not agrees:
            raise StatisticsError("this projection makes other random features here than where it was made.")
        return found

    @cached_property
    def weights(self) -> tuple[Tensor, Tensor]:
        """Ω / std [p, D] and b − (mean / std) Ω [D], float32: cos(u @ first + second)."""
        *omega, phase = self._drawn()
        return torch.cat(omega), phase

    def _drawn(self) -> Iterator[Tensor]:
        """The weights, block by block: some rows of Ω / std each, and at last the phase."""
        rng = np.random.Generator(np.random.Philox(self.seed))
        shift = torch.zeros(self.num_features, dtype=torch.float64)
        rows = max(BLOCK // self.num_features, 1)
        for mean, std in zip(self.mean.split(rows), self.std.split(rows), strict=True):
            omega = torch.from_numpy(rng.standard_normal((len(mean), self.num_features)))
            omega = omega * self.bandwidth / len(self.mean) ** 0.5 / std.unsqueeze(1)
            shift += mean @ omega
            yield omega.float()
        yield (torch.from_numpy(rng.uniform(0, 2 * np.pi, self.num_features)) - shift).float()

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the weights: who draws others from the same seed does not agree."""
        digest = hashlib.sha256()
        for part in self._drawn():
            digest.update(part.numpy().tobytes())
        return digest.hexdigest()


def _require_layers(mean: Tensor, std: Tensor) -> None:
    """Refuse means and deviations that no layer has."""
    if mean.dim() != 1 or mean.shape != std.shape or not (mean.is_floating_point() and std.is_floating_point()):
        raise StatisticsError(
            f"random features: means of shape {list(mean.shape)}, deviations of shape {list(std.shape)}; give numbers "
            "[p] of both."
        )
    if not ((mean.abs() < MAX_MAGNITUDE) & (std < MAX_MAGNITUDE) & (std > 0)).all():  # NaN is none of these
        raise StatisticsError(
            "random features: a mean that is not finite or a deviation that is not above 0. Give those of features."
        )


class RandomFeatures(nn.Module):
    """phi(u) [B, D] of u [B, p], for a head to read."""

    omega: Tensor
    phase: Tensor

    def __init__(self, omega: Tensor, phase: Tensor) -> None:
        super().__init__()
        self.register_buffer("omega", omega)
        self.register_buffer("phase", phase)

    @classmethod
    def of(cls, projection: Projection) -> "RandomFeatures":
        return cls(*(part.clone() for part in projection.weights))

    def forward(self, u: Tensor) -> Tensor:
        return torch.addmm(self.phase, u.to(self.omega.dtype), self.omega).cos_()

    def __str__(self) -> str:
        return "random-features"
