"""Neurons in another order are the same function; models for which that does not hold are refused."""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm

from ccvr.core.errors import SpecError
from ccvr.models.blocks import use_kernels
from ccvr.models.build import ModelSpec, build_model
from ccvr.models.chain import biases, chain_of, incoming, outgoing, reordered, require_chain
from ccvr.models.heads import LinearHead
from ccvr.models.preprocess import Normalize
from ccvr.models.split import SplitModel, split_model

IMAGE = (2, 12, 12)


def split(model: nn.Module, shape: tuple[int, ...] = IMAGE) -> SplitModel:
    """A model in float64, so that a permutation is seen to change nothing but rounding."""
    example = torch.zeros(2, *shape, dtype=torch.uint8)
    return split_model(model, Normalize([0.4] * shape[0], [0.3] * shape[0]), example).double()


class Functional(nn.Module):
    """Layers with what stands between them in ``forward``; average pooling, and no bias in one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 5, 3, padding=1, bias=False)
        self.second, self.third, self.last = nn.Conv2d(5, 4, 3), nn.Linear(100, 9), nn.Linear(9, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = functional.avg_pool2d(functional.gelu(self.first(x)), 2)
        z = functional.pad(torch.sigmoid(self.second(z)), (0, 1, 0, 1)).reshape(len(x), -1)
        return self.last(functional.dropout(functional.elu(self.third(z)), 0.5, self.training))


def normalised() -> nn.Module:
    body = [nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 3, stride=2)]
    behind = [nn.BatchNorm2d(6, affine=False), nn.MaxPool2d(2), nn.Flatten(), nn.BatchNorm1d(24)]
    return nn.Sequential(*body, *behind, nn.Linear(24, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))


def series() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(2), nn.Conv1d(2, 4, 5), nn.ReLU(), nn.AdaptiveAvgPool1d(3), nn.Flatten(), nn.Linear(12, 3)
    )


def ours(name: str, shape: tuple[int, int, int]) -> SplitModel:
    before = Normalize([0.4] * shape[0], [0.3] * shape[0])
    inputs = torch.zeros(1, *shape, dtype=torch.uint8)
    return build_model(ModelSpec(name), inputs, 5, preprocess=before, seed=0).double()


CHAINS = {
    "simple-cnn": lambda: ours("simple-cnn", (3, 32, 32)),
    "simple-cnn of other images": lambda: ours("simple-cnn", (1, 28, 20)),
    "digits-cnn": lambda: ours("digits-cnn", (1, 8, 8)),
    "linear": lambda: ours("linear", (1, 8, 8)),
    "functional": lambda: split(Functional()),
    "normalised": lambda: split(normalised()),
    "series": lambda: split(series()),
    "listed otherwise": lambda: split(listed_otherwise()),
    "swapped": lambda: split(Wired(swapped)),
}


@pytest.mark.parametrize("build", CHAINS.values(), ids=CHAINS.keys())
def test_another_order_of_all_neurons_is_the_same_function(build) -> None:
    model, rng = build(), np.random.default_rng(0)
    pixels = torch.from_numpy(rng.integers(0, 256, (6, *model.example.shape[1:]), dtype=np.uint8))
    model.train()(pixels)  # moments of normalisation that differ
    expected, tensors = model.eval()(pixels).detach(), {n: t.clone() for n, t in model.state_dict().items()}
    chain = require_chain(model)
    for layer in chain[:-1]:
        order = torch.from_numpy(rng.permutation(layer.width))
        assert torch.equal(incoming(reordered(tensors, layer, order), layer), incoming(tensors, layer)[order])
        assert torch.equal(biases(reordered(tensors, layer, order), layer), biases(tensors, layer)[order])
        assert torch.equal(outgoing(reordered(tensors, layer, order), layer), outgoing(tensors, layer)[order])
        tensors = reordered(tensors, layer, order)
    changed = [name for name, tensor in model.state_dict().items() if not torch.equal(tensors[name], tensor)]
    assert len(changed) >= len(chain) or len(chain) == 1
    model.load_state_dict(tensors)
    torch.testing.assert_close(model(pixels), expected, rtol=0, atol=1e-9)


def test_the_chain_of_a_network() -> None:
    paths = [(layer.path.removeprefix("backbone.model."), layer.width) for layer in chain_of(CHAINS["simple-cnn"]())]
    hidden = [("layer1.0", 6), ("layer2.0", 16), ("layer3.0", 120), ("layer4.0", 84), ("layer5.0", 84), ("layer6", 256)]
    assert paths == [*hidden, ("head", 5)]
    first, second, third, head = chain_of(split(normalised()))
    assert first.tensors == tuple(
        f"backbone.model.{name}"
        for name in ("0.weight", "1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked")
    )
    assert [second.reader, third.reader, head.reader] == ["backbone.model.8.weight", "head.weight", ""]
    assert len(second.parameters) == 4, "weight and bias of the convolution and of what normalises behind the flatten"


def test_outgoing_weights_are_by_reader_and_place() -> None:
    model = split(Functional())
    _, second, *_ = chain_of(model)
    found, weight = outgoing(model.state_dict(), second), model.state_dict()[second.reader]
    assert found.shape == (4, 9, 25)
    assert torch.equal(found[2, 7], weight[7, 50:75])


@pytest.mark.parametrize("kernels", [True, False])
def test_the_trial_leaves_no_trace(kernels) -> None:
    model = ours("digits-cnn", (1, 8, 8)).float()
    use_kernels(model, on=kernels)
    before, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    state = torch.get_rng_state()
    require_chain(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert [block.kernels for block in model.modules() if hasattr(block, "kernels")] == [kernels] * 2


# --- no chains --------------------------------------------------------------------------------------------------------


class Wired(nn.Module):
    """Three layers of equal width, wired by a function."""

    def __init__(self, wiring, **more: nn.Module) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(288, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        for name, module in more.items():
            setattr(self, name, module)
        self.last, self.wiring = nn.Linear(6, 3), wiring

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.wiring(self, x.flatten(1)))


def shortcut(m, x):
    z = torch.relu(m.a(x))
    return m.c(z + m.b(z))


def skipping(m, x):
    return m.c(torch.relu(m.a(x)))


def swapped(m, x):
    return m.b(torch.relu(m.c(torch.relu(m.a(x)))))


def neighbours(m, x):
    return m.c(m.b(torch.cumsum(m.a(x), 1)))


def listed_otherwise() -> nn.Module:
    """Normalisation is listed behind all convolutions, and layers in another order than they run."""

    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last, self.second, self.first = nn.Linear(6, 3), nn.Conv2d(4, 6, 3), nn.Conv2d(2, 4, 3)
            self.normal1, self.normal2 = nn.BatchNorm2d(4), nn.BatchNorm2d(6)

        def forward(self, x: Tensor) -> Tensor:
            z = self.normal2(self.second(torch.relu(self.normal1(self.first(x)))))
            return self.last(functional.adaptive_max_pool2d(z, 1).flatten(1))

    return Listed()


def padded() -> nn.Module:
    """Normalisation of more channels than the convolution before it has."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.ConstantPad3d((0, 0, 0, 0, 0, 1), 1.0),
        nn.BatchNorm2d(5),
        nn.Flatten(),
        nn.Linear(500, 3),
    )


