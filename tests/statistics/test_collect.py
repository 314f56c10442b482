"""Collecting from any model: eval mode and back, what enters its head, nothing random, nothing learned on the way."""

import copy
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import ccvr
from ccvr.core.errors import DataError, ModelError, SpecError, StatisticsError
from ccvr.data.augment import ShiftAndMirror
from ccvr.data.batches import TrainingSamples, epoch, in_order
from ccvr.data.samples import Samples
from ccvr.models.build import MODELS, ModelSpec, build_model
from ccvr.models.digest import backbone_digest
from ccvr.models.preprocess import Normalize
from ccvr.models.random_features import Projection
from ccvr.models.split import SplitModel, split_model
from ccvr.models.transform import FeatureTransform
from ccvr.statistics.accumulate import Accumulator
from ccvr.statistics.collect import collect, random_features, read_features, statistics_of
from ccvr.statistics.kinds import KINDS
from ccvr.statistics.moments import ClassStatistics
from ccvr.statistics.source import Source

TRANSFORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda z: z,
    "tukey:0.5": lambda z: z.clamp(min=0).sqrt(),
    "signed-tukey:0.5": lambda z: z.sign() * z.abs().sqrt(),
}


def network() -> nn.Sequential:
    """Everything that train mode would change: batch normalisation and dropout."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(144, 5)
        )


@pytest.fixture
def model() -> SplitModel:
    return split_model(network(), Normalize([0.5] * 3, [0.25] * 3), torch.zeros(2, 3, 8, 8, dtype=torch.uint8))


@pytest.fixture
def images() -> Samples:
    rng = np.random.default_rng(0)
    pixels = torch.from_numpy(rng.integers(0, 256, (70, 3, 8, 8), dtype=np.uint8))
    return Samples(pixels, torch.from_numpy(rng.choice([0, 1, 3], 70)))  # classes 2 and 4: nobody has them


def gather(model: nn.Module, batches: object, **options: object) -> ClassStatistics:
    """Of five classes, without leaving any out."""
    return collect(model, batches, **{"num_classes": 5, "min_count": 0, **options})


def plain_features(images: Samples) -> Tensor:
    """The features written plainly: a fresh copy of the network, the images normalised, no split."""
    body = network()[:-1].eval()
    with torch.no_grad():
        return body((images.inputs.double() / 255 - 0.5).div(0.25).float())


def close(left: ClassStatistics, right: ClassStatistics, rtol: float) -> bool:
    return torch.equal(left.count, right.count) and all(
        a.shape == b.shape and (not a.numel() or (a - b).abs().max() <= rtol * b.abs().max())
        for a, b in ((left.total, right.total), (left.second, right.second))
    )


def same_bits(left: ClassStatistics, right: ClassStatistics) -> bool:
    names = ("count", "total", "second", "clients", "withheld")
    return left.source == right.source and all(torch.equal(getattr(left, name), getattr(right, name)) for name in names)


# --- models that we did not write -----------------------------------------------------------------------------------


class HeadRegisteredFirst(nn.Module):
    """The head is registered before the layers that it reads, and one that is never used comes last."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Linear(7, 5)
        self.layers = nn.Sequential(nn.Linear(6, 7), nn.Tanh())
        self.unused = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.layers(x))


class TextClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        layer = nn.TransformerEncoderLayer(8, nhead=2, dim_feedforward=12, dropout=0.3, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(tokens)).mean(1))


class Dictionary(HeadRegisteredFirst):
    """Gives its scores in a dictionary, after a softmax: the head can be named but not found."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"probabilities": super().forward(x).softmax(1)}


class Tied(nn.Module):
    """The embedding's weight is the head's."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.middle, self.head = nn.Embedding(5, 6), nn.Linear(6, 6), nn.Linear(6, 5)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.middle(self.embedding(tokens % 5).mean(1)))


