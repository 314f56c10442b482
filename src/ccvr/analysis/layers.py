"""What leaves named layers of a model, and which layers to compare."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ccvr.core.errors import AnalysisError
from ccvr.core.tables import suggestion
from ccvr.kernels.inputs import Inputs, call, on
from ccvr.models.find import find_head
from ccvr.models.modes import evaluating
from ccvr.models.simple_cnn import SimpleCnn
from ccvr.models.taps import stages

PAPER_LAYERS = ("layer1.2", "layer2.2", "layer3", "layer4", "layer5", "layer6")
"""The simple CNN's layers before its head, after ReLU and pooling (Luo et al. 2021, appendix)."""
MAX_LAYERS = 7

Outputs = Callable[[Inputs], dict[str, Tensor]]


def cka_layers(model: nn.Module, example: Inputs, *, most: int = MAX_LAYERS) -> tuple[str, ...]:
    """Paths of the layers to compare, the head last: the seven of the simple CNN, or ``most`` of any other model.

    Those are outputs of stages (a layer with parameters and what follows it without any), evenly from first to last.
    ``example`` [B ≥ 2, …] is a batch that the model takes.
    """
    head = find_head(model, example)
    for path, module in model.named_modules():
        if isinstance(module, SimpleCnn):
            return (*(f"{path}.{layer}".lstrip(".") for layer in PAPER_LAYERS), head)
    with evaluating(model):
        paths = [path for path, _ in stages(model, head, example)]
    if len(paths) > most - 1:
        paths = [paths[round(i * (len(paths) - 1) / max(most - 2, 1))] for i in range(most - 1)]
    return (*paths, head)


@contextmanager
def layer_outputs(model: nn.Module, layers: Sequence[str]) -> Iterator[Outputs]:
    """A function x → {layer: output [B, n]}: eval mode, no gradients, all numbers of a sample in one row.

    The model runs as it is, with hooks that are gone afterwards.
    """
    seen: dict[str, Tensor] = {}
    paths = dict(model.named_modules())
    for layer in layers:
        if layer not in paths:
            known = suggestion(layer, filter(None, paths))
            raise AnalysisError(f'the model has no layer "{layer}".{known}')

    def keep(layer: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: tuple[Any, ...], output: object) -> None:
            if not isinstance(output, Tensor) or output.dim() < 2:
                raise AnalysisError(f'the layer "{layer}" gives no tensor [B, …]. Choose another layer.')
            if layer in seen:
                raise AnalysisError(f'the layer "{layer}" is used twice in one pass. Choose one that is used once.')
            seen[layer] = output.flatten(1).clone()  # now: what follows may work in place

        return hook

    hooks = [paths[layer].register_forward_hook(keep(layer)) for layer in layers]

    def outputs(x: Inputs) -> dict[str, Tensor]:
        seen.clear()
        with evaluating(model):
            call(model, on(_device(model), x))
        for layer in layers:
            if layer not in seen:
                raise AnalysisError(f'the model did not reach the layer "{layer}" in this pass. Choose another layer.')
        return {layer: seen[layer] for layer in layers}

    try:
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()


def _device(model: nn.Module) -> torch.device:
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
