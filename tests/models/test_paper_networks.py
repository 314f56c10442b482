"""The two tables of the paper's appendix, written again."""

import copy
import re

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ccvr.models.mobilenet_v2 import InvertedResidual, mobilenet_v2
from ccvr.models.simple_cnn import simple_cnn

SIMPLE_CNN = """
Conv2d(3, 6, k=(5, 5), s=(1, 1))
ReLU()
MaxPool2d(k=(2, 2))
Conv2d(6, 16, k=(5, 5), s=(1, 1))
ReLU()
MaxPool2d(k=(2, 2))
Linear(400, 120)
ReLU()
Linear(120, 84)
ReLU()
Linear(84, 84)
ReLU()
Linear(84, 256)
Linear(256, 10)
"""

# Convolutions as printed, but for g: depthwise, so as many groups as channels. A bottleneck is a group of lines.
MOBILENET_V2 = """
Conv2d(3, 32, k=(3, 3), s=(1, 1), pad=(1, 1))

Conv2d(32, 32, k=(3, 3), s=(1, 1), pad=(1, 1), g=32)
Conv2d(32, 16, k=(1, 1), s=(1, 1))

Conv2d(16, 96, k=(1, 1), s=(1, 1))
Conv2d(96, 96, k=(3, 3), s=(1, 1), pad=(1, 1), g=96)
Conv2d(96, 24, k=(1, 1), s=(1, 1))

Conv2d(24, 144, k=(1, 1), s=(1, 1))
Conv2d(144, 144, k=(3, 3), s=(1, 1), pad=(1, 1), g=144)
Conv2d(144, 24, k=(1, 1), s=(1, 1))

Conv2d(24, 144, k=(1, 1), s=(1, 1))
Conv2d(144, 144, k=(3, 3), s=(2, 2), pad=(1, 1), g=144)
Conv2d(144, 32, k=(1, 1), s=(1, 1))

Conv2d(32, 192, k=(1, 1), s=(1, 1))                      x2
Conv2d(192, 192, k=(3, 3), s=(1, 1), pad=(1, 1), g=192)
Conv2d(192, 32, k=(1, 1), s=(1, 1))

Conv2d(32, 192, k=(1, 1), s=(1, 1))
Conv2d(192, 192, k=(3, 3), s=(2, 2), pad=(1, 1), g=192)
Conv2d(192, 64, k=(1, 1), s=(1, 1))

Conv2d(64, 384, k=(1, 1), s=(1, 1))                      x3
Conv2d(384, 384, k=(3, 3), s=(1, 1), pad=(1, 1), g=384)
Conv2d(384, 64, k=(1, 1), s=(1, 1))

Conv2d(64, 384, k=(1, 1), s=(1, 1))
Conv2d(384, 384, k=(3, 3), s=(1, 1), pad=(1, 1), g=384)
Conv2d(384, 96, k=(1, 1), s=(1, 1))

Conv2d(96, 576, k=(1, 1), s=(1, 1))                      x2
Conv2d(576, 576, k=(3, 3), s=(1, 1), pad=(1, 1), g=576)
Conv2d(576, 96, k=(1, 1), s=(1, 1))

Conv2d(96, 576, k=(1, 1), s=(1, 1))
Conv2d(576, 576, k=(3, 3), s=(2, 2), pad=(1, 1), g=576)
Conv2d(576, 160, k=(1, 1), s=(1, 1))

Conv2d(160, 960, k=(1, 1), s=(1, 1))                     x2
Conv2d(960, 960, k=(3, 3), s=(1, 1), pad=(1, 1), g=960)
Conv2d(960, 160, k=(1, 1), s=(1, 1))

Conv2d(160, 960, k=(1, 1), s=(1, 1))
Conv2d(960, 960, k=(3, 3), s=(1, 1), pad=(1, 1), g=960)
Conv2d(960, 320, k=(1, 1), s=(1, 1))

Conv2d(320, 1280, k=(1, 1), s=(1, 1))
"""