@dataclass(frozen=True)
class Case:
    """A model, the path of its head, and the model without it."""

    make: Callable[[], nn.Module]
    head: str
    truncated: Callable[[nn.Module], Callable[[Tensor], Tensor]]
    inputs: str = "vectors"
    named: bool = False

    def model(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            return self.make()

    def features(self, x: Tensor) -> Tensor:
        fresh = self.model().eval()
        with torch.no_grad():
            return self.truncated(fresh)(x)

    @property
    def path(self) -> str | None:
        return self.head if self.named else None


CASES = {
    "sequential": Case(
        lambda: nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 4), nn.ReLU(), nn.Linear(4, 5)),
        "4",
        lambda model: model[:-1],
    ),
    "batch norm and dropout": Case(
        lambda: nn.Sequential(
            nn.Linear(6, 9), nn.BatchNorm1d(9), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(9, 5)
        ),
        "4",
        lambda model: model[:-1],
    ),
    "no bias": Case(lambda: nn.Sequential(nn.Linear(6, 9), nn.Linear(9, 5, bias=False)), "1", lambda model: model[:-1]),
    "head first": Case(HeadRegisteredFirst, "classifier", lambda model: model.layers),
    "text": Case(
        TextClassifier, "head", lambda model: lambda x: model.encoder(model.embedding(x)).mean(1), inputs="tokens"
    ),
    "tied": Case(Tied, "head", lambda model: lambda x: model.middle(model.embedding(x % 5).mean(1)), inputs="tokens"),
    "named": Case(Dictionary, "classifier", lambda model: model.layers, named=True),
    "all head": Case(lambda: nn.Linear(6, 5), "", lambda model: lambda x: x),
    "split": Case(
        lambda: split_model(HeadRegisteredFirst(), nn.Identity(), torch.zeros(2, 6)),
        "head",
        lambda model: model.features,
    ),
}


def samples(inputs: str, number: int = 60) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(1)
    x = rng.integers(0, 11, (number, 6)) if inputs == "tokens" else rng.standard_normal((number, 6), dtype=np.float32)
    return torch.from_numpy(x), torch.from_numpy(rng.integers(0, 5, number))


def cut(x: Tensor, y: Tensor, size: int = 16) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(x.split(size), y.split(size), strict=True)


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def everything(model: nn.Module) -> list[object]:
    """What must not change: tensors, modes, gradient flags, gradients and hooks, by module."""
    state = {name: (tensor.tolist(), tensor.requires_grad) for name, tensor in model.state_dict(keep_vars=True).items()}
    modules = [
        (path, module.training, dict(module._forward_hooks), dict(module._forward_pre_hooks))
        for path, module in model.named_modules()
    ]
    return [state, modules, [parameter.grad for parameter in model.parameters()]]


def frozen_in_part(model: nn.Module) -> nn.Module:
    """In train mode but for one part, with one parameter that is not trained, and hooks of the user's."""
    model.train()
    *_, last = model.modules()
    last.eval()
    next(model.parameters()).requires_grad_(False)
    last.register_forward_hook(lambda module, inputs, output: None)
    model.register_forward_pre_hook(lambda module, inputs: None)
    return model


