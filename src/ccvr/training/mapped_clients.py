"""All clients' samples as files that processes map, so that they are not copied."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ccvr.algorithms.messages import Client
from ccvr.core.arrays import IntArray
from ccvr.data.augment import Augmentation
from ccvr.data.batches import TrainingSamples
from ccvr.data.samples import Samples
from ccvr.kernels.inputs import from_tensors, tensors_of


@dataclass(frozen=True)
class MappedTensor:
    """A tensor in a file."""

    path: Path
    dtype: torch.dtype
    shape: tuple[int, ...]

    @classmethod
    def write(cls, path: Path, tensor: Tensor) -> "MappedTensor":
        tensor.contiguous().view(-1).view(torch.uint8).numpy().tofile(path)  # as bytes: NumPy has no bfloat16
        return cls(path, tensor.dtype, tuple(tensor.shape))

    def open(self) -> Tensor:
        # Copy on write: torch wants writable memory; it is never written to.
        return torch.from_numpy(np.memmap(self.path, np.uint8, "c")).view(self.dtype).view(self.shape)


@dataclass(frozen=True)
class MappedClients:
    """All clients' samples, as files; ``ends`` cuts the indices into the clients'."""

    folder: Path
    inputs: dict[str, MappedTensor]
    labels: MappedTensor
    augment: Augmentation | None
    indices: MappedTensor
    ends: tuple[int, ...]

    @classmethod
    def write(cls, folder: Path, clients: Sequence[Client]) -> "MappedClients":
        data = clients[0].data
        inputs = tensors_of(data.samples.inputs).items()
        return cls(
            folder,
            {name: MappedTensor.write(folder / f"inputs-{i}", tensor) for i, (name, tensor) in enumerate(inputs)},
            MappedTensor.write(folder / "labels", data.samples.labels),
            data.augment,
            MappedTensor.write(
                folder / "indices", torch.from_numpy(np.concatenate([client.indices for client in clients]))
            ),
            tuple(np.cumsum([len(client.indices) for client in clients]).tolist()),
        )

    def open(self) -> list[Client]:
        inputs = from_tensors({name: mapped.open() for name, mapped in self.inputs.items()})
        data = TrainingSamples(Samples(inputs, self.labels.open()), self.augment)
        shards: list[IntArray] = np.split(self.indices.open().numpy(), self.ends[:-1])
        return [Client(number, data, shard) for number, shard in enumerate(shards)]
