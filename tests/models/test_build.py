import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ccvr.core.errors import ModelError, UnknownName
from ccvr.models.build import MODELS, ImageNetwork, ModelSpec, build_model, model_name
from ccvr.models.preprocess import Normalize
from ccvr.models.split import SplitModel

ImageShape = tuple[int, int, int]

MINIMUM = {"simple-cnn": 16, "mobilenet-v2": 8, "digits-cnn": 4}


def build(
    name: str, shape: ImageShape = (1, 28, 28), num_classes: int = 4, *, seed: int = 0, head: str = ""
) -> SplitModel:
    moments = [0.5] * shape[0]
    before = Normalize(moments, moments)
    return build_model(ModelSpec(name, head), images(1, shape), num_classes, preprocess=before, seed=seed)


def images(number: int, shape: ImageShape) -> Tensor:
    return torch.randint(0, 256, (number, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_every_row_has_a_minimum_here() -> None:
    assert {name: row.minimum for name, row in MODELS.items() if isinstance(row, ImageNetwork)} == MINIMUM


@pytest.mark.parametrize("name", MINIMUM)
class TestEveryModel:
    @pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 33, 40), (4, 40, 17)])
    @pytest.mark.parametrize("num_classes", [1, 7])
    def test_shapes(self, name: str, shape: ImageShape, num_classes: int) -> None:
        model = build(name, shape, num_classes).eval()
        with torch.no_grad():
            z = model.features(images(3, shape))
            scores = model.head(z)
        assert z.shape == (3, model.head.weight.shape[1])
        assert scores.shape == (3, num_classes)
        assert scores.isfinite().all()

    def test_the_same_seed_gives_the_same_bits_and_another_gives_others(self, name: str) -> None:
        first, again, other = build(name, seed=5), build(name, seed=5), build(name, seed=6)
        assert first.digest() == again.digest() != other.digest()
        assert torch.equal(first.head.weight, again.head.weight)
        assert not torch.equal(first.head.weight, other.head.weight)

    def test_the_global_generator_is_left_alone(self, name: str) -> None:
        torch.manual_seed(3)
        before = torch.get_rng_state()
        build(name)
        assert torch.equal(torch.get_rng_state(), before)

    def test_the_global_generator_does_not_matter(self, name: str) -> None:
        torch.manual_seed(3)
        digest = build(name).digest()
        torch.manual_seed(4)
        assert build(name).digest() == digest

    def test_the_smallest_image_trains(self, name: str) -> None:
        side = MINIMUM[name]
        model = build(name, (3, side, side)).train()
        functional.cross_entropy(model(images(2, (3, side, side))), torch.tensor([0, 1])).backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)

    def test_channels_come_last_in_memory(self, name: str) -> None:
        filters = [layer.weight for layer in build(name, (3, 32, 32)).modules() if isinstance(layer, nn.Conv2d)]
        assert all(weight.is_contiguous(memory_format=torch.channels_last) for weight in filters)
        assert not all(weight.is_contiguous() for weight in filters)

    @pytest.mark.parametrize("too_small", ["height", "width"])
    def test_an_image_below_the_minimum(self, name: str, too_small: str) -> None:
        side = MINIMUM[name]
        height, width = (side - 1, side) if too_small == "height" else (side, side - 1)
        with pytest.raises(ModelError) as caught:
            build(name, (3, height, width))
        assert str(caught.value) == (
            f"{name} needs images of at least {side} x {side} pixels; these are {height} x {width}."
        )

    def test_every_image_is_scored_by_itself(self, name: str) -> None:
        model = build(name).eval()
        batch = images(4, (1, 28, 28))
        with torch.no_grad():
            together = model(batch)
            alone = torch.cat([model(image) for image in batch.split(1)])
        assert torch.allclose(together, alone, rtol=1e-4, atol=1e-5)
        assert not torch.equal(together[0], together[1])


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((1, 8, 8), "digits-cnn"),
        ((3, 15, 64), "digits-cnn"),
        ((3, 64, 15), "digits-cnn"),
        ((3, 16, 16), "simple-cnn"),
        ((3, 32, 32), "simple-cnn"),
    ],
)
def test_auto_takes_the_largest_that_fits(shape: ImageShape, name: str) -> None:
    assert model_name(ModelSpec(), images(2, shape)) == name
    assert model_name(ModelSpec("mobilenet-v2"), images(2, shape)) == "mobilenet-v2"