class TestAnyModel:
    def test_features_are_those_of_the_truncated_model(self, case: Case) -> None:
        x, y = samples(case.inputs)
        parts = list(read_features(case.model().train(), cut(x, y), case.head))
        z = case.features(x)
        torch.testing.assert_close(torch.cat([part for part, _ in parts]), z, rtol=1e-5, atol=1e-6)
        assert torch.equal(torch.cat([labels for _, labels in parts]), y)

    @pytest.mark.parametrize("transform", TRANSFORMS)
    def test_statistics_are_those_of_the_features(self, case: Case, transform: str) -> None:
        x, y = samples(case.inputs)
        found = gather(case.model().train(), cut(x, y), transform=transform, head=case.path)
        expected = statistics_of(TRANSFORMS[transform](case.features(x)), y, 5)
        assert close(found, expected, rtol=1e-5)
        assert found.source == Source(backbone_digest(case.model(), case.head), case.head, (), transform)

    def test_the_model_is_left_as_it_was(self, case: Case) -> None:
        model = frozen_in_part(case.model())
        before = everything(model)
        state = torch.random.get_rng_state()
        gather(model, cut(*samples(case.inputs)), taps="auto", head=case.path)
        assert everything(model) == before
        assert torch.equal(torch.random.get_rng_state(), state)

    @pytest.mark.parametrize("where", ["the first batch", "a later batch", "the labels", "the batches"])
    def test_the_model_is_left_as_it_was_after_an_error(self, case: Case, where: str) -> None:
        x, y = samples(case.inputs)
        wrong = (x[:4].unsqueeze(1).unsqueeze(1).expand(4, 3, 2, 6), y[:4])

        def broken() -> Iterator[tuple[Tensor, Tensor]]:
            if where != "the first batch":
                yield x, y
            if where == "the labels":
                yield x, y + 5
            if where == "the batches":
                raise OSError("disk gone")
            yield wrong

        model = frozen_in_part(case.model())
        before = everything(model)
        errors = (OSError, RuntimeError, IndexError, ValueError, AssertionError, ModelError, StatisticsError)
        with pytest.raises(errors):
            gather(model, broken(), head=case.path)
        assert everything(model) == before
        assert torch.is_grad_enabled()

    @pytest.mark.parametrize("size", [1, 7, 1000])
    def test_batches_of_any_size_give_the_same(self, case: Case, size: int) -> None:
        x, y = samples(case.inputs)
        whole = gather(case.model(), [(x, y)], head=case.path, taps="auto")
        found = gather(case.model(), cut(x, y, size), head=case.path, taps="auto")
        assert close(found, whole, rtol=1e-5)
        assert found.source == whole.source

    def test_the_digest_is_the_backbone_s(self, case: Case) -> None:
        model, batches = case.model(), list(cut(*samples(case.inputs)))
        digest = gather(model, batches, head=case.path).source.model
        assert digest == backbone_digest(model, case.head)
        state = model.state_dict(keep_vars=True)
        prefix = f"{case.head}." if case.head else ""
        of_backbone = {id(tensor) for name, tensor in state.items() if not name.startswith(prefix)}
        for name, tensor in state.items():
            other = copy.deepcopy(model)
            other.state_dict()[name].view(-1)[:1] += 1
            local = gather(other, batches, head=case.path).source.model
            assert (local == digest) == (id(tensor) not in of_backbone), name

    def test_taps_stand_before_the_features(self, case: Case) -> None:
        x, y = samples(case.inputs)
        plain = gather(case.model(), [(x, y)], head=case.path)
        found = gather(case.model(), [(x, y)], head=case.path, taps="auto")
        d = plain.num_features
        assert found.num_features > d or found.source.taps == ()
        torch.testing.assert_close(found.total[:, -d:], plain.total, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found.second[:, -d:, -d:], plain.second, rtol=1e-5, atol=1e-4)


def test_taps_by_name_are_kept_as_paths() -> None:
    case = CASES["split"]
    x, y = samples("vectors")
    found = gather(case.model(), [(x, y)], taps="layers.0+layers")
    assert found.source.taps == ("backbone.model.layers.0", "backbone.model.layers")
    model = case.model().backbone.model
    with torch.no_grad():
        linear = model.layers[0](x)
        expected = torch.cat([linear, linear.tanh(), linear.tanh()], 1)
    assert close(found, statistics_of(expected, y, 5), rtol=1e-5)


def test_a_wrong_tap_and_a_wrong_head() -> None:
    x, y = samples("vectors")
    with pytest.raises(ModelError, match=r'^the tap "layer" of the model is none of its modules\. Did you mean'):
        gather(HeadRegisteredFirst(), [(x, y)], taps="layer")
    with pytest.raises(ModelError, match=r'^the head "fc" is not an nn.Linear of this model'):
        gather(HeadRegisteredFirst(), [(x, y)], head="fc")
    with pytest.raises(ModelError, match=r"^no nn.Linear's output is the model's output"):
        gather(Dictionary(), [(x, y)])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_model_in_another_precision(dtype: torch.dtype) -> None:
    case = CASES["sequential"]
    x, y = samples("vectors")
    found = gather(case.model().to(dtype), [(x.to(dtype), y)])
    assert close(found, statistics_of(case.features(x), y, 5), rtol=3e-2 if dtype == torch.bfloat16 else 1e-5)
    assert found.total.dtype == found.second.dtype == torch.float64


