"""Models whose layers follow each other: what changes where the neurons of a layer change their order."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ccvr.core.errors import SpecError
from ccvr.kernels.inputs import Inputs, each
from ccvr.models.blocks import use_kernels
from ccvr.models.heads import Head
from ccvr.models.modes import evaluating
from ccvr.models.split import SplitModel
from ccvr.models.state import Tensors

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
ROWS = 8
"""Random samples of which scores are compared."""
TOLERANCE = 1e-3
"""How much scores may differ by rounding, of the largest. Where layers do not follow each other it is about 1."""
REMEDY = "Choose a model whose layers follow each other, such as simple-cnn, or another algorithm."


@dataclass(frozen=True)
class Layer:
    """A convolution or linear layer, with the batch normalisation behind it, by the names of its tensors.

    Neurons are a convolution's output channels, a linear layer's outputs, and the head's classes.
    """

    path: str
    width: int
    """Number of neurons."""
    weight: str
    """[width, inputs, …]"""
    beside: tuple[str, ...] = ()
    """The other parameters, [width] each: biases, and what normalisation learns."""
    buffers: tuple[str, ...] = ()
    """The moments of normalisation, and the number of its batches."""
    reader: str = ""
    """The next layer's weight: behind a flatten it has several inputs in a row for each neuron. The head has none."""

    @property
    def parameters(self) -> tuple[str, ...]:
        return (self.weight, *self.beside)

    @property
    def tensors(self) -> tuple[str, ...]:
        return (*self.parameters, *self.buffers)


Chain = tuple[Layer, ...]


def chain_of(model: SplitModel) -> Chain:
    """The layers of a model in the order in which they run, the head last; found by a forward pass.

    That each one reads the one before it, and nobody else does, is for ``require_chain`` to find out.

    Raises:
        SpecError: a parameter belongs to none of them, or the model does not know what its inputs look like.
    """
    found: list[Layer] = []
    for path in _as_they_run(model):
        module = model.get_submodule(path)
        parameters, buffers = ([f"{path}.{name}" for name in _own(table)] for table in _tables(module))
        if _has_neurons(module):
            weight, *beside = sorted(parameters, key=lambda name: name != f"{path}.weight")
            found.append(Layer(path, len(model.get_parameter(weight)), weight, tuple(beside)))
        elif isinstance(module, _BatchNorm) and found:
            last = found[-1]
            found[-1] = replace(last, beside=(*last.beside, *parameters), buffers=(*last.buffers, *buffers))
    _require_all(model, found)
    return *(replace(layer, reader=after.weight) for layer, after in pairwise(found)), found[-1]


def _as_they_run(model: SplitModel) -> list[str]:
    """The paths of modules that run exactly once in a pass, in that order."""
    if model.example is None:
        raise SpecError("a model whose neurons are matched must know its inputs. Build it with split_model.")
    ran: list[str] = []

    def note(path: str) -> Callable[..., None]:
        return lambda *_: ran.append(path)

    hooks = [module.register_forward_hook(note(path)) for path, module in model.named_modules() if path]
    try:
        with evaluating(model):
            model(model.example)
    finally:
        for hook in hooks:
            hook.remove()
    return [path for path in ran if ran.count(path) == 1]


def _tables(module: nn.Module) -> tuple[Mapping[str, Tensor | None], Mapping[str, Tensor | None]]:
    return module._parameters, module._buffers


def _own(table: Mapping[str, Tensor | None]) -> list[str]:
    return [name for name, tensor in table.items() if tensor is not None]


def _has_neurons(module: nn.Module) -> bool:
    is_plain = isinstance(module, nn.Linear | Head) or (isinstance(module, CONVOLUTIONS) and module.groups == 1)
    return is_plain and module._parameters.get("weight") is not None


def _require_all(model: SplitModel, chain: list[Layer]) -> None:
    """Refuse parameters outside of the chain, also a second name of one that is in it."""
    known = {name for layer in chain for name in layer.parameters}
    for name, _ in model.named_parameters(remove_duplicate=False):
        if name not in known:
            raise SpecError(
                f'the neurons of this model cannot be matched: "{name}" belongs to a {_kind(model, name)}. '
                "Matching takes convolutions without groups, linear layers and batch normalisation behind them, each "
                f"running once and under one name. {REMEDY}"
            )


def _kind(model: SplitModel, parameter: str) -> str:
    module = model.get_submodule(parameter.rpartition(".")[0])
    groups = getattr(module, "groups", 1)
    return type(module).__name__ + (f" of {groups} groups" if groups != 1 else "")


