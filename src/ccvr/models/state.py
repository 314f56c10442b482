"""Arithmetic on named tensors: what clients send and servers average."""

from collections.abc import Collection, Mapping
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from ccvr.core.errors import ModelError
from ccvr.models.flat import Flat, Layout, whole_of

Tensors = dict[str, Tensor]
Model = TypeVar("Model", bound=nn.Module)
Place = tuple[dict[str, Any], str]
"""Where a module keeps a tensor: its table, and the name there. Modules may put another tensor in the same place."""


class Scratch(Generic[Model]):
    """A model that is written and read many times: where its tensors are is found once."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._looked = False
        self._passing: list[tuple[Place, Tensor]] = []
        self._parameters: dict[str, Place] = {}
        self._buffers: dict[str, Place] = {}
        for path, module in model.named_modules(remove_duplicate=False):
            prefix, passing = f"{path}." if path else "", module._non_persistent_buffers_set
            for key, _ in module._parameters.items():
                self._parameters[prefix + key] = (module._parameters, key)
            for key, tensor in module._buffers.items():
                if key not in passing:
                    self._buffers[prefix + key] = (module._buffers, key)
                elif tensor is not None:
                    self._passing.append(((module._buffers, key), tensor.detach().clone()))

    def trained(self) -> list[nn.Parameter]:
        """The parameters themselves, each once."""
        held = (table[key] for table, key in self._parameters.values())
        return list({id(parameter): parameter for parameter in held if parameter is not None}.values())

    def parameters(self) -> Tensors:
        """The trained tensors, without gradients: the model's own memory, so they change with it."""
        return _held(self._parameters)

    def buffers(self) -> Tensors:
        """The tensors that are kept but not trained, such as BatchNorm's running moments; the model's own memory."""
        return _held(self._buffers)

    def moved(self) -> list[str]:
        """Tensors that are no longer where they were found: the model has other modules. Looked for once."""
        if self._looked:
            return []
        self._looked, now = True, Scratch(self.model)
        before, after = self._parameters | self._buffers, now._parameters | now._buffers
        tables = {name: (id(table), id(after[name][0])) for name, (table, _) in before.items() if name in after}
        return sorted((before.keys() ^ after.keys()) | {name for name, (old, new) in tables.items() if old != new})

    def load(self, tensors: Mapping[str, Tensor]) -> Model:
        """Write every tensor, by its name; buffers that no state keeps become what they were at first."""
        held = {name: table[key] for name, (table, key) in (self._parameters | self._buffers).items()}
        there = [name for name, tensor in held.items() if tensor is not None]
        wrong = [name for name in there if tensors[name].shape != held[name].shape]
        if wrong:
            found, expected = list(tensors[wrong[0]].shape), list(held[wrong[0]].shape)
            raise ValueError(f"{wrong[0]} has the shape {found}; the model's is {expected}")
        with torch.no_grad():
            torch._foreach_copy_([held[name] for name in there], [tensors[name] for name in there])
        for (table, key), first in self._passing:
            table[key] = first.clone()
        return self.model


def _held(places: Mapping[str, Place]) -> Tensors:
    held = {name: table[key] for name, (table, key) in places.items()}
    return {name: tensor.detach() for name, tensor in held.items() if tensor is not None}


def plain(tensor: Tensor) -> Tensor:
    """The tensor's numbers on the CPU, one after the other: not sparse, expanded, conjugate or channels last."""
    return tensor.detach().to_dense().cpu().resolve_conj().resolve_neg().contiguous()


def require_tensors(state: Mapping[str, object]) -> None:
    """Refuse what a model keeps beside tensors: nobody can compare or send it."""
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise ModelError(
                f'the model keeps a {type(value).__name__} as "{name}", and only tensors can be kept or sent. '
                "Make it a buffer, or build the model with it instead of get_extra_state."
            )


def copied(tensors: Mapping[str, Tensor]) -> Tensors:
    """Plain copies."""
    return {name: plain(tensor).clone() for name, tensor in tensors.items()}


def flattened(tensors: Mapping[str, Tensor]) -> Flat | Tensors:
    """Plain copies, in one piece of memory where all are float32.

    Example:
    >>> flattened({"weight": torch.ones(2, 3), "bias": torch.zeros(2)}).whole.shape
    torch.Size([32])
    """
    layout = Layout.of({name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()})
    if layout is None:
        return copied(tensors)
    flat = Flat(layout, torch.zeros(layout.size, dtype=torch.float32, device="cpu"))
    torch._foreach_copy_(list(flat.values()), [plain(tensor) for tensor in tensors.values()])
    return flat


def parameters_of(model: nn.Module) -> Tensors:
    """A copy of the trained tensors, on the CPU."""
    return copied(Scratch(model).parameters())


def buffers_of(model: nn.Module) -> Tensors:
    """A copy, on the CPU, of the tensors that are kept but not trained."""
    return copied(Scratch(model).buffers())


def num_bytes(*groups: Mapping[str, Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for group in groups for tensor in group.values())


class WeightedMean:
    """Σ w x / Σ w per name, folded one by one in float64; integer tensors keep their maximum."""

    def __init__(self) -> None:
        self._dtypes: dict[str, torch.dtype] = {}
        self._sums: Mapping[str, Tensor] = {}
        self._maxima: Tensors = {}
        self._weight = 0.0

    def add(self, tensors: Mapping[str, Tensor], weight: float) -> None:
        """The same names every time."""
        if not self._dtypes:
            self._dtypes = {name: tensor.dtype for name, tensor in tensors.items()}
            numbers = {name for name, dtype in self._dtypes.items() if dtype.is_floating_point}
            self._sums = _zeros(tensors, numbers)
            self._maxima = {name: tensor for name, tensor in tensors.items() if name not in numbers}
        if self._dtypes.keys() != tensors.keys():
            raise ValueError(f"tensors of other names than before: {sorted(self._dtypes.keys() ^ tensors.keys())}")
        if isinstance(self._sums, Flat) and (whole := whole_of(tensors, self._sums.layout)) is not None:
            self._sums.whole.add_(whole.double(), alpha=weight)
        elif self._sums:
            torch._foreach_add_(list(self._sums.values()), [tensors[name] for name in self._sums], alpha=weight)
        self._maxima = {name: torch.maximum(most, tensors[name]) for name, most in self._maxima.items()}
        self._weight += weight

    def result(self) -> Tensors:
        """The means, in the type of the tensors that were added."""
        means = {name: total / self._weight for name, total in self._sums.items()}
        return {name: (means | self._maxima)[name].to(dtype) for name, dtype in self._dtypes.items()}


def _zeros(tensors: Mapping[str, Tensor], numbers: Collection[str]) -> Mapping[str, Tensor]:
    """Sums in float64, laid out as the tensors are."""
    if isinstance(tensors, Flat):
        return Flat(tensors.layout, torch.zeros_like(tensors.whole, dtype=torch.float64))
    return {name: torch.zeros_like(tensors[name], dtype=torch.float64) for name in tensors if name in numbers}
