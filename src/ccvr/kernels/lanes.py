"""A batch of images in the vector lanes."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Lanes:
    """``number`` images as groups [G, C, H, W, L]: image b is lane b % L of group b // L.

    The lanes that are left in the last group hold zeros, or what a network makes of zeros.
    """

    groups: Tensor
    number: int

    @classmethod
    def of(cls, images: Tensor, lanes: int) -> "Lanes":
        """Images [B, C, H, W], in groups of ``lanes``."""
        number = len(images)
        filled = functional.pad(images, (0, 0, 0, 0, 0, 0, 0, -number % lanes)) if number % lanes else images
        groups = (
            filled.view(-1, lanes, *images.shape[1:]) if filled.is_contiguous() else filled.unflatten(0, (-1, lanes))
        )
        return cls(groups.permute(0, 2, 3, 4, 1).contiguous(), number)

    def images(self) -> Tensor:
        """[B, C, H, W]."""
        images = self.groups.permute(0, 4, 1, 2, 3).flatten(0, 1)
        return images if len(images) == self.number else images[: self.number]

    @property
    def size(self) -> torch.Size:
        """(channels, height, width)."""
        return self.groups.shape[1:4]
