"""The paper's two-convolution network for CIFAR-10 (Luo et al. 2021, appendix, table of the simple CNN)."""

from collections import OrderedDict

from torch import nn

MINIMUM = 16  # 16 → 12 → 6 → 2 → 1


def simple_cnn(image_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """Seven layers, 256 features. Inputs other than 32 × 32 are brought to the 5 × 5 map by adaptive pooling."""
    channels, height, width = image_shape
    pool = nn.Identity() if (height, width) == (32, 32) else nn.AdaptiveAvgPool2d(5)
    return nn.Sequential(
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
