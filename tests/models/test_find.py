import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ccvr.core.errors import ModelError
from ccvr.models.find import find_head
from ccvr.models.heads import LinearHead, NormedHead
from ccvr.models.transform import FeatureTransform

EXAMPLE = torch.randn(2, 1, 4, 4, generator=torch.Generator().manual_seed(0))
REMEDY = 'Name the head: model.head in a spec, head="path" in a call.'


class HeadRegisteredFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Linear(5, 3)
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.layers(x))


class HeadInside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({"top": HeadRegisteredFirst(), "unused": nn.Linear(3, 3)})

    def forward(self, x: Tensor) -> Tensor:
        return self.parts["top"](x)


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, nhead=2, dim_feedforward=8, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x.squeeze(1)).mean(1))


class TwoHeads(HeadRegisteredFirst):
    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.layers(x)
        return self.classifier(z), self.second(z)


class ScoresAndFeatures(HeadRegisteredFirst):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.layers(x)
        return self.classifier(z), z


class Dictionary(HeadRegisteredFirst):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"scores": super().forward(x)}


class UsedTwice(HeadRegisteredFirst):
    def forward(self, x: Tensor) -> Tensor:
        z = self.layers(x)
        self.classifier(z.flip(0))
        return self.classifier(z)


class Softmaxed(HeadRegisteredFirst):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).log_softmax(1)


class ChangedInPlace(HeadRegisteredFirst):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).relu_()


class CosineLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(functional.normalize(x), functional.normalize(self.weight))


@pytest.mark.parametrize(
    ("model", "path"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 3)), "3"),
        (nn.Sequential(nn.Flatten(), nn.Linear(16, 3, bias=False)), "1"),
        (nn.Sequential(nn.Flatten(), nn.Linear(16, 3), nn.Identity(), nn.Dropout()), "1"),
        (HeadRegisteredFirst(), "classifier"),
        (HeadInside(), "parts.top.classifier"),
        (Transformer(), "head"),
    ],
)
def test_the_head_is_the_linear_layer_whose_output_is_the_models(model: nn.Module, path: str) -> None:
    assert find_head(model, EXAMPLE) == path
    assert find_head(model, EXAMPLE, path) == path


@pytest.mark.parametrize("path", ["", "2"])
@pytest.mark.parametrize(
    "head", [LinearHead(torch.ones(3, 5), None, FeatureTransform("tukey")), NormedHead(torch.ones(3, 5))]
)
def test_a_head_of_ours_is_found_in_any_model(head: nn.Module, path: str) -> None:
    assert find_head(nn.Sequential(nn.Flatten(), nn.Linear(16, 5), head), EXAMPLE, path) == "2"


def test_a_model_may_be_its_own_head() -> None:
    assert find_head(nn.Linear(4, 3), torch.zeros(2, 4)) == ""


LINEARS = "linear layers: layers.1, classifier"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            nn.Sequential(nn.Conv2d(1, 3, 4), nn.Flatten()),
            f"no nn.Linear's output is the model's output (linear layers: there are none). {REMEDY}",
        ),
        (Softmaxed(), f"no nn.Linear's output is the model's output ({LINEARS}). {REMEDY}"),
        (ChangedInPlace(), f"no nn.Linear's output is the model's output ({LINEARS}). {REMEDY}"),
        (Dictionary(), f"no nn.Linear's output is the model's output ({LINEARS}). {REMEDY}"),
        (
            nn.Sequential(nn.Flatten(), CosineLinear(16, 3)),
            f"no nn.Linear's output is the model's output (linear layers: there are none). {REMEDY}",
        ),
        (TwoHeads(), f"the model returns several things, with the heads classifier, second among them. {REMEDY}"),
        (ScoresAndFeatures(), f"the model returns several things, with the heads classifier among them. {REMEDY}"),
        (UsedTwice(), f'the head "classifier" is used 2 times in one pass; it must be used once. {REMEDY}'),
        (nn.Linear(4, 3), f'the input of the head "" has shape [2, 1, 4, 4]; it must be [B, d]. {REMEDY}'),
        (
            nn.Sequential(nn.Flatten(2), nn.Linear(16, 3)),
            f'the input of the head "1" has shape [2, 1, 16]; it must be [B, d]. {REMEDY}',
        ),
    ],
)
def test_a_head_that_cannot_be_found(model: nn.Module, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        find_head(model, EXAMPLE)
    assert str(caught.value) == message


@pytest.mark.parametrize("model", [TwoHeads(), ScoresAndFeatures(), Dictionary(), Softmaxed(), ChangedInPlace()])
def test_a_named_head_may_be_followed_by_anything(model: nn.Module) -> None:
    assert find_head(model, EXAMPLE, "classifier") == "classifier"


@pytest.mark.parametrize(
    ("model", "path", "message"),
    [
        (
            HeadRegisteredFirst(),
            "fc",
            'the head "fc" is not an nn.Linear of this model. Its linear layers: classifier, layers.1.',
        ),
        (
            HeadRegisteredFirst(),
            "layers",
            'the head "layers" is not an nn.Linear of this model. Its linear layers: classifier, layers.1.',
        ),
        (
            nn.Sequential(nn.Flatten(), CosineLinear(16, 3)),
            "1",
            'the head "1" is not an nn.Linear of this model. Its linear layers: none.',
        ),
        (
            HeadInside(),
            "parts.unused",
            f'the head "parts.unused" is used 0 times in one pass; it must be used once. {REMEDY}',
        ),
        (
            UsedTwice(),
            "classifier",
            f'the head "classifier" is used 2 times in one pass; it must be used once. {REMEDY}',
        ),
    ],
)
def test_a_wrong_path(model: nn.Module, path: str, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        find_head(model, EXAMPLE, path)
    assert str(caught.value) == message


def with_normalisation() -> nn.Module:
    """A model in train mode, one of whose parts is frozen in eval mode."""
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.BatchNorm2d(2).eval(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(8, 3)
    )
    assert model.training
    assert not model[2].training
    return model


def snapshot(model: nn.Module) -> tuple[list[bool], list[int], dict[str, Tensor]]:
    modes = [module.training for module in model.modules()]
    hooks = [len(module._forward_hooks) for module in model.modules()]
    return modes, hooks, {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_untouched(model: nn.Module, before: tuple[list[bool], list[int], dict[str, Tensor]]) -> None:
    modes, hooks, state = snapshot(model)
    assert modes == before[0]
    assert hooks == before[1]
    assert state.keys() == before[2].keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in before[2].items())


def test_the_model_is_left_as_it_was() -> None:
    model = with_normalisation()
    before = snapshot(model)
    assert find_head(model, EXAMPLE) == "5"
    assert_untouched(model, before)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_model_is_left_as_it_was_when_the_pass_fails() -> None:
    model = with_normalisation()
    before = snapshot(model)
    with pytest.raises(ModelError) as caught:
        find_head(model, torch.zeros(2, 3, 9, 9))
    assert str(caught.value).startswith("the model fails on inputs float32 [2, 3, 9, 9]: Given groups=1, weight of")
    assert "\n" not in str(caught.value)
    assert_untouched(model, before)