# --- what a client gives --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transform", ["none", "tukey:0.5"])
def test_statistics_are_those_of_the_transformed_features(model, images, transform):
    expected = statistics_of(TRANSFORMS[transform](plain_features(images)), images.labels, 5)
    found = gather(model, in_order(images), transform=transform)
    assert close(found, expected, rtol=1e-5)
    assert found.source.transform == transform
    assert found.count.tolist() == torch.bincount(images.labels, minlength=5).tolist()


@pytest.mark.parametrize(
    ("given", "stored"), [("none", "none"), ("tukey", "tukey:0.5"), ("signed-tukey:2.5e-1", "signed-tukey:0.25")]
)
def test_the_transform_is_stored_in_its_normal_form(model, images, given, stored):
    assert gather(model, in_order(images), transform=given).source.transform == stored


def test_the_transform_is_the_caller_s_and_not_the_head_s(model, images):
    raw = gather(model, in_order(images))
    model.head.transform = FeatureTransform("tukey", 0.5)
    assert torch.equal(gather(model, in_order(images)).second, raw.second)


@pytest.mark.parametrize("training", [True, False])
def test_the_model_comes_back_as_it_was(model, images, training):
    model.train(training)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    gather(model, in_order(images))
    assert model.training is training
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name  # running moments of batch normalisation among them


def test_the_mode_comes_back_when_the_batches_break_off(model, images):
    def broken():
        yield next(in_order(images))
        raise OSError("disk gone")

    model.train()
    with pytest.raises(OSError, match="disk gone"):
        gather(model, broken())
    assert model.training
    before = everything(model)
    half = read_features(model, in_order(images, batch_size=10), "head")
    next(half)
    half.close()
    assert everything(model) == before


def test_collecting_neither_tracks_gradients_nor_leaks_its_mode(model, images):
    model.train()
    for z, _ in read_features(model, in_order(images, batch_size=30), "head"):
        assert not z.requires_grad
        assert torch.is_grad_enabled(), "the consumer's own work is not touched"
        assert model.training
        assert not model.head._forward_pre_hooks


def test_features_are_the_same_each_time_and_draw_nothing(model, images):
    state = torch.random.get_rng_state()
    first, second = (gather(model, in_order(images)) for _ in range(2))
    assert same_bits(first, second)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_images_in_order_are_not_augmented(model, images):
    rng = np.random.default_rng(1)
    augmented = epoch(TrainingSamples.prepare(images, ShiftAndMirror()), np.arange(70), 70, rng=rng)
    expected = statistics_of(plain_features(images), images.labels, 5)
    assert close(gather(model, in_order(images)), expected, rtol=1e-5)
    shifted = [(crops.images, labels) for crops, labels in augmented]
    assert not close(gather(model, shifted), expected, rtol=1e-2)


@pytest.mark.parametrize("batch_size", [1, 7, 64, 1000])
def test_batches_of_any_size_give_the_same_to_rounding(model, images, batch_size):
    whole = gather(model, in_order(images, batch_size=70), transform="tukey")
    assert close(gather(model, in_order(images, batch_size=batch_size), transform="tukey"), whole, rtol=1e-6)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"kernel"}))
def test_clients_add_up_to_all_images(model, images, kind):
    shards = np.array_split(np.random.default_rng(2).permutation(70), 9)
    clients = [gather(model, in_order(images, shard), kind=kind) for shard in shards]
    merged = sum(clients[1:], start=clients[0])
    whole = gather(model, in_order(images), kind=kind)
    assert merged.kind == kind
    assert torch.equal(merged.count, whole.count)
    torch.testing.assert_close(merged.total, whole.total, rtol=1e-6, atol=1e-6)
    assert close(merged, whole, rtol=1e-6) == (kind != "means")  # the means of more clients say more


def test_the_digest_is_the_backbone_s(model, images):
    found = gather(model, in_order(images))
    assert found.source.model == model.digest()
    with torch.no_grad():
        model.head.weight.add_(1)
    assert gather(model, in_order(images)).source.model == found.source.model
    with torch.no_grad():
        next(model.backbone.parameters()).view(-1)[0] += 1e-6
    local = gather(model, in_order(images))
    with pytest.raises(StatisticsError, match=r"^statistics with model '"):
        found + local


