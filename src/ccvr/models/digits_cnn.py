"""A small network for the embedded 8 × 8 digits; it trains in seconds."""

from collections import OrderedDict

from torch import nn

from ccvr.models.blocks import BlockSequential, ConvBlock

MINIMUM = 4


def digits_cnn(image_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """Two convolutions, 64 features."""
    channels = image_shape[0]
    return BlockSequential(
        OrderedDict(
            layer1=ConvBlock(channels, 16, 3, padding=1),
            layer2=ConvBlock(16, 32, 3, padding=1, pool=1),
            flatten=nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten()),
            layer3=nn.Sequential(nn.Linear(512, 64), nn.ReLU()),
            head=nn.Linear(64, num_classes),
        )
    )
