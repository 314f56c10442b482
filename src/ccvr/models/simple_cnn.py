"""The paper's two-convolution network for CIFAR-10 (Luo et al. 2021, appendix, table of the simple CNN)."""

from collections import OrderedDict

from torch import nn

from ccvr.models.blocks import BlockSequential, ConvBlock

MINIMUM = 16  # 16 → 12 → 6 → 2 → 1


class SimpleCnn(BlockSequential):
    """Its layers in order, under the names that the paper's figures use."""


def simple_cnn(image_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """Seven layers, 256 features. Inputs other than 32 × 32 are brought to the 5 × 5 map by adaptive pooling."""
    channels, height, width = image_shape
    pool = nn.Identity() if (height, width) == (32, 32) else nn.AdaptiveAvgPool2d(5)
    return SimpleCnn(
        OrderedDict(
            layer1=ConvBlock(channels, 6, 5),
            layer2=ConvBlock(6, 16, 5),
            flatten=nn.Sequential(pool, nn.Flatten()),
            layer3=nn.Sequential(nn.Linear(400, 120), nn.ReLU()),
            layer4=nn.Sequential(nn.Linear(120, 84), nn.ReLU()),
            layer5=nn.Sequential(nn.Linear(84, 84), nn.ReLU()),
            layer6=nn.Linear(84, 256),
            head=nn.Linear(256, num_classes),
        )
    )
