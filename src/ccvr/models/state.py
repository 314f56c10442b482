"""Arithmetic on named tensors: what clients send and servers average."""

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

Tensors = dict[str, Tensor]
Model = TypeVar("Model", bound=nn.Module)
Place = tuple[dict[str, Any], str]
"""Where a module keeps a tensor: its table, and the name there. Modules may put another tensor in the same place."""


class Scratch(Generic[Model]):
    """A model that is written and read many times: where its tensors are is found once."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._parameters: dict[str, Place] = {}
        self._buffers: dict[str, Place] = {}
        for path, module in model.named_modules(remove_duplicate=False):
            prefix = f"{path}." if path else ""
            passing = module._non_persistent_buffers_set
            self._parameters |= {prefix + key: (module._parameters, key) for key in module._parameters}
            self._buffers |= {prefix + key: (module._buffers, key) for key in module._buffers if key not in passing}

    def trained(self) -> list[nn.Parameter]:
        """The parameters themselves, each once."""
        held = (table[key] for table, key in self._parameters.values())
        return list({id(parameter): parameter for parameter in held if parameter is not None}.values())

    def parameters(self) -> Tensors:
        """A copy of the trained tensors, on the CPU."""
        return _copies(self._parameters)

    def buffers(self) -> Tensors:
        """A copy, on the CPU, of the tensors that are kept but not trained, such as BatchNorm's running moments."""
        return _copies(self._buffers)

    def load(self, tensors: Mapping[str, Tensor]) -> Model:
        """Write every tensor, by its name."""
        held = {name: table[key] for name, (table, key) in (self._parameters | self._buffers).items()}
        there = [name for name, tensor in held.items() if tensor is not None]
        wrong = [name for name in there if tensors[name].shape != held[name].shape]
        if wrong:
            found, expected = list(tensors[wrong[0]].shape), list(held[wrong[0]].shape)
            raise ValueError(f"{wrong[0]} has the shape {found}; the model's is {expected}")
        with torch.no_grad():
            torch._foreach_copy_([held[name] for name in there], [tensors[name] for name in there])
        return self.model


def _copies(places: Mapping[str, Place]) -> Tensors:
    held = {name: table[key] for name, (table, key) in places.items()}
    return {name: tensor.detach().cpu().clone() for name, tensor in held.items() if tensor is not None}


def parameters_of(model: nn.Module) -> Tensors:
    """A copy of the trained tensors, on the CPU."""
    return Scratch(model).parameters()


def buffers_of(model: nn.Module) -> Tensors:
    """A copy, on the CPU, of the tensors that are kept but not trained."""
    return Scratch(model).buffers()


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
                self._sums[name].add_(tensor, alpha=weight)  # in float64
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
