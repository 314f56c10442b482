"""One batch through a model of the user's: what is wrong with either is one line."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ccvr.core.arguments import require_iterable, require_whole
from ccvr.core.errors import CcvrError, DataError, ModelError
from ccvr.kernels.inputs import Inputs, call, described, tensors_of

MAX_CLASSES = 10**6


def pair_of(batch: object) -> tuple[Inputs, Tensor]:
    """A batch as inputs and labels.

    Raises:
        DataError: it is no such pair, or holds no numbers.
    """
    match batch:
        case (Tensor() | Mapping() as inputs, Tensor() as labels) if _are_tensors(inputs):
            if any(tensor.is_meta for tensor in (labels, *tensors_of(inputs).values())):
                raise DataError("a batch is on the meta device, which holds no numbers. Give batches with numbers.")
            return inputs, labels
    got = type(batch).__name__
    raise DataError(f"expected batches of two tensors (inputs, labels), got {got}. Give batches as such pairs.")


def _are_tensors(inputs: Inputs) -> bool:
    tensors = tensors_of(inputs)
    return bool(tensors) and all(isinstance(tensor, Tensor) for tensor in tensors.values())


def outputs_of(model: nn.Module, inputs: Inputs) -> Any:
    """What the model returns.

    Raises:
        ModelError: it fails on these inputs.
    """
    try:
        return call(model, inputs)
    except CcvrError:
        raise
    except Exception as error:  # a model of the user's may raise anything
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(f"the model fails on inputs {described(inputs)}: {reason}") from error


def layer_at(model: nn.Module, path: str) -> nn.Module:
    """The layer at a path.

    Raises:
        ModelError: there is none.
    """
    try:
        return model.get_submodule(path)
    except AttributeError as error:
        raise ModelError(f'the model has no layer "{path}".') from error


def device_of(model: nn.Module) -> torch.device:
    """Where the model's parameters are."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def require_model(model: object) -> None:
    """Refuse what is no model, and a model without numbers.

    Raises:
        ModelError: which it is.
    """
    if not isinstance(model, nn.Module):
        raise ModelError(f"the model is a {type(model).__name__}; give an nn.Module.")
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        raise ModelError("the model is on the meta device, which holds no numbers. Load its weights first.")


def require_batches(batches: object) -> None:
    """Refuse what cannot hold batches.

    Raises:
        UsageError: it is nothing to iterate over.
    """
    require_iterable("batches", batches, "an iterable of pairs (inputs, labels)")


def require_classes(num_classes: object) -> None:
    """Refuse what is no number of classes.

    Raises:
        UsageError: the number is not a whole one from 1 to a million.
    """
    require_whole("num_classes", num_classes, 1, MAX_CLASSES)
