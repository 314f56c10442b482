"""Blocks give torch's numbers whoever runs them, and torch runs whatever the kernels do not take."""

import copy
import doctest
import warnings
from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ccvr.kernels.crops import Crops
from ccvr.kernels.lanes import Lanes
from ccvr.kernels.machine import this_machine
from ccvr.models import compiled as module
from ccvr.models.blocks import BlockSequential, ConvBlock, run_blocks, unsuited_block, use_kernels
from ccvr.models.build import ModelSpec, build_model
from ccvr.models.digits_cnn import digits_cnn
from ccvr.models.modes import evaluating
from ccvr.models.preprocess import Normalize
from ccvr.models.simple_cnn import simple_cnn
from ccvr.models.split import SplitModel, split_model
from ccvr.models.taps import find_taps, reading

NETWORKS = {"simple-cnn": (simple_cnn, (3, 32, 32)), "digits-cnn": (digits_cnn, (1, 8, 8))}


def network(name: str, *, kernels: bool = False) -> nn.Module:
    build, shape = NETWORKS[name]
    torch.manual_seed(0)
    return use_kernels(build(shape, 10), kernels)


def images(name: str, number: int = 13) -> Tensor:
    torch.manual_seed(number)
    return torch.randn(number, *NETWORKS[name][1])