def test_the_digest_sees_running_moments(model, images):
    found = gather(model, in_order(images)).source.model
    model.train()(images.inputs)
    assert gather(model, in_order(images)).source.model != found


def test_a_batch_of_no_images_gives_statistics_of_nothing(model, images):
    found = gather(model, in_order(images, np.empty(0, np.int64)))
    assert (found.num_classes, found.num_features, found.count.sum()) == (5, 144, 0)
    whole = gather(model, in_order(images))
    assert same_bits(whole + found, whole)


@pytest.mark.parametrize("batches", [[], iter([])])
def test_a_client_without_batches(model, batches):
    with pytest.raises(StatisticsError) as caught:
        gather(model, batches)
    assert str(caught.value) == "there are no batches: this client has no samples, and nothing to send."


X, Y = samples("vectors", 4)


@pytest.mark.parametrize(
    "batch",
    [X, (X,), (X, Y, Y), (X, Y.tolist()), (X.numpy(), Y), {"inputs": X, "labels": Y}, None, "xy"],
    ids=["inputs", "one", "three", "list", "array", "dict", "none", "text"],
)
@pytest.mark.parametrize("first", [True, False])
def test_batches_that_are_no_pairs_of_tensors(batch, first):
    model = frozen_in_part(CASES["sequential"].model())
    before = everything(model)
    with pytest.raises(DataError) as caught:
        gather(model, [batch] if first else [(X, Y), batch])
    got = type(batch).__name__
    said = f"expected batches of two tensors (inputs, labels), got {got}. Give batches as such pairs."
    assert str(caught.value) == said
    assert everything(model) == before


def test_batches_may_be_lists_and_come_once():
    model = CASES["sequential"].model()
    expected = gather(model, [(X, Y), (X, Y)])
    assert same_bits(gather(model, ([x, y] for x, y in [(X, Y), (X, Y)])), expected)
    assert expected.count.sum() == 8


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (Y.new_tensor([0, 1, 5, 2]), "label 5 is not one of 5 classes (0 to 4). Check the labels, or collect with"),
        (Y.new_tensor([0, -1, 1, 2]), "label -1 is not one of 5 classes (0 to 4). Check the labels, or collect with"),
        (Y.float(), "features of shape [4, 4] and torch.float32 labels of shape [4]; give [B, d], [B]."),
        (Y[:3], "features of shape [4, 4] and torch.int64 labels of shape [3]; give [B, d], [B]."),
        (Y.view(4, 1), "features of shape [4, 4] and torch.int64 labels of shape [4, 1]; give [B, d], [B]."),
    ],
)
def test_wrong_labels(labels, message):
    with pytest.raises(StatisticsError) as caught:
        gather(CASES["sequential"].model(), [(X, labels)])
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
@pytest.mark.parametrize("num_classes", [5, 300])
def test_labels_of_every_type_of_integer(dtype, num_classes):
    model = CASES["sequential"].model()
    model[-1] = nn.Linear(4, num_classes)
    y = Y + (100 if num_classes == 300 else 0)
    expected = gather(model, [(X, y)], num_classes=num_classes)
    assert same_bits(gather(model, [(X, y.to(dtype))], num_classes=num_classes), expected)


def test_an_unknown_kind():
    with pytest.raises(StatisticsError) as caught:
        gather(CASES["sequential"].model(), [(X, Y)], kind="ful")
    assert str(caught.value) == (
        'no kind of statistics "ful". Did you mean "full"? Known: diagonal, full, kernel, means, pooled.'
    )


def test_an_unknown_transform():
    with pytest.raises(SpecError, match=r'^no feature transform "tukee"'):
        gather(CASES["sequential"].model(), [(X, Y)], transform="tukee")


def test_a_model_without_parameters():
    with pytest.raises(ModelError, match=r"^no nn.Linear's output is the model's output"):
        gather(nn.Sequential(nn.Flatten()), [(X, Y)])


