"""Images on their way into a model: chosen, cut out and mirrored, as uint8 or straight into the vector lanes."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ccvr.kernels.lanes import Lanes
from ccvr.kernels.machine import MAX_NUMBERS


@dataclass(frozen=True)
class Crops:
    """Some of the images ``whole`` [N, C, H', W'] uint8, each cut out at (row, column) to ``size``, then mirrored.

    ``index``, ``row``, ``column`` and ``mirrored`` are [B]; without the last three, images are taken as they are.
    """

    whole: Tensor
    index: NDArray[np.int64]
    size: tuple[int, int]
    row: NDArray[np.int64] | None = None
    column: NDArray[np.int64] | None = None
    mirrored: NDArray[np.bool_] | None = None

    @classmethod
    def of(cls, images: Tensor) -> "Crops":
        """All of some images [B, C, H, W], as they are."""
        return cls(images, np.arange(len(images)), (images.shape[2], images.shape[3]))

    def __len__(self) -> int:
        return len(self.index)

    @cached_property
    def images(self) -> Tensor:
        """uint8 [B, C, H, W]. NumPy gathers five to fifteen times faster than torch's advanced indexing."""
        if self.row is None or self.column is None or self.mirrored is None:
            return torch.from_numpy(self.whole.numpy()[self.index])
        height, width = self.size
        windows = self.whole.unfold(2, height, 1).unfold(3, width, 1).numpy()
        crops = windows[self.index, :, self.row, self.column]
        crops[self.mirrored] = crops[self.mirrored, :, :, ::-1]
        return torch.from_numpy(crops)

    def lanes(self, scale: Tensor, shift: Tensor) -> Lanes:
        """Normalised, pixel × scale − shift per channel, in the vector lanes: one pass over the pixels."""
        from ccvr.kernels.gather import gather

        is_reached = self.whole.numel() <= MAX_NUMBERS and self.whole.is_contiguous()
        return gather(self if is_reached else Crops.of(self.images.contiguous()), scale, shift)