def close(ours: Tensor, expected: Tensor, tolerance: float = 1e-5) -> bool:
    return bool((ours - expected).abs().max() <= tolerance * expected.abs().max())


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images went through the kernels, pass by pass."""
    seen: list[int] = []
    apply = module.Compiled.apply

    def counted(blocks, number, *tensors):
        seen.append(number)
        return apply(blocks, number, *tensors)

    monkeypatch.setattr(module.Compiled, "apply", counted)
    return seen


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("number", [1, 8, 64, 65])
def test_scores_loss_and_gradients_are_torchs(name, number, compiled):
    x, labels = images(name, number), torch.arange(number) % 10
    ours, plain = network(name, kernels=True), network(name).double()
    losses = [
        functional.cross_entropy(net(x.to(kind)), labels) for net, kind in ((ours, x.dtype), (plain, torch.double))
    ]
    for loss in losses:
        loss.backward()
    assert len(compiled) == 1
    assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-5)
    for (path, mine), theirs in zip(ours.named_parameters(), plain.parameters(), strict=True):
        assert close(mine.grad, theirs.grad), path


@pytest.mark.parametrize("name", NETWORKS)
def test_evaluation_goes_through_the_kernels(name, compiled):
    ours, plain, x = network(name, kernels=True).eval(), network(name).eval(), images(name)
    with torch.no_grad():
        assert close(ours(x), plain(x))
    assert len(compiled) == 1


def test_inputs_have_gradients():
    x = images("simple-cnn").requires_grad_()
    mine, theirs = (
        torch.autograd.grad(network("simple-cnn", kernels=kernels)(x).square().sum(), x)[0] for kernels in (True, False)
    )
    assert close(mine, theirs)


def test_gradients_can_be_differentiated_again():
    """As methods that differentiate through a step do."""
    found = []
    for kernels in (True, False):
        net, x = network("digits-cnn", kernels=kernels), images("digits-cnn")
        (first,) = torch.autograd.grad(net(x).square().sum(), net.layer1[0].weight, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), [net.layer1[0].weight, net.layer2[0].bias]))
    assert all(close(*pair, 1e-4) for pair in zip(*found, strict=True))


def test_uint8_goes_straight_into_the_lanes(compiled):
    spec, statistics = ModelSpec("simple-cnn"), {"preprocess": Normalize([0.4] * 3, [0.2] * 3)}
    ours, plain = (
        build_model(
            spec, torch.zeros(2, 3, 32, 32, dtype=torch.uint8), 10, **statistics, kernels=kernels, seed=0
        ).eval()
        for kernels in (True, False)
    )
    pixels = torch.randint(0, 256, (21, 3, 32, 32), dtype=torch.uint8)
    with torch.no_grad():
        expected = plain(pixels)
        assert close(ours(pixels), expected)
        assert close(ours.head(ours.features(ours.inputs(Crops.of(pixels)))), expected)
        assert close(ours(plain.normalize(pixels)), expected), "floating-point images are normalised already"
        assert len(compiled) == 3
        assert ours(pixels[:0]).shape == (0, 10)
        ours.normalize.register_forward_hook(lambda *_: None)
        assert close(ours(pixels), expected)
    assert isinstance(ours.inputs(pixels), Tensor), "somebody listens to the normalisation"


def test_a_model_that_came_to_a_machine_without_the_extra_is_torchs(monkeypatch, compiled):
    spec, statistics = ModelSpec("digits-cnn"), {"preprocess": Normalize([0.4], [0.2])}
    model = build_model(spec, torch.zeros(2, 1, 8, 8, dtype=torch.uint8), 10, **statistics, kernels=True, seed=0).eval()
    pixels = torch.randint(0, 256, (5, 1, 8, 8), dtype=torch.uint8)
    expected = model(pixels)
    monkeypatch.setattr(module, "is_installed", lambda: False)
    assert close(model(pixels), expected)
    assert len(compiled) == 1


# --- torch does the rest ----------------------------------------------------------------------------------------------


def listening(path: str):
    def change(net: nn.Module) -> None:
        net.get_submodule(path).register_forward_hook(lambda *_: None)

    return change


def replacing(path: str, layer: nn.Module):
    def change(net: nn.Module) -> None:
        parent, _, leaf = path.rpartition(".")
        setattr(net.get_submodule(parent), leaf, layer)

    return change


def cut(block: ConvBlock, number: int) -> ConvBlock:
    """A block that has lost its last layers."""
    while len(block) > number:
        del block[-1]
    return block


NOT_COMPILED = {
    "a hook inside": listening("layer1.2"),
    "a hook on a convolution": listening("layer2.0"),
    "float64": lambda net: net.double(),
    "another activation": replacing("layer1.1", nn.LeakyReLU()),
    "stride": replacing("layer1.0", nn.Conv2d(3, 6, 5, stride=2, padding=16)),
    "dilation": replacing("layer1.0", nn.Conv2d(3, 6, 3, dilation=2)),
    "groups": replacing("layer2.0", nn.Conv2d(6, 16, 5, groups=2)),
    "an even kernel": replacing("layer1.0", nn.Conv2d(3, 6, 4)),
    "a long kernel": replacing("layer1.0", nn.Conv2d(3, 6, (3, 5))),
    "a huge kernel": replacing("layer1.0", nn.Conv2d(3, 6, 13, padding=4)),
    "reflection": replacing("layer1.0", nn.Conv2d(3, 6, 5, padding=1, padding_mode="reflect")),
    "a padding by name": replacing("layer1.0", nn.Conv2d(3, 6, 5, padding="same")),
    "no bias": replacing("layer1.0", nn.Conv2d(3, 6, 5, bias=False)),
    "another pooling": replacing("layer1.2", nn.MaxPool2d(2, stride=1)),
    "pooling that rounds up": replacing("layer1.2", nn.MaxPool2d(2, ceil_mode=True)),
    "only a convolution": lambda net: setattr(net, "layer1", cut(net.layer1, 1)),
    "pooling twice": lambda net: net.layer1.append(nn.MaxPool2d(2)),
    "a list for a size": replacing("layer1.2", nn.MaxPool2d([3, 3])),
    "a normed weight": lambda net: nn.utils.parametrizations.weight_norm(net.layer1[0]),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("case", NOT_COMPILED)
def test_what_does_not_suit_is_torchs(case, training, compiled):
    net = network("simple-cnn", kernels=True)
    net.flatten[0] = nn.AdaptiveAvgPool2d(5)
    NOT_COMPILED[case](net)
    net.train(training)
    x = images("simple-cnn").to(net.head.weight.dtype)
    plain = nn.Sequential(
        *copy.deepcopy([layer for part in net for layer in (part if len(list(part.children())) else [part])])
    )
    assert torch.allclose(net(x), plain(x), atol=1e-5)
    net(x).sum().backward()
    assert len(compiled) == (2 if "hook" in case else 0), "a hook is on one block of two, and there were two passes"
    assert (unsuited_block(net) is None) is ("hook" in case)


def test_a_hook_on_a_block_hears_it_and_the_kernels_run_it(compiled):
    net, heard = network("simple-cnn", kernels=True), []
    for path in ("layer1", "layer2"):
        net.get_submodule(path).register_forward_hook(lambda _, x, z: heard.append((x[0].shape, z.shape)))
    net(images("simple-cnn", 4))
    assert heard == [((4, 3, 32, 32), (4, 6, 14, 14)), ((4, 6, 14, 14), (4, 16, 5, 5))]
    assert len(compiled) == 2, "each by itself"


def test_images_that_are_too_small_are_torchs_error(compiled):
    net = use_kernels(BlockSequential(ConvBlock(1, 2, 5), ConvBlock(2, 2, 5)))
    for x in (torch.randn(2, 1, 8, 8), torch.randn(2, 3, 32, 32), torch.randn(3, 8)):
        with pytest.raises(RuntimeError):
            net(x)
    assert not compiled


def test_a_block_that_lost_its_pooling_does_not_pool(compiled):
    net = use_kernels(cut(ConvBlock(3, 6, 5), 2))
    plain, x = nn.Sequential(*copy.deepcopy(net)), torch.randn(5, 3, 12, 12)
    for training in (True, False):
        assert close(net.train(training)(x), plain(x))
    assert len(compiled) == 2
    net[0].padding = (-1, -1)
    with pytest.raises(RuntimeError, match="negative padding"):
        net(x)


@pytest.mark.parametrize("side", [5, 9, 32, 33])
def test_odd_sizes_are_pooled_as_torch_does(side, compiled):
    net = BlockSequential(ConvBlock(2, 3, 3, padding=1), ConvBlock(3, 5, 1), ConvBlock(5, 4, 3, padding=2, pool=1))
    x = torch.randn(10, 2, side, side + 1)
    assert close(use_kernels(copy.deepcopy(net))(x), net(x))
    assert len(compiled) == 1


def test_a_batch_too_large_for_32_bits_is_torchs(monkeypatch, compiled):
    monkeypatch.setattr(module, "MAX_NUMBERS", 8 * 3 * 32 * 32)
    net, x = network("simple-cnn", kernels=True), images("simple-cnn")
    assert close(net(x), network("simple-cnn")(x))
    assert not compiled


def test_under_autocast_torch_runs_and_casts(compiled):
    net, x = network("digits-cnn", kernels=True), images("digits-cnn", 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert net(x).dtype == torch.bfloat16
    assert not compiled
    assert net(x).dtype == torch.float32
    assert compiled


def test_weights_of_one_channel_lie_as_the_kernels_gradients_do():
    """To torch they are contiguous in either order of strides; SGD would copy the gradient in every step."""
    weight = network("digits-cnn", kernels=True).layer1[0].weight
    assert weight.stride() == torch.empty(weight.shape).stride()
    by_torch = network("digits-cnn").layer1[0].weight
    assert (
        by_torch.stride()
        == torch.empty(weight.shape)
        .to(memory_format=torch.channels_last)
        .clone(memory_format=torch.channels_last)
        .stride()
    )


def test_stand_ins_that_torch_transforms_or_traces_are_torchs(compiled):
    net, x = network("digits-cnn", kernels=True).eval(), images("digits-cnn", 4)
    plain = network("digits-cnn").eval()
    parameters = dict(net.named_parameters())

    def loss(weights: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(net, weights, (x,)).square().sum()

    found = torch.func.grad(loss)(parameters)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch would rather have it exported
        traced = torch.jit.trace(net, x, check_trace=False)  # a check runs the model itself
    exported = torch.export.export(net, (x,)).module()
    assert not compiled
    expected = torch.autograd.grad(plain(x).square().sum(), list(plain.parameters()))
    assert all(close(a, b, 1e-4) for a, b in zip(found.values(), expected, strict=True))
    assert close(traced(x), plain(x))
    assert close(exported(x), plain(x))


def test_half_of_the_blocks_may_be_torchs(compiled):
    """Blocks that follow each other run as one only if all of them suit."""
    net = network("simple-cnn", kernels=True)
    net.layer2.kernels = False
    assert close(net(images("simple-cnn")), network("simple-cnn")(images("simple-cnn")))
    assert not compiled


class Twice(ConvBlock):
    def forward(self, x):
        return 2 * super().forward(x)


class Shifted(BlockSequential):
    def forward(self, x):
        return super().forward(x + 1)


class Tripled(Normalize):
    def forward(self, x):
        return 3 * super().forward(x)


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_a_users_own_forward_is_called(training, kernels):
    torch.manual_seed(0)
    x = torch.randn(5, 3, 20, 20)
    own = use_kernels(BlockSequential(Twice(3, 6, 5), ConvBlock(6, 4, 3)), kernels).train(training)
    expected = nn.Sequential(*own[1])(2 * nn.Sequential(*own[0])(x))
    assert close(own(x), expected)
    pixels = torch.randint(0, 256, (4, 3, 20, 20), dtype=torch.uint8)
    for network_, normalize in (
        (Shifted(ConvBlock(3, 6, 5), nn.Flatten(), nn.Linear(6 * 64, 3)), Normalize([0.4] * 3, [0.3] * 3)),
        (BlockSequential(ConvBlock(3, 6, 5), nn.Flatten(), nn.Linear(6 * 64, 3)), Tripled([0.4] * 3, [0.3] * 3)),
    ):
        plain = copy.deepcopy(network_)
        model = use_kernels(split_model(network_, normalize, pixels), kernels).train(training)
        assert close(model(pixels), plain(normalize(pixels)))


def scaled(block: nn.Module, x: Tensor) -> Tensor:
    return block(x * block[0].weight.sum())


@pytest.mark.parametrize(
    "apply", [lambda block, x: BlockSequential(block, block)(x), lambda block, x: block(block(x)), scaled]
)
def test_second_derivatives_do_not_count_a_path_twice(apply):
    """Where an input comes from the weights itself."""
    found = []
    for kernels in (True, False):
        torch.manual_seed(0)
        block = use_kernels(ConvBlock(3, 3, 3, padding=1), kernels)
        out = apply(block, torch.randn(4, 3, 16, 16))
        found.append(torch.autograd.grad(out.square().sum(), block[0].weight, create_graph=True)[0].detach())
    assert close(*found)


def test_hooks_for_all_modules_are_called(compiled):
    net, x, seen = network("simple-cnn", kernels=True), images("simple-cnn"), []
    hook = nn.modules.module.register_module_forward_hook(lambda module_, *_: seen.append(type(module_)))
    try:
        net(x)
    finally:
        hook.remove()
    assert seen.count(nn.Conv2d) == 2
    assert not compiled


def test_the_split_model_can_be_transformed_and_exported(compiled):
    spec, statistics = ModelSpec("digits-cnn"), {"preprocess": Normalize([0.4], [0.2])}
    model = build_model(spec, torch.zeros(2, 1, 8, 8, dtype=torch.uint8), 10, **statistics, kernels=True, seed=0).eval()
    pixels = torch.randint(0, 256, (5, 1, 8, 8), dtype=torch.uint8)
    parameters = dict(model.named_parameters())
    found = torch.func.grad(lambda p: torch.func.functional_call(model, p, (pixels,)).sum())(parameters)
    assert found["head.bias"].tolist() == [5.0] * 10
    assert not compiled


def test_one_image_without_a_batch_and_strange_tensors_are_torchs(compiled):
    net = use_kernels(ConvBlock(3, 6, 5))
    plain = copy.deepcopy(net)
    assert net(torch.randn(3, 12, 12)).shape == (6, 4, 4)
    net[0].weight, net[0].bias = (nn.Parameter(t[:2].detach().clone()) for t in (net[0].weight, net[0].bias))
    assert net(torch.randn(2, 3, 12, 12)).shape == (2, 2, 4, 4), "weights that were cut down"
    assert not compiled
    strided = torch.zeros(6, 2)
    strided[:, 0] = plain[0].bias.detach()
    bias, x = plain[0].bias, torch.randn(2, 3, 12, 12)
    expected = use_kernels(copy.deepcopy(plain), False)(x)
    plain[0].bias = nn.Parameter(strided[:, 0])
    assert close(use_kernels(plain)(x), expected)
    assert torch.equal(plain[0].bias, bias)
    assert len(compiled) == 1


# --- around the blocks ------------------------------------------------------------------------------------------------


def test_taps_read_what_leaves_their_layers(compiled):
    model = build_model(
        ModelSpec("simple-cnn"),
        torch.zeros(2, 3, 32, 32, dtype=torch.uint8),
        10,
        preprocess=Normalize([0.5] * 3, [0.2] * 3),
        kernels=True,
        seed=0,
    )
    plain = build_model(
        ModelSpec("simple-cnn"),
        torch.zeros(2, 3, 32, 32, dtype=torch.uint8),
        10,
        preprocess=Normalize([0.5] * 3, [0.2] * 3),
        seed=0,
    )
    pixels = torch.randint(0, 256, (9, 3, 32, 32), dtype=torch.uint8)
    found = []
    for each in (model, plain):
        with evaluating(each):
            taps = find_taps(each, "head", pixels, "auto")
            with reading(each, "head", taps) as features:
                found.append((taps, features(pixels)))
    assert found[0][0] == found[1][0]
    assert close(found[0][1], found[1][1])
    assert len(compiled) == 1, "the second block, which no tap reads"


def test_copies_and_state_dicts_are_those_of_the_layers():
    net = network("simple-cnn", kernels=True)
    assert copy.deepcopy(net).layer1.kernels
    assert not use_kernels(copy.deepcopy(net), False).layer1.kernels
    assert list(net.state_dict()) == list(network("simple-cnn").state_dict())
    assert net.layer1[0].weight.is_contiguous()
    assert net.state_dict()["layer1.0.weight"].shape == (6, 3, 5, 5)


class Own(nn.Module):
    """A user's model: one block alone, two together, something else between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = ConvBlock(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.rest = BlockSequential(OrderedDict(a=ConvBlock(8, 8, 3), b=ConvBlock(8, 12, 3, pool=1), f=nn.Flatten()))
        self.head = nn.Linear(12 * 5 * 5, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rest(self.norm(self.first(x))))


