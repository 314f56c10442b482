import pytest
import torch
from torch import Tensor, nn

from ccvr.analysis.layers import cka_layers, layer_outputs
from ccvr.core.errors import AnalysisError
from ccvr.models.build import MODELS, ModelSpec, build_model
from ccvr.models.preprocess import Normalize
from ccvr.models.simple_cnn import simple_cnn
from ccvr.models.split import SplitModel

IMAGES = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def build(name: str) -> SplitModel:
    return build_model(ModelSpec(name), IMAGES, 10, preprocess=Normalize([0.5] * 3, [0.2] * 3), seed=0)


def read(model: nn.Module, layers: tuple[str, ...], x: Tensor = IMAGES) -> dict[str, Tensor]:
    with layer_outputs(model, layers) as outputs:
        return outputs(x)


def test_the_seven_layers_of_the_paper() -> None:
    model = build("simple-cnn")
    layers = cka_layers(model, IMAGES)
    names = ("layer1.2", "layer2.2", "layer3", "layer4", "layer5", "layer6")
    assert layers == (*(f"backbone.model.{name}" for name in names), "head")
    assert [z.shape[1] for z in read(model, layers).values()] == [1176, 400, 120, 84, 84, 256, 10]
    assert cka_layers(simple_cnn((3, 32, 32), 10), IMAGES.float()) == (*names, "head")


def test_they_are_what_a_pass_by_hand_gives() -> None:
    model = build("simple-cnn").train()
    found = read(model, cka_layers(model, IMAGES))
    assert model.training
    with torch.no_grad():
        z, net = model.normalize(IMAGES), model.backbone.model
        for name, layer in list(net.named_children())[:-1]:
            z = layer(z)
            if name != "flatten":
                kept = found["backbone.model." + name + (".2" if name in ("layer1", "layer2") else "")]
                assert torch.allclose(kept, z.flatten(1), atol=1e-5)
        assert torch.allclose(found["head"], model.head(z), atol=1e-5)


@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("simple-cnn", "linear")])
def test_any_model_has_layers_from_first_to_last(name: str) -> None:
    model = build(name)
    layers = cka_layers(model, IMAGES)
    assert 3 <= len(layers) <= 7
    assert len(set(layers)) == len(layers)
    assert layers[-1] == "head"
    found = read(model.eval(), layers)
    with torch.no_grad():
        assert torch.allclose(found["head"], model(IMAGES), atol=1e-5)
        assert torch.allclose(found[layers[-2]], model.features(IMAGES), atol=1e-5)  # not what stands for the head


def test_digits_by_name() -> None:
    expected = tuple(f"backbone.model.{name}" for name in ("layer1.2", "flatten.1", "layer3.1"))
    assert cka_layers(build("digits-cnn"), IMAGES) == (*expected, "head")
    assert cka_layers(build("digits-cnn"), IMAGES, most=3) == (expected[0], expected[2], "head")


def test_a_layer_s_own_output_where_the_next_works_in_place() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 3))
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert torch.equal(read(model, ("0",), x)["0"], model[0](x))


def test_no_gradients_no_dropout_no_hooks_left() -> None:
    model = nn.Sequential(nn.Dropout(0.9), nn.Linear(4, 5)).train()
    found = read(model, ("0", "1"), torch.ones(2, 4))
    assert torch.equal(found["0"], torch.ones(2, 4))
    assert not found["1"].requires_grad
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())


def test_wrong_layers_are_named() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with pytest.raises(AnalysisError, match=r'no layer "2"\..*Known: 0, 1\.'):
        read(model, ("2",), torch.ones(2, 4))
    twice = nn.Sequential(model[0], model[0])
    with pytest.raises(AnalysisError, match="used twice"):
        read(twice, ("0",), torch.ones(2, 4))
    assert not any(module._forward_hooks for module in twice.modules())
