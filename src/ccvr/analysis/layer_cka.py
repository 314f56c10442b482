"""Linear CKA between several models, layer by layer, on the same samples."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ccvr.analysis.cka import (
    MAX_FEATURES,
    MAX_GRAM_SAMPLES,
    Squares,
    alignments,
    all_pairs,
    centred_gram,
    cross_square,
)
from ccvr.analysis.layers import layer_outputs
from ccvr.core.errors import AnalysisError
from ccvr.core.machine import memory as machine_memory
from ccvr.kernels.inputs import Inputs, num_rows, rows_of

BATCH = 500
MEMORY = 2**32
"""Bytes of the features that are held at once; on a small machine a quarter of what it has."""
WIDE_MEMORY = 2**30
"""Bytes of one model's features of a wide layer; the same everywhere, for the samples depend on it."""


@dataclass(frozen=True)
class LayerCka:
    """How alike K models are in one layer of n numbers: cka [K, K] in float64, on these ``samples`` [N]."""

    layer: str
    width: int
    cka: Tensor
    samples: Tensor

    @property
    def mean(self) -> float:
        """The mean over pairs of different models."""
        i, j = torch.triu_indices(len(self.cka), len(self.cka), offset=1)
        return self.cka[i, j].mean().item()


def layer_cka(
    models: Sequence[nn.Module],
    inputs: Inputs,
    layers: Sequence[str],
    *,
    rng: torch.Generator,
    memory: int | None = None,
) -> list[LayerCka]:
    """The alignment of K models in each layer on inputs [N, …]; of wide layers on a sample that ``rng`` draws.

    Every model passes over the inputs once, if all models' features take no more than ``memory`` bytes, and once more
    over the sample of each wide layer. Otherwise some models are held while the rest passes by, then the next ones; at
    least two models' features of one layer are in memory.
    """
    number = num_rows(inputs)
    if len(models) < 2 or not number:
        raise AnalysisError(f"{len(models)} models and {number} samples; give at least two models and some samples.")
    widths = _widths(models, rows_of(inputs, slice(2)), layers)
    narrow = {layer: width for layer, width in widths.items() if width <= MAX_FEATURES}
    squares: dict[str, Squares] = {}
    for share in _dealt(narrow, number, _bound() if memory is None else memory):
        squares |= _held_squares(models, inputs, share)
    samples = {layer: torch.arange(number) for layer in layers}
    for layer in (layer for layer in layers if layer not in narrow):
        samples[layer] = choose_samples(number, most=_affordable(widths[layer]), rng=rng)
        squares[layer] = _gram_squares(models, rows_of(inputs, samples[layer]), layer)
    return [LayerCka(name, widths[name], alignments(squares[name], len(models)), samples[name]) for name in layers]


def _bound() -> int:
    there = machine_memory()
    return MEMORY if there is None else min(MEMORY, there // 4)


def choose_samples(num_samples: int, *, most: int = MAX_GRAM_SAMPLES, rng: torch.Generator) -> Tensor:
    """All indices, or ``most`` of them at random, ascending."""
    return torch.randperm(num_samples, generator=rng)[:most].sort().values


def _affordable(width: int) -> int:
    return max(2, min(MAX_GRAM_SAMPLES, WIDE_MEMORY // (4 * width)))


def _widths(models: Sequence[nn.Module], example: Inputs, layers: Sequence[str]) -> dict[str, int]:
    """The most numbers that one of the models gives in each layer."""
    widths = dict.fromkeys(layers, 0)
    for model in models:
        with layer_outputs(model, layers) as outputs:
            widths = {layer: max(widths[layer], z.shape[1]) for layer, z in outputs(example).items()}
    return widths


class Share(NamedTuple):
    """Layers whose features are found in one pass, and how many models' features of them memory has room for."""

    layers: list[str]
    room: int


def _dealt(widths: Mapping[str, int], num_samples: int, memory: int) -> Iterator[Share]:
    """As many layers at once as leave room for two models; beside features, one product of d² numbers is held."""
    layers: list[str] = []
    room = 2
    for layer in widths:
        more = _room([widths[name] for name in [*layers, layer]], num_samples, memory)
        if layers and more < 2:
            yield Share(layers, room)
            layers = []
            more = _room([widths[layer]], num_samples, memory)
        layers, room = [*layers, layer], max(2, more)
    if layers:
        yield Share(layers, room)


def _room(widths: Sequence[int], num_samples: int, memory: int) -> int:
    return (memory - 8 * max(widths) ** 2) // (4 * num_samples * sum(widths))


def _held_squares(models: Sequence[nn.Module], inputs: Inputs, share: Share) -> dict[str, Squares]:
    """Hold the features of as many models as there is room for, and compare them with one model after the other."""
    squares: dict[str, Squares] = {layer: {} for layer in share.layers}
    first = 0
    while first < len(models):
        last = len(models) if len(models) - first <= share.room else first + share.room - 1
        held: dict[int, dict[str, Tensor]] = {}
        for k in range(first, len(models)):
            now = _features(models[k], inputs, share.layers)
            held |= {k: now} if k < last else {}
            for i, before in held.items():
                for layer in share.layers:
                    squares[layer][i, k] = cross_square(before[layer], now[layer])
        first = last
    return squares


def _features(model: nn.Module, inputs: Inputs, layers: Sequence[str]) -> dict[str, Tensor]:
    with layer_outputs(model, layers) as outputs:
        batches = [{layer: z.cpu() for layer, z in outputs(batch).items()} for batch in _batches(inputs)]
    return {layer: torch.cat([batch.pop(layer) for batch in batches]) for layer in layers}


def _batches(inputs: Inputs) -> Iterator[Inputs]:
    for start in range(0, num_rows(inputs), BATCH):
        yield rows_of(inputs, slice(start, start + BATCH))


def _gram_squares(models: Sequence[nn.Module], inputs: Inputs, layer: str) -> Squares:
    """One model's features at a time; of each a Gram matrix is kept."""
    grams = [centred_gram(_features(model, inputs, [layer])[layer]).view(-1) for model in models]
    return {(i, j): torch.vdot(grams[i], grams[j]).item() for i, j in all_pairs(len(models))}
