"""Labelled samples in memory, and the data sets that are made of them."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ccvr.core.errors import DataError
from ccvr.data.augment import Augmentation, ShiftAndMirror
from ccvr.kernels.inputs import Inputs, described, rows_of, tensors_of


@dataclass(frozen=True)
class Samples:
    """Inputs [N, …], one tensor or several by name, and labels [N] int64.

    Example:
    >>> len(Samples(torch.zeros(3, 8), torch.tensor([0, 1, 0])))
    3
    """

    inputs: Inputs
    labels: Tensor

    def __post_init__(self) -> None:
        tensors = tensors_of(self.inputs).values()
        names = list(self.inputs) if isinstance(self.inputs, Mapping) else ["inputs"]
        if not all(isinstance(name, str) and name for name in names):
            raise DataError(f"inputs are named {names}; give each a name.")
        others = [type(each).__name__ for each in (*tensors, self.labels) if not isinstance(each, Tensor)]
        if others:
            raise DataError(f"inputs or labels are a {others[0]}; give torch tensors.")
        if self.labels.dtype != torch.int64 or self.labels.dim() != 1:
            raise DataError(
                f"labels are {self.labels.dtype} of shape {list(self.labels.shape)}; give int64 of shape [N]."
            )
        if not tensors or any(tensor.shape[:1] != self.labels.shape for tensor in tensors):
            raise DataError(
                f"inputs are {described(self.inputs) or 'none'} for {len(self.labels)} labels; "
                "give tensors with one row a label."
            )

    def __len__(self) -> int:
        return len(self.labels)

    def first(self, number: int) -> Inputs:
        """The inputs of the first samples."""
        return rows_of(self.inputs, slice(number))


@dataclass(frozen=True)
class Dataset:
    """The official train and test parts of one data set, and how its inputs reach a model."""

    train: Samples
    test: Samples
    class_names: tuple[str, ...]
    augment: bool | Augmentation = False
    """How training changes its inputs; True shifts and mirrors images: right for photographs, wrong for digits."""
    preprocess: str = "auto"
    """What stands before a model: pixels, standardize, none, your own as package.module:name, or auto: pixels for uint8
    images [N, C, H, W], otherwise none."""

    def __post_init__(self) -> None:
        if not isinstance(self.preprocess, str):
            raise DataError(f"preprocess is a {type(self.preprocess).__name__}; give a name, or package.module:name.")
        if not isinstance(self.augment, bool) and not (
            hasattr(self.augment, "prepare") and hasattr(self.augment, "batch")
        ):
            raise DataError(
                f"augment is a {type(self.augment).__name__}; give a bool, or an object with prepare and batch."
            )
        for part, samples in (("train", self.train), ("test", self.test)):
            if not len(samples):
                raise DataError(f"the {part} part has no samples.")
            if _form(samples) != _form(self.train):
                inputs = [described(each.first(1)) for each in (self.train, samples)]
                raise DataError(f"train inputs are {inputs[0]}, {part} inputs {inputs[1]} a sample; they must agree.")
            if not all(bool(t.isfinite().all()) for t in tensors_of(samples.inputs).values() if t.is_floating_point()):
                raise DataError(f"some {part} inputs are not finite. Remove those samples, or fill in what is missing.")
            low, high = int(samples.labels.min()), int(samples.labels.max())
            if low < 0 or high >= self.num_classes:
                raise DataError(
                    f"the {part} labels run from {low} to {high}, but there are {self.num_classes} classes "
                    f"(0 to {self.num_classes - 1}). The file is not this data set, or its labels are damaged."
                )

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    def augmentation(self, wanted: bool | None = None) -> Augmentation | None:
        """How training changes inputs: as ``wanted``, without it as the data set says."""
        if wanted is False or (wanted is None and not self.augment):
            return None
        return ShiftAndMirror() if isinstance(self.augment, bool) else self.augment

    def digest(self) -> str:
        """SHA-256 of all inputs, labels and class names."""
        whole = hashlib.sha256("\n".join(self.class_names).encode())
        for part in (self.train, self.test):
            for name, tensor in (*tensors_of(part.inputs).items(), ("", part.labels)):
                whole.update(f"{name}{list(tensor.shape)}".encode())
                whole.update(tensor.contiguous().view(torch.uint8).numpy().data)
        return whole.hexdigest()


def _form(samples: Samples) -> dict[str, tuple[torch.dtype, torch.Size]]:
    return {name: (tensor.dtype, tensor.shape[1:]) for name, tensor in tensors_of(samples.inputs).items()}
