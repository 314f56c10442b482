"""A network small enough to write down, six pixels, five features, three classes; an algorithm for any objective."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn

from ccvr.algorithms.algorithm import Algorithm
from ccvr.algorithms.objectives import LocalContext, LocalObjective
from ccvr.algorithms.table import find_algorithm
from ccvr.models.preprocess import Normalize
from ccvr.models.split import split_model

NUM_CLASSES = 3


def small_model(*, clsnorm=False, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, NUM_CLASSES))
    example = torch.zeros(2, 1, 2, 3, dtype=torch.uint8)
    kind = "normed" if clsnorm else "linear"
    return split_model(layers, Normalize([0.4], [0.3]), example, head_kind=kind).double()


def norm_model():
    """A network with batch normalisation, in float32."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, NUM_CLASSES))
    return split_model(layers, Normalize([0.4], [0.3]), torch.zeros(2, 1, 2, 3, dtype=torch.uint8))


def model_for(algorithm):
    """A network that an algorithm of the table can train: fedbn asks for normalisation layers."""
    return norm_model() if algorithm == "fedbn" else small_model()


def with_algorithm(spec, text):
    """The spec with an algorithm; without clsprox where there is no global head that trains."""
    algorithm = find_algorithm(text)
    has_head = algorithm.trains_head and not algorithm.is_private("head.weight")
    return replace(spec, algorithm=text, clsprox=spec.clsprox if has_head else 0.0)


@dataclass(frozen=True)
class Using(Algorithm):
    """FedAvg with an objective."""

    factory: Callable[[LocalContext], LocalObjective]

    def objective(self, context):
        return self.factory(context)
