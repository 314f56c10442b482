"""A small network for the embedded 8 × 8 digits; it trains in seconds."""

from collections import OrderedDict

from torch import nn

MINIMUM = 4


def digits_cnn(image_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """Two convolutions, 64 features."""
    channels = image_shape[0]
    return nn.Sequential(
        OrderedDict(
            layer1=nn.Sequential(nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            layer2=nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()),
            flatten=nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten()),
            layer3=nn.Sequential(nn.Linear(512, 64), nn.ReLU()),
            head=nn.Linear(64, num_classes),
        )
    )