def test_padded_batches_of_other_lengths_have_the_same_width():
    tokens, y = samples("tokens")
    found = gather(CASES["text"].model(), [(tokens, y), (tokens[:, :3], y)], taps="embedding")
    assert found.count.sum() == 2 * len(y)


def test_features_whose_width_changes_between_batches():
    sums = Accumulator(2)
    sums.update(torch.zeros(3, 4), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(StatisticsError, match=r"^a batch has 5 features, those before had 4\."):
        sums.update(torch.zeros(3, 5), torch.zeros(3, dtype=torch.int64))


def test_a_diverged_model_is_named(model, images):
    with torch.no_grad():
        next(model.backbone.parameters()).fill_(torch.nan)
    with pytest.raises(StatisticsError, match="not finite"):
        gather(model, in_order(images))


@pytest.mark.parametrize("name", MODELS)
def test_every_network_of_the_table(name):
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (5, 3, 32, 32), dtype=np.uint8))
    model = build_model(ModelSpec(name), pixels, 2, preprocess=Normalize([0.5] * 3, [0.25] * 3), seed=0)
    labels = torch.tensor([0, 1, 1, 0, 1])
    found = gather(model, in_order(Samples(pixels, labels)), num_classes=2)
    with torch.no_grad():
        of_mean = model.head.score((found.total / found.count.unsqueeze(1)).float())
        scores = model.eval()(pixels)
    # The head is affine, so the score of a class's mean feature is the mean score of its images.
    expected = torch.stack([scores[labels == label].mean(0) for label in range(2)])
    torch.testing.assert_close(of_mean, expected, rtol=1e-4, atol=1e-5)


# --- small classes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"kernel"}))
@settings(max_examples=15)
@given(
    sizes=st.lists(st.integers(0, 12), min_size=5, max_size=5).filter(any),
    min_count=st.integers(0, 13),
    cut_at=st.integers(1, 9),
)
def test_small_classes_are_withheld_as_if_they_were_not_there(kind, sizes, min_count, cut_at):
    model = CASES["sequential"].model()
    y = torch.repeat_interleave(torch.arange(5), torch.tensor(sizes))
    y = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(0))]
    x, _ = samples("vectors", len(y))
    found = gather(model, cut(x, y, cut_at), kind=kind, min_count=min_count)
    kept = torch.tensor([size >= min_count for size in sizes])[y]
    expected = gather(model, [(x[kept], y[kept])], kind=kind)
    assert found.count.tolist() == [size if size >= min_count else 0 for size in sizes]
    assert int(found.withheld) == sum(size for size in sizes if size < min_count)
    assert found.clients.tolist() == [int(n > 0) for n in found.count.tolist()]
    torch.testing.assert_close(found.total, expected.total, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.second, expected.second, rtol=1e-5, atol=1e-5)


def test_fewer_than_eight_are_withheld_unless_something_else_is_said():
    model = CASES["sequential"].model()
    x, _ = samples("vectors", 15)
    y = torch.tensor([0] * 7 + [3] * 8)
    found = collect(model, [(x, y)], num_classes=5)
    assert found.count.tolist() == [0, 0, 0, 8, 0]
    assert int(found.withheld) == 7
    assert not found.total[0].any()
    assert gather(model, [(x, y)]).count.tolist() == [7, 0, 0, 8, 0]


# --- random features ------------------------------------------------------------------------------------------------


def agreed(model: nn.Module, **options: object) -> Projection:
    first = gather(model, [samples("vectors")], kind="diagonal", **options)
    return random_features(first, num_features=10, bandwidth=0.8, seed=4)


