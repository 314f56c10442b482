"""Random features of a kernel, cos(((u − mean) / std) Ω + b): Ω and b from a public seed (Rahimi and Recht 2007)."""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from ccvr.core.errors import StatisticsError
from ccvr.models.tensor_file import UnreadableTensors, tensors_from_bytes, tensors_to_bytes

FORMAT = "ccvr-projection/1"


@dataclass(frozen=True, eq=False)
class Projection:
    """What server and clients agree on: u's mean [p] and std [p], how many, Ω ~ N(0, bandwidth² / p), the seed."""

    mean: Tensor
    std: Tensor
    num_features: int
    bandwidth: float
    seed: int

    def __post_init__(self) -> None:
        if self.num_features < 1 or not 0 < self.bandwidth < 1e6:
            raise StatisticsError(
                f"random features: number {self.num_features}, bandwidth {self.bandwidth}; give at least 1, above 0."
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
            numbers = (int(header["num_features"]), float(header["bandwidth"]), int(header["seed"]))
            found = cls(tensors["mean"], tensors["std"], *numbers)
            agrees = found.digest == header["digest"]
        except (UnreadableTensors, LookupError, TypeError, ValueError, RuntimeError) as error:
            raise StatisticsError(f"these bytes are not a projection ({error}).") from error
        if not agrees:
            raise StatisticsError("this projection makes other random features here than where it was made.")
        return found

    @cached_property
    def weights(self) -> tuple[Tensor, Tensor]:
        """Ω / std [p, D] and b − (mean / std) Ω [D], float32: cos(u @ first + second)."""
        rng = np.random.Generator(np.random.Philox(self.seed))
        omega = torch.from_numpy(rng.standard_normal((len(self.mean), self.num_features)))
        omega = omega * self.bandwidth / len(self.mean) ** 0.5 / self.std.unsqueeze(1)
        phase = torch.from_numpy(rng.uniform(0, 2 * np.pi, self.num_features)) - self.mean @ omega
        return omega.float(), phase.float()

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the weights: who draws others from the same seed does not agree."""
        return hashlib.sha256(b"".join(part.numpy().tobytes() for part in self.weights)).hexdigest()


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
