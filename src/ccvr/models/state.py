"""Arithmetic on named tensors: what clients send and servers average."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from ccvr.core.errors import ModelError
from ccvr.models.flat import Flat, Layout, whole_of

Tensors = dict[str, Tensor]
Model = TypeVar("Model", bound=nn.Module)
Place = tuple[dict[str, Any], str]
"""Where a module keeps a tensor: its table, and the name there. Modules may put another tensor in the same place."""


class _Held:
    """Where a model keeps some of its tensors, by their names."""

    def __init__(self) -> None:
        self.places: dict[str, Place] = {}
        self._flat: Flat | None = None
        self._parts: list[tuple[Tensor | None, int]] = []
        """What lies at each place while all is flat, and where in memory."""

    def tensors(self) -> Mapping[str, Tensor]:
        """What lies there, without gradients."""
        if flat := self._found_flat():
            return flat
        return {name: tensor.detach() for name, tensor in self._now().items() if tensor is not None}

    def flatten(self) -> None:
        """Move all tensors into one piece of memory, if nobody can tell."""
        there = {name: tensor for name, tensor in self._now().items() if tensor is not None}
        is_tied = len({id(tensor) for tensor in there.values()}) < len(there)
        if is_tied or not all(map(_can_be_moved, there.values())):
            return
        flat = flattened(there)
        if isinstance(flat, Flat):
            for name, tensor in there.items():
                tensor.data = flat[name]
            self._flat, self._parts = flat, _where(self._now().values())

    def matched(self, groups: Sequence[Mapping[str, Tensor]]) -> list[tuple[Tensor, Tensor]]:
        """What lies there, each with the one of its name among the given groups, of which no two have a name."""
        if flat := self._found_flat():
            for group in groups:
                if (whole := whole_of(group, flat.layout)) is not None:
                    return [(flat.whole, whole)]
        given = {name: tensor for group in groups for name, tensor in group.items()}
        pairs = {name: (tensor, given[name]) for name, tensor in self._now().items() if tensor is not None}
        for name, (ours, theirs) in pairs.items():
            if ours.shape != theirs.shape:
                raise ValueError(f"{name} has the shape {list(theirs.shape)}; the model's is {list(ours.shape)}")
        return list(pairs.values())

    def _now(self) -> dict[str, Tensor | None]:
        return {name: table[key] for name, (table, key) in self.places.items()}

    def _found_flat(self) -> Flat | None:
        """The tensors in one piece, as long as modules put no other one in the place of one."""
        if self._flat is None:
            return None
        now = _where(table[key] for table, key in self.places.values())
        same = all(a is b and at == then for (a, at), (b, then) in zip(now, self._parts, strict=True))
        return self._flat if same else None


def _where(tensors: Iterable[Tensor | None]) -> list[tuple[Tensor | None, int]]:
    return [(tensor, 0 if tensor is None else tensor.data_ptr()) for tensor in tensors]


def _can_be_moved(tensor: Tensor) -> bool:
    """Whether a tensor can lie elsewhere, and everything goes on in the same bits: nothing else uses its memory."""
    if type(tensor) not in (Tensor, nn.Parameter) or tensor.layout != torch.strided or tensor.device.type != "cpu":
        return False
    if tensor.is_neg() or tensor.stride() != torch.empty(tensor.shape, device="meta").stride():
        return False
    users = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    return bool(users <= 2)  # the tensor, and the object that we ask


class Scratch(Generic[Model]):
    """A model that is written and read many times: where its tensors are is found once."""

    def __init__(self, model: Model, keep: Collection[str] = ()) -> None:
        self.model = model
        self.first = {name: tensor.detach().clone() for name, tensor in model.state_dict().items() if name in keep}
        """The tensors to ``keep``, by their names, as they were when this was made."""
        self._looked = False
        self._passing: list[tuple[Place, Tensor]] = []
        self._parameters, self._buffers = _Held(), _Held()
        for path, module in model.named_modules(remove_duplicate=False):
            prefix, passing = f"{path}." if path else "", module._non_persistent_buffers_set
            for key, _ in module._parameters.items():
                self._parameters.places[prefix + key] = (module._parameters, key)
            for key, tensor in module._buffers.items():
                if key not in passing:
                    self._buffers.places[prefix + key] = (module._buffers, key)
                elif tensor is not None:
                    self._passing.append(((module._buffers, key), tensor.detach().clone()))

    def flatten(self) -> "Scratch[Model]":
        """Move parameters and buffers into one piece of memory each, if nobody can tell. Returns itself.

        Loading and reading are then one copy. Where a tensor is not float32, tied or used by somebody else, in another
        order than the standard one or not on the CPU, they are left where they are.
        """
        self._parameters.flatten()
        self._buffers.flatten()
        return self

    def trained(self) -> list[nn.Parameter]:
        """The parameters themselves, each once."""
        held = (table[key] for table, key in self._parameters.places.values())
        return list({id(parameter): parameter for parameter in held if parameter is not None}.values())

    def parameters(self) -> Mapping[str, Tensor]:
        """The trained tensors, without gradients: the model's own memory, so they change with it."""
        return self._parameters.tensors()

    def buffers(self) -> Mapping[str, Tensor]:
        """The tensors that are kept but not trained, such as BatchNorm's running moments; the model's own memory."""
        return self._buffers.tensors()

    def moved(self) -> list[str]:
        """Tensors that are no longer where they were found: the model has other modules. Looked for once."""
        if self._looked:
            return []
        self._looked, now = True, Scratch(self.model)
        before, after = (each._parameters.places | each._buffers.places for each in (self, now))
        tables = {name: (id(table), id(after[name][0])) for name, (table, _) in before.items() if name in after}
        return sorted((before.keys() ^ after.keys()) | {name for name, (old, new) in tables.items() if old != new})

    def load(self, *groups: Mapping[str, Tensor]) -> Model:
        """Write every tensor, by its name; buffers that no state keeps become what they were at first."""
        pairs = self._parameters.matched(groups) + self._buffers.matched(groups)
        with torch.no_grad():
            torch._foreach_copy_([ours for ours, _ in pairs], [theirs for _, theirs in pairs])
        for (table, key), first in self._passing:
            table[key] = first.clone()
        return self.model


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
