"""What a model reads: one tensor [B, …], or several by name."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Inputs = Tensor | Mapping[str, Tensor]


def each(function: Callable[[Tensor], Tensor], inputs: Inputs) -> Inputs:
    """The function of every tensor.

    Example:
    >>> each(len, {"ids": torch.zeros(2, 5), "mask": torch.ones(2, 5)})
    {'ids': 2, 'mask': 2}
    """
    if isinstance(inputs, Mapping):
        return {name: function(tensor) for name, tensor in inputs.items()}
    return function(inputs)


def tensors_of(inputs: Inputs) -> dict[str, Tensor]:
    """Every tensor by its name; a single one has none."""
    return dict(inputs) if isinstance(inputs, Mapping) else {"": inputs}


def from_tensors(tensors: Mapping[str, Tensor]) -> Inputs:
    """The inputs of ``tensors_of``."""
    return tensors.get("", tensors)


def rows_of(inputs: Inputs, rows: Tensor | slice) -> Inputs:
    """Some samples, by their indices or as a slice.

    Example:
    >>> rows_of(torch.arange(5), slice(2))
    tensor([0, 1])
    """
    return each(lambda tensor: tensor[rows] if isinstance(rows, slice) else tensor.index_select(0, rows), inputs)


def on(device: torch.device | str, inputs: Inputs) -> Inputs:
    """The same on a device."""
    return each(lambda tensor: tensor.to(device), inputs)


def num_rows(inputs: Inputs) -> int:
    """How many samples there are."""
    return min((len(tensor) for tensor in tensors_of(inputs).values()), default=0)


def call(model: Callable[..., Any], inputs: Any) -> Any:
    """What a model makes of inputs; of several it takes each under its name."""
    return model(**inputs) if isinstance(inputs, Mapping) else model(inputs)


def described(inputs: Inputs) -> str:
    """Types and shapes, for messages.

    Example:
    >>> described(torch.zeros(2, 5))
    'float32 [2, 5]'
    """
    words = {name: f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}" for name, t in tensors_of(inputs).items()}
    return ", ".join(f"{name}: {word}" if name else word for name, word in words.items())
