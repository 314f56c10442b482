"""Numbers of the classes that are there."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class ByClass:
    """Values [P, …] of sorted classes [P]; those of all others are zeros, for which there is no memory."""

    classes: Tensor
    values: Tensor

    def copy(self) -> "ByClass":
        return ByClass(self.classes, self.values.clone())

    def add_(self, other: "ByClass") -> None:
        if not torch.equal(self.classes, other.classes):
            self._widen(torch.cat([self.classes, other.classes]).unique())
            self.values.index_add_(0, torch.searchsorted(self.classes, other.classes), other.values)
        else:
            self.values.add_(other.values)

    def _widen(self, classes: Tensor) -> None:
        if len(classes) > len(self.classes):
            values = self.values.new_zeros(len(classes), *self.values.shape[1:])
            values[torch.searchsorted(classes, self.classes)] = self.values
            self.classes, self.values = classes, values

    def at(self, classes: Tensor) -> Tensor:
        """The values of some classes that are there, [len(classes), …]."""
        if torch.equal(classes, self.classes):
            return self.values
        return self.values[torch.searchsorted(self.classes, classes)]

    def dense(self, num_classes: int) -> Tensor:
        """The values of all classes [C, …]: the values themselves, where all are there."""
        if len(self.classes) == num_classes:
            return self.values
        values = self.values.new_zeros(num_classes, *self.values.shape[1:])
        values[self.classes] = self.values
        return values
