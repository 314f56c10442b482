import copy
import io
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from ccvr.core.errors import ModelError
from ccvr.models.build import MODELS
from ccvr.models.digest import backbone_digest
from ccvr.models.heads import Head, LinearHead, NormedHead, copy_head
from ccvr.models.preprocess import Normalize
from ccvr.models.split import SplitModel, split_model, under_new_head
from ccvr.models.taps import find_taps, reading
from ccvr.models.transform import FeatureTransform

SHAPE = (3, 16, 17)
IMAGES = torch.randint(0, 256, (2, *SHAPE), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 5)
        self.body = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 6))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class ScaledAfterwards(Plain):
    """Changes the scores in place, and adds something of their shape."""

    def __init__(self) -> None:
        super().__init__()
        self.prior = nn.Parameter(torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).mul_(3) + self.prior


class TwoNames(nn.Module):
    """One layer under two names; the forward pass uses the second."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(12, 6), nn.Linear(6, 5)])
        self.classifier = self.layers[1]

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.adaptive_avg_pool2d(x, 2).flatten(1)
        return self.classifier(self.layers[0](x))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(12, nhead=2, dim_feedforward=8, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=1, enable_nested_tensor=False)
        self.fc = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        tokens = nn.functional.adaptive_avg_pool2d(x, (4, 4)).flatten(2)
        return self.fc(self.encoder(tokens.reshape(len(x), 4, 12)).mean(1))


class SkipsItsHead(Plain):
    def forward(self, x: Tensor) -> Tensor:
        z = self.body(x)
        return z if self.training else self.head(z)


USERS: dict[str, Callable[[], nn.Module]] = {
    "plain": Plain,
    "two names": TwoNames,
    "transformer": Transformer,
    "no bias": lambda: nn.Sequential(
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 7), nn.Linear(7, 5, bias=False)
    ),
    "normalised": lambda: nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 5),
    ),
}
FACTORIES = USERS | {name: lambda row=row: row(SHAPE, 5) for name, row in MODELS.items() if name != "linear"}


def normalize() -> Normalize:
    return Normalize([0.4, 0.5, 0.6], [0.2, 0.25, 0.3])


def split(model: nn.Module, **options: str) -> SplitModel:
    return split_model(model, normalize(), IMAGES[:2], **options)


@pytest.fixture(params=FACTORIES)
def whole(request: pytest.FixtureRequest) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return FACTORIES[request.param]()


class TestSplitting:
    @pytest.mark.parametrize(("training", "grad"), [(True, True), (False, False)])
    def test_features_and_head_give_the_bits_of_the_whole(self, whole: nn.Module, training: bool, grad: bool) -> None:
        parts = split(copy.deepcopy(whole)).train(training)
        whole.train(training)
        with torch.set_grad_enabled(grad):
            expected = whole(normalize()(IMAGES))
            assert torch.equal(parts.head(parts.features(IMAGES)), expected)
        after, before = parts.backbone.state_dict(), whole.state_dict()
        assert after
        for name, tensor in after.items():  # BatchNorm's moments have moved alike in train mode
            assert torch.equal(tensor, before[name.removeprefix("model.")])

    def test_forward_is_head_of_features(self, whole: nn.Module) -> None:
        parts = split(whole).eval()
        assert torch.equal(parts(IMAGES), parts.head(parts.features(IMAGES)))

    def test_gradients_are_those_of_the_whole(self, whole: nn.Module) -> None:
        parts = split(copy.deepcopy(whole)).eval()
        whole.eval()
        whole(normalize()(IMAGES)).square().sum().backward()
        parts(IMAGES).square().sum().backward()
        expected = {name: parameter.grad for name, parameter in whole.named_parameters()}
        for name, parameter in parts.backbone.model.named_parameters():
            assert torch.equal(parameter.grad, expected.pop(name))
        left = sorted(expected, key=len)  # the head's alone
        assert torch.equal(parts.head.weight.grad, expected[next(name for name in left if name.endswith("weight"))])
        assert len(left) <= 2

    def test_the_head_is_in_the_model_once(self, whole: nn.Module) -> None:
        count = sum(parameter.numel() for parameter in whole.parameters())
        parts = split(whole)
        assert sum(parameter.numel() for parameter in parts.parameters()) == count
        assert not any(name.startswith("backbone.model.head.") for name in parts.state_dict())

    def test_what_a_model_does_to_its_scores_does_not_reach_the_features(self) -> None:
        whole = ScaledAfterwards()
        expected = whole.body(normalize()(IMAGES))
        parts = split(whole, head_path="head")
        assert torch.equal(parts.features(IMAGES), expected)
        assert torch.equal(parts(IMAGES), nn.functional.linear(expected, parts.head.weight, parts.head.bias))

    def test_a_model_that_is_all_head(self) -> None:
        linear = nn.Linear(4, 3)
        z = torch.randn(2, 4)
        parts = split_model(linear, nn.Identity(), z)
        assert torch.equal(parts.features(z), z)
        assert torch.equal(parts(z), linear(z))

    def test_a_pass_that_does_not_reach_the_head(self) -> None:
        parts = split(SkipsItsHead())
        parts.eval()(IMAGES)
        with pytest.raises(ModelError) as caught:
            parts.train()(IMAGES)
        assert str(caught.value) == (
            "the model did not reach its head in this pass; the head must be used in every pass."
        )

    @pytest.mark.parametrize(("kind", "cls"), [("linear", LinearHead), ("normed", NormedHead)])
    def test_the_kind_of_head(self, kind: str, cls: type) -> None:
        whole = Plain()
        weight = whole.head.weight.detach().clone()
        head = split(whole, head_kind=kind).head
        assert type(head) is cls
        assert torch.equal(head.weight, weight)


def changed(model: SplitModel, name: str) -> SplitModel:
    """A copy in which one number of one tensor is the next one."""
    other = copy.deepcopy(model)
    flat = other.state_dict()[name].view(-1)
    flat[0] = torch.nextafter(flat[0], flat[0] + 1) if flat.is_floating_point() else flat[0] + 1
    return other


class TestDigest:
    def test_it_changes_with_every_tensor_but_the_heads(self) -> None:
        parts = split(FACTORIES["normalised"]())
        digest = parts.digest()
        names = list(parts.state_dict())
        assert {"normalize.scale", "normalize.shift", "head.weight", "head.bias"} <= set(names)
        assert any(name.endswith("running_mean") for name in names)
        for name in names:
            assert (changed(parts, name).digest() == digest) == name.startswith("head."), name

    def test_it_survives_copies_modes_and_memory_layout(self, whole: nn.Module) -> None:
        parts = split(whole)
        digest = parts.digest()
        assert len(digest) == 64
        assert copy.deepcopy(parts).digest() == digest
        assert parts.eval().digest() == digest
        assert parts.to(memory_format=torch.channels_last).digest() == digest

    def test_types_count(self) -> None:
        parts = split(FACTORIES["normalised"]())
        digests = {copy.deepcopy(parts).to(dtype).digest() for dtype in (torch.float32, torch.float64, torch.bfloat16)}
        assert len(digests) == 3

    def test_a_forward_pass_in_eval_mode_leaves_it_and_one_in_train_mode_moves_batch_norm(self) -> None:
        parts = split(FACTORIES["normalised"]())
        digest = parts.digest()
        parts.eval()(IMAGES)
        assert parts.digest() == digest
        parts.train()(IMAGES)
        assert parts.digest() != digest


class TestCopies:
    def test_a_deep_copy_is_independent_and_equal(self, whole: nn.Module) -> None:
        parts = split(whole).eval()
        expected = parts(IMAGES).detach()
        other = copy.deepcopy(parts)
        assert torch.equal(other(IMAGES), expected)
        for parameter in other.parameters():
            parameter.data.zero_()
        assert torch.equal(parts(IMAGES), expected)
        assert not torch.equal(other(IMAGES), expected)

    def test_a_model_survives_its_file(self, whole: nn.Module) -> None:
        parts = split(whole).eval()
        file = io.BytesIO()
        torch.save(parts, file)
        file.seek(0)
        assert torch.equal(torch.load(file, weights_only=False)(IMAGES), parts(IMAGES))

    def test_another_head_shares_the_backbone(self) -> None:
        parts = split(Plain())
        parts.class_names = ("a", "b", "c", "d", "e")
        head = LinearHead(torch.zeros(2, 6), torch.tensor([1.0, 2.0]))
        other = parts.with_head(head)
        assert other.backbone is parts.backbone
        assert other.normalize is parts.normalize
        assert other.head is head
        assert other.class_names == parts.class_names
        assert other.digest() == parts.digest()
        assert torch.equal(other(IMAGES), torch.tensor([[1.0, 2.0]]).expand(2, 2))
        assert parts(IMAGES).shape == (2, 5)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def features(model: nn.Module, head: str, x: Tensor, taps: tuple[str, ...] = ()) -> Tensor:
    with torch.no_grad(), reading(model, head, taps) as read:
        return read(x)


def everything(model: nn.Module) -> list[object]:
    """What must not change: tensors, modes, gradients and hooks, by module."""
    tensors = {
        name: (tensor.tolist(), tensor.requires_grad) for name, tensor in model.state_dict(keep_vars=True).items()
    }
    modules = [
        (id(module), path, module.training, list(module._forward_hooks), list(module._forward_pre_hooks))
        for path, module in model.named_modules(remove_duplicate=False)
    ]
    return [tensors, modules, [parameter.grad for parameter in model.parameters()]]


class TestAnotherHeadThatReadsTaps:
    TAPS = ("backbone.model.body.1", "backbone.model.body.0")

    def head(self, parts: SplitModel, taps: tuple[str, ...] = TAPS) -> LinearHead:
        width = features(parts, "head", IMAGES, taps).shape[1]
        return LinearHead(draw(4, width), draw(4, seed=1), taps=taps)

    def test_it_reads_what_was_read_from_the_model_before(self) -> None:
        parts = split(Plain()).eval()
        head = self.head(parts)
        assert head.weight.shape == (4, 12 + 12 + 6)
        with torch.no_grad():
            assert torch.equal(parts.with_head(head)(IMAGES), head(features(parts, "head", IMAGES, self.TAPS)))

    @pytest.mark.parametrize("name", [name for name in MODELS if name != "linear"])
    def test_automatic_taps_of_our_networks(self, name: str) -> None:
        parts = split(FACTORIES[name]()).eval()
        head = self.head(parts, find_taps(parts, "head", IMAGES, "auto"))
        with torch.no_grad():
            expected = head(features(parts, "head", IMAGES, head.taps))
            assert torch.equal(parts.with_head(head).eval()(IMAGES), expected)

    def test_the_model_itself_is_not_affected(self) -> None:
        parts = split(FACTORIES["normalised"]())
        head = self.head(parts, ("backbone.model.1",))
        before, digest = everything(parts), parts.digest()
        other = parts.with_head(head)
        other.train()(IMAGES).sum().backward()
        with torch.no_grad():
            for parameter in other.backbone.parameters():
                parameter.zero_()
        assert everything(parts.train()) == before
        assert parts.digest() == digest

    def test_what_is_kept(self) -> None:
        parts = split(Plain())
        parts.class_names = ("a", "b")
        head = self.head(parts)
        other = parts.with_head(head)
        assert other.class_names == ("a", "b")
        assert other.head is head
        assert head.taps == self.TAPS

    def test_it_survives_copies_and_files(self) -> None:
        parts = split(Plain()).eval()
        other = parts.with_head(self.head(parts)).eval()
        expected = other(IMAGES)
        file = io.BytesIO()
        torch.save(other, file)
        file.seek(0)
        assert torch.equal(copy.deepcopy(other)(IMAGES), expected)
        assert torch.equal(torch.load(file, weights_only=False)(IMAGES), expected)

    def test_a_head_like_its_own_fits_again(self) -> None:
        parts = split(Plain()).eval()
        other = parts.with_head(self.head(parts)).eval()
        again = other.with_head(copy_head(other.head)).eval()
        assert torch.equal(again(IMAGES), other(IMAGES))


HEADS_IN_USERS = {"plain": "head", "two names": "layers.1", "transformer": "fc", "no bias": "3", "normalised": "5"}
SIGNED = FeatureTransform("signed-tukey", 0.5)


class TestUnderNewHead:
    @pytest.fixture(params=HEADS_IN_USERS)
    def case(self, request: pytest.FixtureRequest) -> tuple[nn.Module, str]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            model = USERS[request.param]()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        return model, HEADS_IN_USERS[request.param]

    X = normalize()(IMAGES)

    def head_for(self, model: nn.Module, path: str, **options: object) -> LinearHead:
        width = features(model, path, self.X, options.get("taps", ())).shape[1]
        return LinearHead(draw(4, width), draw(4, seed=1), **options)

    def test_scores_are_the_new_head_s(self, case: tuple[nn.Module, str]) -> None:
        model, path = case
        head = self.head_for(model, path)
        z = features(model, path, self.X)
        assert torch.allclose(under_new_head(model, path, head)(self.X), head(z), atol=1e-5)

    def test_it_is_the_same_class_with_the_same_state(self, case: tuple[nn.Module, str]) -> None:
        model, path = case
        bias = model.get_submodule(path).bias
        same_shape = LinearHead(model.get_submodule(path).weight + 1, None if bias is None else bias + 1)
        found = under_new_head(model, path, same_shape)
        assert type(found) is type(model)
        assert type(found.get_submodule(path)) is nn.Linear
        assert list(found.state_dict()) == list(model.state_dict())
        model.load_state_dict(found.state_dict())
        assert torch.allclose(model(self.X), found(self.X), atol=1e-5)
        assert torch.equal(model.get_submodule(path).weight, same_shape.weight)

    @pytest.mark.parametrize("kind", ["linear", "transform", "normed", "taps"])
    def test_the_model_is_left_alone(self, case: tuple[nn.Module, str], kind: str) -> None:
        model, path = case
        before, digest = everything(model), backbone_digest(model, path)
        taps = ({"head": "body.1", "layers.1": "layers.0", "fc": "encoder", "3": "2", "5": "2"}[path],)
        head: Head = {
            "linear": lambda: self.head_for(model, path),
            "transform": lambda: self.head_for(model, path, transform=SIGNED),
            "normed": lambda: NormedHead(self.head_for(model, path).weight),
            "taps": lambda: self.head_for(model, path, taps=taps),
        }[kind]()
        found = under_new_head(model, path, head)
        found(self.X).sum().backward()
        with torch.no_grad():
            for parameter in found.parameters():
                parameter.zero_()
        assert everything(model) == before
        assert backbone_digest(model, path) == digest

    def test_the_head_that_is_given_is_left_alone(self) -> None:
        model = Plain()
        head = self.head_for(model, "head", taps=("body.1",))
        first = under_new_head(model, "head", head)
        assert head.taps == ("body.1",)
        assert torch.equal(under_new_head(model, "head", head)(self.X), first(self.X))

    @pytest.mark.parametrize("transform", [None, SIGNED])
    def test_a_head_of_two_names_is_replaced_under_both(self, transform: FeatureTransform | None) -> None:
        model = TwoNames()
        for path in ("layers.1", "classifier"):
            found = under_new_head(model, path, self.head_for(model, path, transform=transform))
            assert found.layers[1] is found.classifier
            assert found.classifier.weight.shape == (4, 6)
            assert found(self.X).shape == (2, 4)
        assert model.layers[1] is model.classifier
        assert model(self.X).shape == (2, 5)

    def test_a_weight_that_the_backbone_shares_with_the_head_stays_in_the_backbone(self) -> None:
        model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
        model[1].weight = model[0].weight
        x = draw(3, 6)
        head = LinearHead(draw(2, 6), draw(2, seed=1))
        found = under_new_head(model, "1", head)
        assert torch.equal(found[0].weight, model[0].weight)
        assert torch.allclose(found(x), head(model[0](x)))

    def test_a_transform_stays_in_the_model(self, case: tuple[nn.Module, str]) -> None:
        model, path = case
        head = self.head_for(model, path, transform=SIGNED)
        found = under_new_head(model, path, head)
        z = features(model, path, self.X)
        expected = (z.sign() * z.abs().sqrt()) @ head.weight.T + head.bias
        assert type(found) is type(model)
        assert torch.allclose(found(self.X), expected, atol=1e-5)

    def test_taps(self, case: tuple[nn.Module, str]) -> None:
        model, path = case
        model.eval()
        taps = find_taps(model, path, self.X, "auto")
        head = self.head_for(model, path, taps=taps)
        expected = head(features(model, path, self.X, taps))
        found = under_new_head(model, path, head).eval()
        assert torch.allclose(found(self.X), expected, atol=1e-5)
        file = io.BytesIO()
        torch.save(found, file)
        file.seek(0)
        assert torch.equal(torch.load(file, weights_only=False)(self.X), found(self.X))

    @pytest.mark.parametrize("taps", [(), ("backbone.model.body.1",)])
    def test_a_split_model(self, taps: tuple[str, ...]) -> None:
        parts = split(Plain()).eval()
        parts.class_names = ("a", "b")
        before = everything(parts)
        width = features(parts, "head", IMAGES, taps).shape[1]
        head = LinearHead(draw(4, width), None, SIGNED, taps=taps)
        found = under_new_head(parts, "head", head)
        assert isinstance(found, SplitModel)
        assert found.class_names == ("a", "b")
        with torch.no_grad():
            assert torch.equal(found(IMAGES), head(features(parts, "head", IMAGES, taps)))
            for parameter in found.parameters():
                parameter.zero_()
        assert everything(parts) == before

    def test_a_model_that_is_all_head(self) -> None:
        model, head = nn.Linear(6, 3), LinearHead(draw(4, 6), draw(4, seed=1))
        found = under_new_head(model, "", head)
        assert type(found) is nn.Linear
        assert torch.equal(found(draw(2, 6)), head(draw(2, 6)))

    @pytest.mark.parametrize("transform", [None, SIGNED])
    def test_a_head_that_was_replaced_before_makes_room_for_one_with_taps(
        self, transform: FeatureTransform | None
    ) -> None:
        once = under_new_head(Plain(), "head", LinearHead(draw(4, 6), None, transform)).eval()
        head = self.head_for(once, "head", taps=("body.1",))
        expected = head(features(once, "head", self.X, ("body.1",)))
        assert torch.allclose(under_new_head(once, "head", head)(self.X), expected, atol=1e-5)

    def test_types_are_the_head_s(self) -> None:
        model = Plain().double()
        head = LinearHead(draw(4, 6).double(), None)
        assert under_new_head(model, "head", head).head.weight.dtype == torch.float64

    def test_nothing_is_drawn(self) -> None:
        model, head = Plain(), LinearHead(draw(4, 6), None)
        torch.manual_seed(3)
        before = torch.get_rng_state()
        under_new_head(model, "head", head)
        assert torch.equal(torch.get_rng_state(), before)


class TestNormalize:
    @given(st.lists(st.tuples(st.floats(0, 1), st.floats(1 / 255, 1)), min_size=1, max_size=4))
    def test_it_is_the_formula_in_double_precision(self, moments: list[tuple[float, float]]) -> None:
        mean, std = torch.tensor(moments, dtype=torch.float64).T
        levels = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(1, len(moments), 16, 16)
        expected = (levels.double() / 255 - mean.view(-1, 1, 1)) / std.view(-1, 1, 1)
        found = Normalize(mean, std)(levels)
        assert found.dtype == torch.float32
        scale = 1 / std.view(-1, 1, 1)  # the largest |x / 255 / std|
        assert ((found - expected).abs() <= 1e-6 * scale.clamp(min=1)).all()

    def test_it_leaves_the_image_and_what_is_floating(self) -> None:
        images = IMAGES.clone()
        done = normalize()(images)
        assert torch.equal(images, IMAGES)
        assert normalize()(done) is done

    def test_lists_and_tensors_are_the_same(self) -> None:
        tensors = Normalize(torch.tensor([0.4, 0.5, 0.6]), torch.tensor([0.2, 0.25, 0.3], dtype=torch.float64))
        assert torch.allclose(tensors(IMAGES), normalize()(IMAGES), rtol=0, atol=1e-6)

    def test_a_model_in_double_precision(self) -> None:
        parts = split(Plain()).double()
        exact = (IMAGES.double() / 255 - torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1)) / torch.tensor(
            [0.2, 0.25, 0.3], dtype=torch.float64
        ).view(3, 1, 1)
        assert parts.normalize(IMAGES).dtype == torch.float64
        assert torch.allclose(parts.normalize(IMAGES), exact, rtol=0, atol=5e-6)
        assert parts(IMAGES).dtype == torch.float64
