"""Batches of whole tensors: which samples, and how they are augmented."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ccvr.core.arrays import IntArray
from ccvr.data.augment import MAX_NUMBERS, Augmentation
from ccvr.data.samples import Samples
from ccvr.kernels.crops import Crops, is_images
from ccvr.kernels.inputs import Inputs, rows_of, tensors_of


class Batch(NamedTuple):
    """Inputs of one step, augmented where that is on, and their labels [B]."""

    inputs: Inputs | Crops
    labels: Tensor

    def rows(self, rows: slice) -> "Batch":
        """Some samples of it."""
        inputs = self.inputs.rows(rows) if isinstance(self.inputs, Crops) else rows_of(self.inputs, rows)
        return Batch(inputs, self.labels[rows])


@dataclass(frozen=True)
class TrainingSamples:
    """Samples ready to be drawn from; where they are augmented, their inputs are as the augmentation prepared them."""

    samples: Samples
    augment: Augmentation | None = None

    @classmethod
    def prepare(cls, samples: Samples, augment: Augmentation | None) -> "TrainingSamples":
        return cls(replace(samples, inputs=augment.prepare(samples.inputs)) if augment else samples, augment)

    def take(self, indices: IntArray, *, rng: np.random.Generator) -> Batch:
        """A batch of the samples with these indices."""
        inputs, labels = self.samples.inputs, torch.from_numpy(self.samples.labels.numpy()[indices])
        if self.augment is not None:
            return Batch(self.augment.batch(inputs, indices, rng=rng), labels)
        if is_images(inputs):
            return Batch(Crops(inputs, indices, (inputs.shape[2], inputs.shape[3])), labels)
        return Batch(rows_of(inputs, torch.from_numpy(indices)), labels)


def epoch(samples: TrainingSamples, indices: IntArray, batch_size: int, *, rng: np.random.Generator) -> Iterator[Batch]:
    """One pass over ``indices`` in random order.

    A last batch of a single sample is left out when there are others: batch normalisation cannot learn from one.
    """
    order = rng.permutation(indices)
    if len(order) > batch_size and len(order) % batch_size == 1:
        order = order[:-1]
    for start in range(0, len(order), batch_size):
        yield samples.take(order[start : start + batch_size], rng=rng)


def in_order(
    samples: Samples, indices: IntArray | None = None, batch_size: int = 500
) -> Iterator[tuple[Inputs, Tensor]]:
    """Every sample once, in order, as it is: for features and for scoring; large inputs in smaller batches."""
    order = torch.arange(len(samples)) if indices is None else torch.from_numpy(indices)
    numbers = sum(tensor[0].numel() for tensor in tensors_of(samples.inputs).values())
    for batch in order.split(min(batch_size, max(1, MAX_NUMBERS // max(numbers, 1)))):
        yield rows_of(samples.inputs, batch), samples.labels.index_select(0, batch)