def across(m, x):
    return m.c(m.b(functional.group_norm(m.a(x), 2)))


def in_a_row(m, x):
    return m.c(m.b(m.a(x)))


def twice(m, x):
    return m.c(m.b(torch.relu(m.b(m.a(x)))))


def zeroed() -> nn.Module:
    """A residual network that gives the same scores for all inputs in the beginning."""
    model = Wired(shortcut)
    nn.init.zeros_(model.c.weight)
    return model


def flattened_last() -> nn.Module:
    """Channels behind places: each neuron's inputs are not in a row."""

    class Turned(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.permute(0, 2, 3, 1).flatten(1)

    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), Turned(), nn.Linear(400, 3))


def tied() -> nn.Module:
    model = Wired(in_a_row)
    model.c.weight = model.b.weight
    return model


def doubled() -> nn.Module:
    model = Wired(in_a_row)
    model.d = model.b
    return model


OTHER_SCORES = "cannot be matched: where they change their order, and "
OTHER_SORT = 'the neurons of this model cannot be matched: "backbone.model.'
REFUSED = {
    "residual": (lambda: Wired(shortcut), f'the neurons of "backbone.model.a" {OTHER_SCORES}'),
    "residual from zero": (zeroed, f'the neurons of "backbone.model.a" {OTHER_SCORES}'),
    "a layer that is not used": (lambda: Wired(skipping), f'{OTHER_SORT}b.weight" belongs to a Linear. '),
    "more channels than neurons": (padded, f'the neurons of "backbone.model.0" {OTHER_SCORES}'),
    "used twice": (lambda: Wired(twice), f'{OTHER_SORT}b.weight" belongs to a Linear. '),
    "neurons that know their neighbours": (
        lambda: Wired(neighbours),
        f'the neurons of "backbone.model.a" {OTHER_SCORES}',
    ),
    "normalised in groups": (lambda: Wired(across), f'the neurons of "backbone.model.a" {OTHER_SCORES}'),
    "channels last": (flattened_last, f'the neurons of "backbone.model.0" {OTHER_SCORES}'),
    "a weight of two names": (tied, f'the neurons of "backbone.model.a" {OTHER_SCORES}'),
    "a layer of two names": (doubled, f'{OTHER_SORT}d.weight" belongs to a Linear. '),
    "layer normalisation": (
        lambda: Wired(in_a_row, norm=nn.LayerNorm(6)),
        f'{OTHER_SORT}norm.weight" belongs to a LayerNorm. ',
    ),
    "depthwise": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 3, groups=4), nn.Flatten(), nn.Linear(256, 3)),
        f'{OTHER_SORT}1.weight" belongs to a Conv2d of 4 groups. ',
    ),
    "transposed": (
        lambda: nn.Sequential(nn.ConvTranspose2d(2, 2, 3), nn.Flatten(), nn.Linear(392, 3)),
        f'{OTHER_SORT}0.weight" belongs to a ConvTranspose2d. ',
    ),
    "normalised inputs": (
        lambda: nn.Sequential(nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(288, 3)),
        f'{OTHER_SORT}0.weight" belongs to a BatchNorm2d. ',
    ),
    "weights of two factors": (
        lambda: nn.Sequential(nn.Flatten(), weight_norm(nn.Linear(288, 4)), nn.Linear(4, 3)),
        f'{OTHER_SORT}1.bias" belongs to a ParametrizedLinear. ',
    ),
}


@pytest.mark.parametrize(("build", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_models_whose_neurons_have_places(build, message) -> None:
    with pytest.raises(SpecError) as error:
        require_chain(split(build()))
    assert str(error.value).startswith(message)
    assert str(error.value).endswith(
        "Choose a model whose layers follow each other, such as simple-cnn, or another algorithm."
    )
    assert "\n" not in str(error.value)


def test_mobilenet_is_refused_by_name_of_a_layer() -> None:
    with pytest.raises(SpecError, match=r'"backbone\.model\..*weight" belongs to a Conv2d of 32 groups'):
        require_chain(ours("mobilenet-v2", (3, 32, 32)))


def test_a_model_that_does_not_know_its_inputs() -> None:
    model = SplitModel(nn.Identity(), nn.Linear(4, 3), LinearHead(torch.ones(2, 3), None))
    with pytest.raises(SpecError, match="must know its inputs"):
        require_chain(model)
