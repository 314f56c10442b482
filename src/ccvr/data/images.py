"""Labelled images in memory: uint8 pixels, one label each."""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ccvr.core.errors import DataError

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class LabelledImages:
    """images [N, C, H, W] uint8 and labels [N] int64."""

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.dim() != 4:
            raise DataError(
                f"images are {self.images.dtype} of shape {list(self.images.shape)}; give uint8 of shape [N, C, H, W]."
            )
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            raise DataError(
                f"labels are {self.labels.dtype} of shape {list(self.labels.shape)} for {len(self.images)} images; "
                "give int64 of shape [N]."
            )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of one image."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width


@dataclass(frozen=True)
class Dataset:
    """The official train and test parts of one data set.

    ``augment`` says whether training shifts and mirrors its images: right for photographs, wrong for digits.
    """

    train: LabelledImages
    test: LabelledImages
    class_names: tuple[str, ...]
    augment: bool = False

    def __post_init__(self) -> None:
        for part, images in (("train", self.train), ("test", self.test)):
            if not len(images):
                raise DataError(f"the {part} part has no images.")
            if images.shape != self.train.shape:
                raise DataError(f"train images are {self.train.shape}, {part} images {images.shape}; they must agree.")
            low, high = int(images.labels.min()), int(images.labels.max())
            if low < 0 or high >= self.num_classes:
                raise DataError(
                    f"the {part} labels run from {low} to {high}, but there are {self.num_classes} classes "
                    f"(0 to {self.num_classes - 1}). The file is not this data set, or its labels are damaged."
                )

    def digest(self) -> str:
        """SHA-256 of all images, labels and class names."""
        whole = hashlib.sha256("\n".join(self.class_names).encode())
        for part in (self.train, self.test):
            for tensor in (part.images, part.labels):
                whole.update(f"{list(tensor.shape)}".encode())
                whole.update(tensor.contiguous().numpy().data)
        return whole.hexdigest()

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.train.shape


def channel_moments(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel of images [N, C, H, W], on the scale [0, 1], as float64 [C].

    From histograms: exact, whatever the number of threads. A deviation is at least 1/255, so that one may divide by it.
    """
    levels = torch.arange(256, dtype=torch.float64) / 255
    counts = torch.stack([torch.bincount(channel.flatten(), minlength=256) for channel in images.unbind(1)])
    shares = counts.double() / images[:, 0].numel()
    mean = shares @ levels
    variance = (shares * (levels - mean.unsqueeze(1)) ** 2).sum(1)
    return mean, variance.sqrt().clamp(min=1 / 255)
