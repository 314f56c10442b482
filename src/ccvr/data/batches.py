"""Batches of whole tensors: which images, how far shifted, which mirrored; uint8 until the model normalises them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ccvr.core.errors import DataError
from ccvr.data.images import IntArray, LabelledImages
from ccvr.kernels.crops import Crops, Shifts

PAD = 4
MAX_PIXELS = 2**24
"""Pixels that are handled at once where images pass as floats: 64 MB, whatever their size."""


class Batch(NamedTuple):
    """Images of one step, augmented where that is on, and their labels [B]."""

    crops: Crops
    labels: Tensor


@dataclass(frozen=True)
class TrainingImages:
    """Training images ready to be drawn from; where they are augmented, padded once by reflection."""

    source: LabelledImages
    padded: Tensor | None
    """[N, C, H + 8, W + 8], where images are augmented."""

    @classmethod
    def prepare(cls, source: LabelledImages, *, augment: bool) -> "TrainingImages":
        return cls(source, _padded(source.images) if augment else None)

    def take(self, indices: IntArray, *, rng: np.random.Generator) -> Batch:
        """A batch of the images with these indices."""
        labels = torch.from_numpy(self.source.labels.numpy()[indices])
        _, height, width = self.source.shape
        if self.padded is None:
            return Batch(Crops(self.source.images, indices, (height, width)), labels)
        row, column = rng.integers(0, 2 * PAD + 1, (2, len(indices)))
        mirrored = rng.integers(0, 2, len(indices)).astype(bool)
        return Batch(Crops(self.padded, indices, (height, width), Shifts(row, column, mirrored)), labels)


def _padded(images: Tensor) -> Tensor:
    height, width = images.shape[2:]
    if min(height, width) <= PAD:
        size = f"{height} x {width}"
        raise DataError(f"images of {size} pixels are too small to be shifted by {PAD}. Use --data.augment False.")
    return torch.cat([_reflect(part) for part in images.split(_at_once(images))])


def _at_once(images: Tensor) -> int:
    return max(1, MAX_PIXELS // images[0].numel())


def _reflect(images: Tensor) -> Tensor:
    # Reflection is not implemented for uint8; float32 holds every pixel exactly.
    return functional.pad(images.float(), (PAD, PAD, PAD, PAD), mode="reflect").to(torch.uint8)


def epoch(images: TrainingImages, indices: IntArray, batch_size: int, *, rng: np.random.Generator) -> Iterator[Batch]:
    """One pass over ``indices`` in random order.

    A last batch of a single image is left out when there are others: batch normalisation cannot learn from one.
    """
    order = rng.permutation(indices)
    if len(order) > batch_size and len(order) % batch_size == 1:
        order = order[:-1]
    for start in range(0, len(order), batch_size):
        yield images.take(order[start : start + batch_size], rng=rng)


def in_order(
    images: LabelledImages, indices: IntArray | None = None, batch_size: int = 500
) -> Iterator[tuple[Tensor, Tensor]]:
    """Every image once, in order, as it is: for features and for scoring; large images in smaller batches."""
    order = torch.arange(len(images)) if indices is None else torch.from_numpy(indices)
    for batch in order.split(min(batch_size, _at_once(images.images))):
        yield images.images.index_select(0, batch), images.labels.index_select(0, batch)