def test_an_unknown_model() -> None:
    with pytest.raises(UnknownName) as caught:
        build("simple-cn")
    assert str(caught.value) == (
        'no model "simple-cn". Did you mean "simple-cnn"? Known: digits-cnn, linear, mobilenet-v2, simple-cnn.'
    )


@pytest.fixture
def my_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_models.py").write_text(
        """
import torch
from torch import nn

def net(image_shape, num_classes):
    channels, height, width = image_shape
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, 6), nn.Dropout(), nn.Linear(6, num_classes))

def convolutions(image_shape, num_classes):
    first, second = nn.Conv2d(image_shape[0], 4, 3), nn.Conv2d(4, 5, 3).to(memory_format=torch.channels_last)
    return nn.Sequential(first, second, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, num_classes))

def eleven(image_shape, num_classes):
    return net(image_shape, 11)

def softmaxed(image_shape, num_classes):
    return nn.Sequential(net(image_shape, num_classes), nn.Softmax(1))

def only_32(image_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, num_classes))

class Drawing(nn.Module):
    def __init__(self, image_shape, num_classes):
        super().__init__()
        self.head = nn.Linear(5, num_classes)
    def forward(self, x):
        return self.head(torch.randn(len(x), 5))

def nothing(image_shape, num_classes):
    return None

table = {}
"""
    )
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("my_models")
class TestOnesOwnModel:
    def test_it_is_built_from_shape_and_classes(self) -> None:
        model = build("my_models:net", (3, 5, 5), 9)
        assert model.head.weight.shape == (9, 6)
        assert isinstance(model.backbone.model, nn.Sequential)
        assert model.digest() == build("my_models:net", (3, 5, 5), 9).digest()

    def test_it_chooses_its_own_order_of_memory(self) -> None:
        model = build("my_models:convolutions", (3, 8, 8))
        strides = [layer.weight.stride() for layer in model.modules() if isinstance(layer, nn.Conv2d)]
        assert strides == [(27, 9, 3, 1), (36, 1, 12, 4)]

    def test_a_named_head(self) -> None:
        assert build("my_models:softmaxed", head="0.3").head.weight.shape == (4, 6)

    def test_a_model_that_draws_leaves_the_global_generator_alone(self) -> None:
        torch.manual_seed(3)
        before = torch.get_rng_state()
        build("my_models:Drawing")
        assert torch.equal(torch.get_rng_state(), before)

    @pytest.mark.parametrize(
        ("name", "head", "message"),
        [
            ("eleven", "", 'model "my_models:eleven" has 11 outputs; the data has 4 classes.'),
            ("net", "1", 'model "my_models:net" has 6 outputs; the data has 4 classes.'),
            ("nothing", "", 'model "my_models:nothing" returned NoneType; it must return a torch.nn.Module.'),
            ("table", "", 'model "my_models:table" is a dict; it must be a function (shape, classes).'),
            (
                "net",
                "fc",
                'the head "fc" is not an nn.Linear of this model. Its linear layers: 1, 3.',
            ),
        ],
    )
    def test_what_is_wrong_with_it(self, name: str, head: str, message: str) -> None:
        with pytest.raises(ModelError) as caught:
            build(f"my_models:{name}", head=head)
        assert str(caught.value) == message

    def test_a_model_for_other_images(self) -> None:
        message = "the model fails on inputs float32 [2, 1, 28, 28]: mat1 and mat2 shapes cannot be multiplied"
        with pytest.raises(ModelError, match=f"^{re.escape(message)}"):
            build("my_models:only_32")