def test_a_model_of_ones_own_holds_the_blocks(compiled):
    torch.manual_seed(0)
    own = Own()
    plain, x = copy.deepcopy(own), torch.randn(11, 3, 32, 32)
    assert unsuited_block(use_kernels(own)) is None
    for net in (own, plain):
        net(x).square().mean().backward()
    assert len(compiled) == 2
    assert all(close(a.grad, b.grad, 1e-4) for a, b in zip(own.parameters(), plain.parameters(), strict=True))


def test_models_without_blocks_have_none_that_suits():
    assert unsuited_block(nn.Sequential(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2))) == ""


def test_a_run_of_blocks_takes_lanes_even_where_torch_runs_it():
    net = network("digits-cnn")
    lanes = Crops.of(torch.randint(0, 256, (5, 1, 8, 8), dtype=torch.uint8)).lanes(torch.ones(1), torch.zeros(1))
    assert close(run_blocks([net.layer1], lanes), net.layer1(lanes.images()))


def test_the_split_model_of_a_user_is_asked_for_nothing_new():
    model = SplitModel(nn.Identity(), nn.Flatten(), nn.Linear(4, 2))  # type: ignore[arg-type]
    assert model.features(torch.ones(3, 2, 2)).shape == (3, 4)


def test_the_examples_in_the_docstrings():
    assert doctest.testmod(module, extraglobs={"torch": torch, "nn": nn}).failed == 0


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("number", [5, 8])
@pytest.mark.parametrize("pool", [1, 2])
def test_a_layer_behind_a_block_may_work_in_place(kernels, number, pool):
    torch.manual_seed(0)
    block = ConvBlock(3, 6, 5, pool=pool)
    ours, plain = BlockSequential(block, nn.ReLU6(inplace=True)), nn.Sequential(copy.deepcopy(block), nn.ReLU6())
    use_kernels(ours, kernels)
    use_kernels(plain, False)
    x = torch.randn(number, 3, 12, 12)
    gradients = []
    for net in (ours.train(), plain.eval()):
        (net(x) * 3).square().sum().backward()
        gradients.append([parameter.grad for parameter in net.parameters()])
    assert all(close(a, b) for a, b in zip(*gradients, strict=True))


def test_groups_that_hold_no_image_have_no_gradient():
    block = use_kernels(ConvBlock(3, 6, 5))
    width = this_machine().lanes
    groups = Lanes.of(torch.randn(3 * width, 3, 12, 12), width).groups.requires_grad_()
    block(Lanes(groups, 3)).sum().backward()
    assert groups.grad is not None
    assert groups.grad.shape == groups.shape
    assert groups.grad[0, ..., :3].any()
    assert not groups.grad[0, ..., 3:].any()
    assert not groups.grad[1:].any()
