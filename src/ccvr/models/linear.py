"""A linear classifier: features are the inputs themselves."""

from math import prod

from torch import nn


def linear(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """One layer over all numbers of a sample."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), num_classes))
