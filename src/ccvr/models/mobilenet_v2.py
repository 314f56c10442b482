"""The paper's MobileNetV2 for CIFAR-100 and CINIC-10 (Luo et al. 2021, appendix; Sandler et al. 2018).

The printed group counts (48, 144, …) do not divide their channels; depthwise means groups = channels. Not printed but
part of MobileNetV2: batch normalisation after every convolution, ReLU6 after all but a block's last 1 × 1.
"""

from collections import OrderedDict

from torch import Tensor, nn

MINIMUM = 8  # three strides of 2

# expansion, output channels, repetitions, stride of the first
BLOCKS = ((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def _convolution(inputs: int, outputs: int, kernel: int, *, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    layer = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    return [layer, nn.BatchNorm2d(outputs)]


class InvertedResidual(nn.Module):
    """Widen by 1 × 1, filter each channel by 3 × 3, narrow by 1 × 1; skip where the shapes agree."""

    def __init__(self, inputs: int, outputs: int, *, expansion: int, stride: int) -> None:
        super().__init__()
        wide = inputs * expansion
        widen = [*_convolution(inputs, wide, 1), nn.ReLU6(inplace=True)] if expansion > 1 else []
        filter_ = [*_convolution(wide, wide, 3, stride=stride, groups=wide), nn.ReLU6(inplace=True)]
        self.layers = nn.Sequential(*widen, *filter_, *_convolution(wide, outputs, 1))
        self.skips = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return x + out if self.skips else out


def mobilenet_v2(image_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """1280 features; global average pooling takes the 4 × 4 map of a 32 × 32 image and any other."""
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    parts["stem"] = nn.Sequential(*_convolution(image_shape[0], 32, 3), nn.ReLU6(inplace=True))
    inputs = 32
    for number, (expansion, outputs, repetitions, stride) in enumerate(BLOCKS, 1):
        rows = []
        for row in range(repetitions):
            rows.append(InvertedResidual(inputs, outputs, expansion=expansion, stride=stride if row == 0 else 1))
            inputs = outputs
        parts[f"block{number}"] = nn.Sequential(*rows)
    parts["last"] = nn.Sequential(*_convolution(320, 1280, 1), nn.ReLU6(inplace=True))
    parts["pool"] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    parts["head"] = nn.Linear(1280, num_classes)
    return nn.Sequential(parts)