def pair(value: int | tuple[int, int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else value


def printed(layer: nn.Module) -> str:
    """A layer in the notation of the paper."""
    match layer:
        case nn.Conv2d():
            padding = f", pad={layer.padding}" if layer.padding != (0, 0) else ""
            groups = f", g={layer.groups}" if layer.groups != 1 else ""
            assert layer.dilation == (1, 1)
            return (
                f"Conv2d({layer.in_channels}, {layer.out_channels}, k={layer.kernel_size}, s={layer.stride}"
                f"{padding}{groups})"
            )
        case nn.Linear():
            return f"Linear({layer.in_features}, {layer.out_features})"
        case nn.MaxPool2d():
            assert pair(layer.stride) == pair(layer.kernel_size)
            return f"MaxPool2d(k={pair(layer.kernel_size)})"
        case _:
            return f"{type(layer).__name__}()"


def layers(model: nn.Module, *, without: tuple[type[nn.Module], ...]) -> list[nn.Module]:
    leaves = [module for module in model.modules() if not list(module.children())]
    return [leaf for leaf in leaves if not isinstance(leaf, without)]


def num_parameters(layer: nn.Module) -> int:
    return sum(parameter.numel() for parameter in layer.parameters())


def bottlenecks() -> list[list[str]]:
    rows = []
    for group in MOBILENET_V2.strip().split("\n\n"):
        lines = [re.sub(r"\s+x\d$", "", line) for line in group.splitlines()]
        times = re.search(r" x(\d)$", group, re.MULTILINE)
        rows += [lines] * (int(times[1]) if times else 1)
    return rows


class TestSimpleCnn:
    def test_the_layers_are_the_papers(self) -> None:
        found = layers(simple_cnn((3, 32, 32), 10), without=(nn.Flatten, nn.Identity))
        assert [printed(layer) for layer in found] == SIMPLE_CNN.split("\n")[1:-1]

    def test_parameters_of_each_layer(self) -> None:
        found = layers(simple_cnn((3, 32, 32), 10), without=(nn.Flatten, nn.Identity, nn.ReLU, nn.MaxPool2d))
        by_hand = [
            3 * 6 * 25 + 6,
            6 * 16 * 25 + 16,
            400 * 120 + 120,
            120 * 84 + 84,
            84 * 84 + 84,
            84 * 256 + 256,
            256 * 10 + 10,
        ]
        assert [num_parameters(layer) for layer in found] == by_hand

    def test_another_size_changes_no_layer_with_weights(self) -> None:
        weights = {name: tensor.shape for name, tensor in simple_cnn((3, 32, 32), 10).state_dict().items()}
        assert {name: tensor.shape for name, tensor in simple_cnn((3, 50, 21), 10).state_dict().items()} == weights

    def test_features_are_signed(self) -> None:
        model = simple_cnn((3, 32, 32), 10)
        z = model[:-1](torch.randn(4, 3, 32, 32))
        assert z.shape == (4, 256)
        assert z.min() < 0 < z.max()


def counting(*size: int, share: float = 1.0) -> Tensor:
    """−1, 0 and 1: sums of their products are exact, so that maxima over different patches tie."""
    return torch.randint(-1, 2, size).double() * (torch.rand(size) < share)


def drawn(kind: str, shape: tuple[int, int, int]) -> Tensor:
    torch.manual_seed(1)
    x = torch.randn(4, *shape).double()
    if kind == "constant areas":
        x[0] = 0.7
        x[1, :, :, shape[2] // 2 :] = -0.3
    return counting(4, *shape) if kind == "ties" else x


def trainable(kind: str, shape: tuple[int, int, int]) -> nn.Module:
    """A simple-cnn in float64, whose convolutions suit the kind of image."""
    torch.manual_seed(0)
    model = simple_cnn(shape, 10).double().to(memory_format=torch.channels_last).train()
    with torch.no_grad():
        for layer in (model.layer1[0], model.layer2[0]):
            if kind == "ties":
                layer.weight.copy_(counting(*layer.weight.shape, share=0.1))
                layer.bias.copy_(counting(*layer.bias.shape))
        if kind.startswith("below zero"):
            (model.layer1 if kind.endswith("first") else model.layer2)[0].bias.fill_(-100)
    return model


def in_order(model: nn.Module) -> nn.Sequential:
    """The same layers, one after the other, in the usual order of memory."""
    layers = copy.deepcopy(dict(model.named_children()))
    plain = nn.Sequential()
    for name, layer in layers.items():
        plain.add_module(name, layer.to(memory_format=torch.contiguous_format))
    return plain.train(model.training)


def close(ours: Tensor, plain: Tensor) -> bool:
    return bool((ours - plain).abs().max() <= 1e-12 * max(1, plain.abs().max()))


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (3, 17, 23)])
class TestSimpleCnnTakesAShorterWay:
    @pytest.mark.parametrize("kind", ["noise", "constant areas", "ties", "below zero first", "below zero second"])
    def test_in_training_to_the_scores_and_gradients_of_its_layers_in_order(
        self, kind: str, shape: tuple[int, int, int]
    ) -> None:
        x, model = drawn(kind, shape), trainable(kind, shape)
        plain = in_order(model)
        for network in (model, plain):
            functional.cross_entropy(network(x), torch.arange(4)).backward()
        assert close(model(x), plain(x))
        expected = dict(plain.named_parameters())
        for name, parameter in model.named_parameters():
            assert close(parameter.grad, expected[name].grad), name
        silent = [name for name, p in model.named_parameters() if name.endswith("0.bias") and not p.grad.any()]
        below = {"below zero first": ["layer1.0.bias"], "below zero second": ["layer1.0.bias", "layer2.0.bias"]}
        assert silent == below.get(kind, []), "the kind of image is what it says"

    def test_that_cannot_be_told_apart_where_maxima_tie(self, shape: tuple[int, int, int]) -> None:
        """The numbers above tie as they should: maxima of more than one patch, above zero, in both layers."""
        z, plain = drawn("ties", shape), in_order(trainable("ties", shape))
        for layer in (plain.layer1, plain.layer2):
            windows = layer[0](z).unfold(2, 2, 2).unfold(3, 2, 2).flatten(4)
            largest = windows.amax(4, keepdim=True)
            assert ((windows == largest).sum(4) > 1).logical_and(largest[..., 0] > 0).sum() > 10
            z = layer(z)

    def test_but_not_in_evaluation(self, shape: tuple[int, int, int]) -> None:
        model = trainable("noise", shape).float().eval()
        plain = in_order(model).to(memory_format=torch.channels_last)
        x, fired = drawn("noise", shape).float(), {}
        for name in ("layer1.2", "layer1", "layer2"):
            model.get_submodule(name).register_forward_hook(lambda _, inputs, z, name=name: fired.update({name: z}))
        with torch.no_grad():
            assert torch.equal(model(x), plain(x))
            first = plain.layer1(x)
            second = plain.layer2(first)
        assert list(fired) == ["layer1.2", "layer1", "layer2"]
        assert torch.equal(fired["layer1.2"], first)
        assert torch.equal(fired["layer1"], first)
        assert torch.equal(fired["layer2"], second)


class TestMobileNetV2:
    def test_the_convolutions_are_the_papers(self) -> None:
        model = mobilenet_v2((3, 32, 32), 100)
        convolutions = [printed(layer) for layer in model.modules() if isinstance(layer, nn.Conv2d)]
        assert convolutions == [line for row in bottlenecks() for line in row]
        assert printed(model.head) == "Linear(1280, 100)"

    def test_the_number_of_parameters_is_that_of_the_original(self) -> None:
        # torchvision's MobileNetV2 has 3,504,872 with 1,000 classes; strides and size of the image change none.
        assert num_parameters(mobilenet_v2((3, 32, 32), 1000)) == 3_504_872

    def test_batch_norm_after_every_convolution_and_relu6_but_after_a_bottlenecks_last(self) -> None:
        for block in mobilenet_v2((3, 32, 32), 10).modules():
            if isinstance(block, InvertedResidual):
                kinds = [type(layer) for layer in block.layers]
                triples = len(kinds) // 3
                assert kinds == [nn.Conv2d, nn.BatchNorm2d, nn.ReLU6] * triples + [nn.Conv2d, nn.BatchNorm2d]
        model = mobilenet_v2((3, 32, 32), 10)
        for part in (model.stem, model.last):
            assert [type(layer) for layer in part] == [nn.Conv2d, nn.BatchNorm2d, nn.ReLU6]
        assert all(layer.bias is None for layer in model.modules() if isinstance(layer, nn.Conv2d))

    def test_skips_are_where_the_caption_says(self) -> None:
        blocks = [block for block in mobilenet_v2((3, 32, 32), 10).modules() if isinstance(block, InvertedResidual)]
        skips = []
        for block in blocks:
            block.eval()
            x = torch.randn(1, next(block.parameters()).shape[1] if len(block.layers) > 5 else 32, 4, 4)
            out, straight = block(x), block.layers(x)
            skips.append(out.shape == x.shape and torch.equal(out, x + straight))
            assert skips[-1] or torch.equal(out, straight)
        # "where the input channels equals to the output channels and the stride … equals 1"
        expected = []
        for row in bottlenecks()[1:-1]:
            inputs, outputs = re.search(r"\((\d+)", row[0]), re.search(r", (\d+)", row[-1])
            expected.append(inputs[1] == outputs[1] and "s=(2, 2)" not in "".join(row))
        assert skips == expected
        assert sum(skips) == 10

    @pytest.mark.parametrize(("side", "map_side"), [(32, 4), (8, 1), (33, 5)])
    def test_the_average_pool_takes_the_whole_map(self, side: int, map_side: int) -> None:
        model = mobilenet_v2((3, side, side), 10).eval()
        with torch.no_grad():
            last = model[:-2](torch.randn(1, 3, side, side))
            assert last.shape == (1, 1280, map_side, map_side)
            assert torch.allclose(model.pool(last), last.mean((2, 3)), atol=1e-6)
