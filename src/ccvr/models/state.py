"""Arithmetic on named tensors: what clients send and servers average."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

Tensors = dict[str, Tensor]


def parameters_of(model: nn.Module) -> Tensors:
    """A copy of the trained tensors, on the CPU."""
    return {name: tensor.detach().cpu().clone() for name, tensor in model.named_parameters(remove_duplicate=False)}


def buffers_of(model: nn.Module) -> Tensors:
    """A copy, on the CPU, of the tensors that are kept but not trained, such as BatchNorm's running moments."""
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items() if name not in names}


def num_bytes(*groups: Mapping[str, Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for group in groups for tensor in group.values())


class WeightedMean:
    """Σ w x / Σ w per name, folded one by one in float64; integer tensors keep their maximum."""

    def __init__(self) -> None:
        self._sums: Tensors = {}
        self._dtypes: dict[str, torch.dtype] = {}
        self._weight = 0.0

    def add(self, tensors: Mapping[str, Tensor], weight: float) -> None:
        for name, tensor in tensors.items():
            if not tensor.is_floating_point():
                seen = self._sums.get(name, tensor)
                self._sums[name] = torch.maximum(seen, tensor)
            elif name in self._sums:
                self._sums[name].add_(tensor.double(), alpha=weight)
            else:
                self._sums[name] = tensor.double() * weight
            self._dtypes[name] = tensor.dtype
        self._weight += weight

    def result(self) -> Tensors:
        """The means, in the type of the tensors that were added."""
        return {
            name: (total / self._weight if total.is_floating_point() else total).to(self._dtypes[name])
            for name, total in self._sums.items()
        }
