"""All clients' images as files that processes map, so that nobody copies them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ccvr.data.batches import TrainingImages
from ccvr.data.images import IntArray, LabelledImages
from ccvr.training.messages import Client


@dataclass(frozen=True)
class Mapped:
    """An array in a file that processes share."""

    path: Path
    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def write(cls, path: Path, array: np.ndarray[Any, Any]) -> "Mapped":
        np.ascontiguousarray(array).tofile(path)
        return cls(path, array.dtype.str, array.shape)

    def open(self) -> np.ndarray[Any, Any]:
        # Copy on write: torch wants memory that it could write to, and nobody writes.
        return np.memmap(self.path, self.dtype, "c", shape=self.shape)


@dataclass(frozen=True)
class SharedClients:
    """All clients' images, as files; ``ends`` cuts the indices into the clients'."""

    images: Mapped
    labels: Mapped
    padded: Mapped | None
    indices: Mapped
    ends: tuple[int, ...]

    @classmethod
    def write(cls, folder: Path, clients: Sequence[Client]) -> "SharedClients":
        shared = clients[0].images
        padded = None if shared.padded is None else Mapped.write(folder / "padded", shared.padded.numpy())
        return cls(
            Mapped.write(folder / "images", shared.source.images.numpy()),
            Mapped.write(folder / "labels", shared.source.labels.numpy()),
            padded,
            Mapped.write(folder / "indices", np.concatenate([client.indices for client in clients])),
            tuple(np.cumsum([len(client.indices) for client in clients]).tolist()),
        )

    def open(self) -> list[Client]:
        source = LabelledImages(torch.from_numpy(self.images.open()), torch.from_numpy(self.labels.open()))
        padded: Tensor | None = None if self.padded is None else torch.from_numpy(self.padded.open())
        images = TrainingImages(source, padded)
        shards: list[IntArray] = np.split(np.asarray(self.indices.open()), self.ends[:-1])
        return [Client(number, images, shard) for number, shard in enumerate(shards)]
