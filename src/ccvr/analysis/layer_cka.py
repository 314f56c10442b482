"""Linear CKA between several models, layer by layer, on the same samples."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ccvr.analysis.cka import (
    MOST_FEATURES,
    MOST_GRAM_SAMPLES,
    CrossSums,
    Pair,
    Squares,
    alignments,
    all_pairs,
    centred_gram,
)
from ccvr.analysis.layers import layer_outputs
from ccvr.core.errors import AnalysisError

BATCH = 500
MEMORY = 2**30
"""Bytes of the sums that are held at once."""


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
    images: Tensor,
    layers: Sequence[str],
    *,
    rng: torch.Generator,
    memory: int = MEMORY,
) -> list[LayerCka]:
    """The alignment of K models in each layer on images [N, …]; of wide layers on a sample that ``rng`` draws.

    All pairs' products of a layer would be K²/2 d² numbers, so the pairs are dealt to as many passes over the images
    as keep them within ``memory`` (the simple CNN's seven layers and ten models: 0.7 GB, one pass).
    """
    if len(models) < 2 or not len(images):
        raise AnalysisError(f"{len(models)} models and {len(images)} images; give at least two models and some images.")
    widths = _widths(models, images[:2], layers)
    jobs = [(layer, pair) for layer in layers if widths[layer] <= MOST_FEATURES for pair in all_pairs(len(models))]
    squares: dict[str, Squares] = {layer: {} for layer in layers}
    samples = {layer: torch.arange(len(images)) for layer in layers}
    for share in _dealt(jobs, widths, memory):
        for layer, found in _pass(models, images, share).items():
            squares[layer] |= found
    for layer in (layer for layer in layers if widths[layer] > MOST_FEATURES):
        samples[layer] = choose_samples(len(images), most=_affordable(widths[layer], memory), rng=rng)
        squares[layer] = _gram_squares(models, images[samples[layer]], layer)
    return [LayerCka(name, widths[name], alignments(squares[name], len(models)), samples[name]) for name in layers]


def choose_samples(num_samples: int, *, most: int = MOST_GRAM_SAMPLES, rng: torch.Generator) -> Tensor:
    """All indices, or ``most`` of them at random, ascending."""
    return torch.randperm(num_samples, generator=rng)[:most].sort().values


def _affordable(width: int, memory: int) -> int:
    return max(2, min(MOST_GRAM_SAMPLES, memory // (4 * width)))


def _widths(models: Sequence[nn.Module], example: Tensor, layers: Sequence[str]) -> dict[str, int]:
    """The most numbers that one of the models gives in each layer."""
    widths = dict.fromkeys(layers, 0)
    for model in models:
        with layer_outputs(model, layers) as outputs:
            widths = {layer: max(widths[layer], z.shape[1]) for layer, z in outputs(example).items()}
    return widths


Job = tuple[str, Pair]


def _dealt(jobs: Sequence[Job], widths: Mapping[str, int], memory: int) -> Iterator[list[Job]]:
    share: list[Job] = []
    for job in jobs:
        if share and sum(8 * widths[layer] ** 2 for layer, _ in [*share, job]) > memory:
            yield share
            share = []
        share.append(job)
    if share:
        yield share


def _pass(models: Sequence[nn.Module], images: Tensor, jobs: Sequence[Job]) -> dict[str, Squares]:
    layers = list(dict.fromkeys(layer for layer, _ in jobs))
    sums = {layer: CrossSums([pair for name, pair in jobs if name == layer]) for layer in layers}
    with ExitStack() as stack:
        read = {
            k: stack.enter_context(layer_outputs(models[k], layers)) for k in sorted({k for _, p in jobs for k in p})
        }
        for batch in images.split(BATCH):
            outputs = {k: read_one(batch) for k, read_one in read.items()}
            for layer in layers:
                sums[layer].update({k: found[layer].cpu() for k, found in outputs.items()})
    return {layer: sums[layer].squares() for layer in layers}


def _gram_squares(models: Sequence[nn.Module], images: Tensor, layer: str) -> Squares:
    """One model's features at a time; of each a Gram matrix is kept."""
    grams = []
    for model in models:
        with layer_outputs(model, [layer]) as outputs:
            x = torch.cat([outputs(batch)[layer].cpu() for batch in images.split(BATCH)])
        grams.append(centred_gram(x).view(-1))
    return {(i, j): torch.vdot(grams[i], grams[j]).item() for i, j in all_pairs(len(models))}
