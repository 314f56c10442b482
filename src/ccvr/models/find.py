"""Find the head of any model: the nn.Linear (or the head of ours) whose output is the model's output."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import NamedTuple

from torch import Tensor, nn

from ccvr.core.errors import ModelError
from ccvr.kernels.inputs import Inputs
from ccvr.models.heads import Head
from ccvr.models.modes import evaluating
from ccvr.models.passes import device_of, outputs_of
from ccvr.models.settings import standard_settings

REMEDY = 'Name the head: model.head in a spec, head="path" in a call.'


class Call(NamedTuple):
    """One use of a linear layer, with the output's version: an in-place change afterwards raises it."""

    entered: Tensor
    left: Tensor
    version: int


Calls = dict[str, list[Call]]


def find_head(model: nn.Module, example: Inputs, path: str = "") -> str:
    """The path of the head in ``model``, found by a forward pass of ``example``; ``path`` names it instead.

    The pass runs in eval mode without gradients; the model is left as it was.
    """
    calls, output = _record_linears(model, example)
    if path:
        _require_linear(model, path)
        found = path
    else:
        found = _whose_output(calls, output)
    if len(calls[found]) != 1:
        uses = len(calls[found])
        raise ModelError(f'the head "{found}" is used {uses} times in one pass; it must be used once. {REMEDY}')
    shape = list(calls[found][0].entered.shape)
    if len(shape) != 2:
        raise ModelError(f'the input of the head "{found}" has shape {shape}; it must be [B, d]. {REMEDY}')
    return found


def find_head_by_width(model: nn.Module, num_classes: int, path: str = "") -> str:
    """The path of the one linear layer that scores so many classes, without a forward pass; ``path`` names it instead.

    Raises:
        ModelError: there is no such layer, there are several, or the named one scores another number of classes.
    """
    if path:
        _require_linear(model, path)
    widths = {name: len(layer.get_parameter("weight")) for name, layer in _linears(model).items()}
    fitting = [name for name, width in widths.items() if width == num_classes and path in ("", name)]
    if len(fitting) != 1:
        known = ", ".join(f'"{name}" {width}' for name, width in widths.items()) or "there are none"
        raise ModelError(
            f"{len(fitting) or 'no'} linear layer{'s' * (len(fitting) > 1)} can be the head of {num_classes} classes "
            f"(outputs of linear layers: {known}). {REMEDY}"
        )
    return fitting[0]


def _record_linears(model: nn.Module, example: Inputs) -> tuple[Calls, object]:
    calls: Calls = defaultdict(list)

    def remember(name: str) -> Callable[..., None]:
        return lambda module, inputs, output: calls[name].append(Call(inputs[0], output, output._version))

    with standard_settings(device_of(model)), evaluating(model), ExitStack() as hooks:
        for name, module in _linears(model).items():
            hooks.callback(module.register_forward_hook(remember(name)).remove)
        return calls, outputs_of(model, example)


def _linears(model: nn.Module) -> dict[str, nn.Module]:
    """Linear layers and heads by path; not those layers that compute something else with their weights."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, Head) or (isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward)
    }


def _whose_output(calls: Calls, output: object) -> str:
    outputs = output if isinstance(output, tuple | list) else [output]
    heads = [name for name, seen in calls.items() if any(_is_output(call, outputs) for call in seen)]
    if not heads:
        layers = ", ".join(calls) or "there are none"
        raise ModelError(f"no nn.Linear's output is the model's output (linear layers: {layers}). {REMEDY}")
    if len(heads) > 1 or not isinstance(output, Tensor):
        raise ModelError(f"the model returns several things, with the heads {', '.join(heads)} among them. {REMEDY}")
    return heads[0]


def _is_output(call: Call, outputs: Iterable[object]) -> bool:
    return any(call.left is output for output in outputs) and call.left._version == call.version


def _require_linear(model: nn.Module, path: str) -> None:
    layers = _linears(model)
    if path not in layers:
        known = ", ".join(layers) or "none"
        raise ModelError(f'the head "{path}" is not an nn.Linear of this model. Its linear layers: {known}.')
