"""How training changes its inputs from one step to the next."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ccvr.core.arrays import IntArray
from ccvr.core.errors import DataError
from ccvr.kernels.crops import Crops, Shifts, is_images
from ccvr.kernels.inputs import Inputs, described

PAD = 4
MAX_NUMBERS = 2**24
"""Numbers that are converted to float at once: 64 MB for samples of any size."""


class Augmentation(Protocol):
    """A change of inputs that is drawn anew for every step."""

    def prepare(self, inputs: Inputs) -> Inputs:
        """What batches are taken from; called once with all inputs."""

    def batch(self, prepared: Inputs, indices: IntArray, *, rng: np.random.Generator) -> Inputs | Crops:
        """The changed inputs of these samples."""


@dataclass(frozen=True)
class ShiftAndMirror:
    """Images are padded by reflection, cut out at a random place and mirrored at random."""

    def prepare(self, inputs: Inputs) -> Tensor:
        if not is_images(inputs):
            raise DataError(
                f"inputs are {described(inputs)}; only uint8 images [N, C, H, W] are shifted and mirrored. "
                "Use --data.augment False."
            )
        height, width = inputs.shape[2:]
        if min(height, width) <= PAD:
            size = f"{height} x {width}"
            raise DataError(f"images of {size} pixels are too small to be shifted by {PAD}. Use --data.augment False.")
        parts = inputs.split(max(1, MAX_NUMBERS // inputs[0].numel()))
        # Reflection is not implemented for uint8; float32 holds every pixel exactly.
        padded = (functional.pad(part.float(), (PAD, PAD, PAD, PAD), mode="reflect") for part in parts)
        return torch.cat([part.to(torch.uint8) for part in padded])

    def batch(self, prepared: Inputs, indices: IntArray, *, rng: np.random.Generator) -> Crops:
        assert isinstance(prepared, Tensor)
        height, width = prepared.shape[2:]
        row, column = rng.integers(0, 2 * PAD + 1, (2, len(indices)))
        mirrored = rng.integers(0, 2, len(indices)).astype(bool)
        return Crops(prepared, indices, (height - 2 * PAD, width - 2 * PAD), Shifts(row, column, mirrored))