class TestRandomFeatures:
    def test_mean_and_deviation_are_those_of_all_features(self) -> None:
        z = torch.randn(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3 + 7
        y = torch.arange(50) % 5
        for kind in ("full", "diagonal"):
            parts = [statistics_of(z[i::3], y[i::3], 5, kind=kind) for i in range(3)]
            found = random_features(sum(parts[1:], start=parts[0]), num_features=9, bandwidth=0.3, seed=2)
            torch.testing.assert_close(found.mean, z.mean(0))
            torch.testing.assert_close(found.std, z.std(0, correction=0))
            assert (found.num_features, found.bandwidth, found.seed) == (9, 0.3, 2)

    def test_a_unit_that_never_fires_is_not_blown_up(self) -> None:
        z = torch.randn(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        z[:, 1] = 0.1
        found = random_features(statistics_of(z, torch.arange(50) % 5, 5), num_features=9)
        assert found.std[1] == 1
        torch.testing.assert_close(found.std[::2], z[:, ::2].std(0, correction=0))

    def test_statistics_that_say_too_little(self) -> None:
        z, y = torch.ones(4, 3), torch.zeros(4, dtype=torch.int64)
        with pytest.raises(StatisticsError) as caught:
            random_features(statistics_of(z, y, 2, kind="pooled"))
        assert str(caught.value) == ('these are pooled statistics, not diagonal. Collect them with kind="diagonal".')
        with pytest.raises(StatisticsError, match=r"^the statistics hold no samples"):
            random_features(statistics_of(z[:0], y[:0], 2, kind="diagonal"))

    @pytest.mark.parametrize("taps", [None, "auto"])
    def test_statistics_are_those_of_random_features(self, taps: str | None) -> None:
        case = CASES["sequential"]
        model, (x, y) = case.model(), samples("vectors")
        projection = agreed(model, taps=taps)
        found = gather(model, cut(x, y), kind="kernel", projection=projection, taps=taps)
        u = case.features(x)
        if taps:
            with torch.no_grad():
                u = torch.cat([model[:2](x), u], 1)
        omega, phase = projection.weights
        phi = torch.cos(u @ omega + phase).double()
        torch.testing.assert_close(found.second, phi.T @ phi, rtol=1e-4, atol=1e-4)
        of_class = torch.stack([phi[y == label].sum(0) for label in range(5)])
        torch.testing.assert_close(found.total, of_class, rtol=1e-4, atol=1e-4)
        assert found.source.projection == projection.digest
        assert found.projection is projection

    def test_clients_that_drew_others_do_not_add_up(self) -> None:
        model = CASES["sequential"].model()
        projection = agreed(model)
        other = Projection(projection.mean, projection.std, 10, 0.8, 5)
        mine, theirs = (gather(model, [(X, Y)], kind="kernel", projection=p) for p in (projection, other))
        with pytest.raises(StatisticsError, match=r"^statistics with projection '"):
            mine + theirs

    @pytest.mark.parametrize(("kind", "given"), [("kernel", False), ("full", True), ("pooled", True)])
    def test_kernel_and_projection_belong_together(self, kind: str, given: bool) -> None:
        model = CASES["sequential"].model()
        with pytest.raises(StatisticsError) as caught:
            gather(model, [(X, Y)], kind=kind, projection=agreed(model) if given else None)
        assert str(caught.value) == (
            'kind "kernel" and a projection belong together. Make one with ccvr.random_features.'
        )

    def test_a_projection_of_other_taps(self) -> None:
        model = CASES["sequential"].model()
        with pytest.raises(StatisticsError, match="projection"):
            gather(model, [(X, Y)], kind="kernel", projection=agreed(model, taps="auto"))

    def test_a_transform_that_would_not_be_applied(self) -> None:
        model = CASES["sequential"].model()
        with pytest.raises(StatisticsError, match="transform"):
            gather(model, [(X, Y)], kind="kernel", projection=agreed(model), transform="tukey")

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
    def test_a_model_in_another_precision(self, dtype: torch.dtype) -> None:
        model = CASES["sequential"].model()
        projection = agreed(model)
        expected = gather(model, [(X, Y)], kind="kernel", projection=projection)
        found = gather(model.to(dtype), [(X.to(dtype), Y)], kind="kernel", projection=projection)
        assert close(found, expected, rtol=5e-2 if dtype == torch.bfloat16 else 1e-5)


class Restless(nn.Module):
    """Counts its passes, also in eval mode, as some losses and queues do."""

    def __init__(self):
        super().__init__()
        self.register_buffer("passes", torch.zeros(()))
        self.body, self.head = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x):
        self.passes += 1
        return self.head(self.body(x))


def test_buffers_that_change_in_eval_mode_come_back():
    model = Restless()
    statistics = gather(model, [(torch.randn(20, 4), torch.arange(20) % 2)], num_classes=2, min_count=0)
    assert model.passes == 0
    ccvr.calibrate(model, statistics, "lda")


def test_buffers_come_back_before_an_error_is_seen_and_not_after_it():
    model, labels = Restless(), torch.tensor([0, 1, 9])
    try:
        gather(model, [(torch.randn(3, 4), labels % 2), (torch.randn(3, 4), labels)], num_classes=2, min_count=0)
    except StatisticsError as error:
        assert model.passes == 0
        model.passes += 1000
        del error
    assert model.passes == 1000


class Merging(nn.Linear):
    """Folds something into its weights in eval mode and takes it out again in train mode, as LoRA layers do."""

    def train(self, mode=True):
        if mode != self.training:
            with torch.no_grad():
                self.weight.add_(-1.0 if mode else 1.0)
        return super().train(mode)


@pytest.mark.parametrize("training", [True, False])
def test_layers_that_act_on_their_mode_are_back_in_it(training):
    model = nn.Sequential(Merging(4, 3), nn.ReLU(), nn.Linear(3, 2)).train(training)
    before = model[0].weight.clone()
    gather(model, [(torch.randn(20, 4), torch.arange(20) % 2)], num_classes=2)
    torch.testing.assert_close(model[0].weight, before)
    assert model[0].training is training


class Zeroing(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x):
        z = self.body(x)
        scores = self.head(z)
        z.zero_()
        return scores


def test_what_happens_to_features_behind_the_head_does_not_matter():
    found = gather(Zeroing(), [(torch.randn(20, 4), torch.arange(20) % 2)], num_classes=2, min_count=0)
    assert found.total.all()


def test_a_series_is_averaged_over_its_length_and_not_over_its_channels():
    body = nn.Sequential(nn.Conv1d(2, 16, 3), nn.ReLU(), nn.Conv1d(16, 8, 3), nn.AdaptiveAvgPool1d(1), nn.Flatten())
    model = nn.Sequential(*body, nn.Linear(8, 2))
    x, y = torch.randn(30, 2, 100), torch.arange(30) % 2
    found = gather(model, [(x, y)], num_classes=2, min_count=0, taps="auto")
    assert found.num_features == 16 + 8
    with torch.no_grad():
        expected = model[0](x).mean(2).double()
    torch.testing.assert_close(found.total.sum(0)[:16], expected.sum(0), rtol=1e-4, atol=1e-4)


def test_a_first_batch_of_one_sample_has_the_same_taps_as_others():
    model = CASES["text"].model()
    tokens, y = samples("tokens")
    single, several = (gather(model, [(tokens[:n], y[:n])], min_count=0, taps="auto") for n in (1, 9))
    assert single.source == several.source


def test_features_of_one_s_own_can_be_calibrated_with():
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    x, y = torch.randn(60, 4), torch.arange(60) % 2
    with torch.no_grad():
        z = model[:2](x)
    own = ccvr.statistics_of(z, y, model=model, head="2")
    collected = gather(model, [(x, y)], num_classes=2, min_count=0)
    assert own.source == collected.source
    assert close(own, collected, rtol=1e-6)
    ccvr.calibrate(model, own, "lda")


HEAVY = ("sklearn", "scipy", "matplotlib", "rich", "tyro", "PIL", "ccvr.experiment", "ccvr.data", "ccvr.training")


def test_a_client_loads_little():
    code = "import sys, ccvr; ccvr.collect; ccvr.merge; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "torch" in loaded
    assert not [name for name in loaded if name.startswith(HEAVY)]


def test_more_classes_than_the_head_scores_are_refused_before_memory_is_asked_for():
    with pytest.raises(StatisticsError) as caught:
        gather(network(), [(torch.zeros(2, 3, 8, 8), torch.zeros(2).long())], num_classes=10**6)
    assert str(caught.value) == 'num_classes is 1,000,000; the head "5" scores 5 classes.'
