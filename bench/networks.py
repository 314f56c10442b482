"""Networks that some algorithms ask for: linear layers alone, and convolutions with batch normalisation.

ccvr compare cifar10-a0.1 --algorithms fedavg pfnm fedma --model.name bench.networks:linear_layers
ccvr compare cifar10-a0.1 --algorithms fedavg fedbn --model.name bench.networks:normalised_cnn
"""

import itertools
from math import prod

from torch import nn


def linear_layers(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Two hidden layers of 200 and 100 neurons."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(prod(shape), 200),
        nn.ReLU(),
        nn.Linear(200, 100),
        nn.ReLU(),
        nn.Linear(100, num_classes),
    )


def normalised_cnn(shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """Three convolutions, each with batch normalisation and pooling, and a hidden layer."""
    channels, height, width = shape
    widths = (channels, 8, 16, 32)
    blocks = [
        layer
        for before, after in itertools.pairwise(widths)
        for layer in (nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2))
    ]
    features = widths[-1] * (height // 8) * (width // 8)
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(features, 128), nn.ReLU(), nn.Linear(128, num_classes))