def reordered(tensors: Mapping[str, Tensor], layer: Layer, order: Tensor) -> Tensors:
    """The same with the layer's neurons in another order, and with the next layer reading them in it.

    ``tensors`` are a model's by name. Neuron ``order[i]`` becomes neuron i.
    """
    changed = {name: _taken(tensors[name], order, 0) for name in layer.tensors if tensors[name].dim()}
    if layer.reader:
        changed[layer.reader] = _taken(tensors[layer.reader], order, 1)
    return {**tensors, **changed}


def _taken(tensor: Tensor, order: Tensor, axis: int) -> Tensor:
    """Rows or columns in another order, several in a row together where there are more of them than neurons."""
    order = order.to(tensor.device)
    together: Tensor = tensor.unflatten(axis, (len(order), -1))
    return together.index_select(axis, order).flatten(axis, axis + 1)


def incoming(tensors: Mapping[str, Tensor], layer: Layer) -> Tensor:
    """The weights that each neuron reads with, [width, n]."""
    return tensors[layer.weight].reshape(layer.width, -1)


def biases(tensors: Mapping[str, Tensor], layer: Layer) -> Tensor:
    """Bias and parameters of normalisation of each neuron, [width, n]."""
    parts = [tensors[name].reshape(layer.width, -1) for name in layer.beside]
    return torch.cat(parts, 1) if parts else tensors[layer.weight].new_zeros(layer.width, 0)


def outgoing(tensors: Mapping[str, Tensor], layer: Layer) -> Tensor:
    """The weights with which the next layer's m neurons read each neuron, [width, m, n]."""
    found: Tensor = tensors[layer.reader].unflatten(1, (layer.width, -1))
    return found.flatten(2).transpose(0, 1)


# --- whether the layers follow each other -----------------------------------------------------------------------------


def require_chain(model: SplitModel) -> Chain:
    """The chain of a model, after a trial: neurons in random order must not change the scores of random inputs.

    The trial takes random weights, so that weights that begin at zero hide nothing. Shortcuts and normalisation across
    channels change the scores.

    Raises:
        SpecError: the scores change, or ``chain_of`` finds no chain.
    """
    chain, rng = chain_of(model), torch.Generator().manual_seed(0)
    assert model.example is not None
    trial = copy.deepcopy(model)
    use_kernels(trial, on=False)
    tensors = _random_tensors(trial, chain, rng)
    inputs = _random_inputs(model.example, trial.head.weight.dtype, rng)
    expected = _scores(trial, tensors, inputs)
    for layer in chain[:-1]:
        order = _random_cycle(layer.width, rng)
        if not _fits(tensors, layer) or not _are_close(
            _scores(trial, reordered(tensors, layer, order), inputs), expected
        ):
            raise SpecError(
                f'the neurons of "{layer.path}" cannot be matched: where they change their order, and '
                f'"{layer.reader}" reads them in that order, the model gives other scores. {REMEDY}'
            )
    return chain


def _fits(tensors: Tensors, layer: Layer) -> bool:
    """Whether normalisation and the next layer have as many numbers for each neuron."""
    sizes = [tensors[name].shape[0] for name in layer.tensors if tensors[name].dim()]
    return all(size % layer.width == 0 for size in (*sizes, tensors[layer.reader].shape[1]))


def _random_cycle(number: int, rng: torch.Generator) -> Tensor:
    """A random order in which nobody keeps its place."""
    members = torch.randperm(number, generator=rng)
    return torch.empty_like(members).index_copy_(0, members, members.roll(1))


def _random_tensors(model: SplitModel, chain: Chain, rng: torch.Generator) -> Tensors:
    tensors = model.state_dict()
    for layer in chain:
        weight = tensors[layer.weight]
        drawn = torch.randn(weight.shape, generator=rng) / weight[0].numel() ** 0.5
        tensors[layer.weight] = drawn.to(weight)
        for name in (*layer.beside, *layer.buffers):
            if tensors[name].is_floating_point():
                tensors[name] = (torch.rand(tensors[name].shape, generator=rng) + 0.5).to(tensors[name])
    return tensors


def _random_inputs(example: Inputs, dtype: torch.dtype, rng: torch.Generator) -> Inputs:
    """Random numbers and pixels; other types are zeros, which the model was built with."""

    def drawn(tensor: Tensor) -> Tensor:
        shape = (ROWS, *tensor.shape[1:])
        if tensor.dtype == torch.uint8:
            return torch.randint(256, shape, generator=rng, dtype=torch.uint8)
        if tensor.is_floating_point():
            return torch.randn(shape, generator=rng).to(dtype)
        return torch.zeros(shape, dtype=tensor.dtype)

    return each(drawn, example)


def _scores(model: SplitModel, tensors: Tensors, inputs: Inputs) -> Tensor:
    model.load_state_dict(tensors)
    with evaluating(model):
        scores: Tensor = model(inputs)
    return scores


def _are_close(found: Tensor, expected: Tensor) -> bool:
    return bool((found - expected).abs().max() <= TOLERANCE * expected.abs().max())
