"""The paper's two-convolution network for CIFAR-10 (Luo et al. 2021, appendix, table of the simple CNN)."""

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional

MINIMUM = 16  # 16 → 12 → 6 → 2 → 1
LANES = 8
"""Channels that convolutions handle together: one vector register of 32-bit numbers."""


class SimpleCnn(nn.Sequential):
    """Its layers in order. While it trains, the convolutions take a shorter way to the same numbers.

    Max-pooling first leaves ReLU a quarter of the work, and commutes with it. Zero filters that fill the first
    convolution's channels up to whole registers cost less than the gaps do.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            evaluated: Tensor = super().forward(x)
            return evaluated
        layer1, layer2, *others = self
        first, second = layer1.get_submodule("0"), layer2.get_submodule("0")
        assert isinstance(first, nn.Conv2d)
        assert isinstance(second, nn.Conv2d)
        assert first.bias is not None
        missing = -first.out_channels % LANES
        filters = functional.pad(first.weight, (0, 0, 0, 0, 0, 0, 0, missing))
        z = _pooled(x.contiguous(memory_format=torch.channels_last), filters, functional.pad(first.bias, (0, missing)))
        z = _pooled(z, functional.pad(second.weight, (0, 0, 0, 0, 0, missing)), second.bias)
        for layer in others:
            z = layer(z)
        return z


def _pooled(x: Tensor, filters: Tensor, bias: Tensor | None) -> Tensor:
    return functional.relu(functional.max_pool2d(functional.conv2d(x, filters, bias), 2))


def simple_cnn(image_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """Seven layers, 256 features. Inputs other than 32 × 32 are brought to the 5 × 5 map by adaptive pooling."""
    channels, height, width = image_shape
    pool = nn.Identity() if (height, width) == (32, 32) else nn.AdaptiveAvgPool2d(5)
    return SimpleCnn(
        OrderedDict(
            layer1=nn.Sequential(nn.Conv2d(channels, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
            layer2=nn.Sequential(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
            flatten=nn.Sequential(pool, nn.Flatten()),
            layer3=nn.Sequential(nn.Linear(400, 120), nn.ReLU()),
            layer4=nn.Sequential(nn.Linear(120, 84), nn.ReLU()),
            layer5=nn.Sequential(nn.Linear(84, 84), nn.ReLU()),
            layer6=nn.Linear(84, 256),
            head=nn.Linear(256, num_classes),
        )
    )
