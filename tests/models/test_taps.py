import copy
import io
import itertools
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from ccvr.core.errors import ModelError
from ccvr.models.build import MODELS, ModelSpec, build_model
from ccvr.models.find import find_head
from ccvr.models.modes import evaluating
from ccvr.models.preprocess import Normalize
from ccvr.models.split import Backbone, SplitModel
from ccvr.models.taps import TappedBackbone, find_taps, flatten, reading

X = torch.randn(6, 2, 8, 8, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """Two convolutions and two linear layers, some behind names that are used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(7, 3)
        self.low = nn.Sequential(OrderedDict(conv=nn.Conv2d(2, 4, 3, padding=1), relu=nn.ReLU()))
        self.high = nn.Sequential(OrderedDict(conv=nn.Conv2d(4, 5, 3, padding=1), relu=nn.ReLU()))
        self.last = nn.Linear(5, 7)
        self.after = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.head(self.last(self.high(self.low(x)).mean((2, 3)))))


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        return make().eval()


@pytest.fixture
def net() -> nn.Module:
    return seeded(Net)


def read(model: nn.Module, head: str, taps: Sequence[str] = (), x: Tensor = X) -> Tensor:
    with torch.no_grad(), reading(model, head, taps) as features:
        return features(x)


def hooks(model: nn.Module) -> list[tuple[list[int], list[int]]]:
    return [(list(module._forward_hooks), list(module._forward_pre_hooks)) for module in model.modules()]


class TestFlatten:
    @given(st.integers(0, 5), st.integers(1, 3000))
    def test_a_vector_is_left_as_it_is(self, size: int, width: int) -> None:
        t = torch.zeros(size, width)
        assert flatten(t) is t

    @given(st.integers(1, 500), st.integers(1, 40), st.integers(1, 40))
    def test_a_map_is_averaged_to_no_more_than_400_numbers(self, channels: int, height: int, width: int) -> None:
        found = flatten(torch.ones(2, channels, height, width))
        assert found.shape[0] == 2
        assert found.shape[1] % channels == 0
        assert channels <= found.shape[1] <= max(400, channels)
        assert torch.allclose(found, torch.ones_like(found))

    @pytest.mark.parametrize(
        ("channels", "side", "places"),
        [
            (6, 14, 7),
            (16, 32, 4),
            (16, 5, 5),
            (4, 10, 10),
            (100, 8, 2),
            (32, 6, 3),
            (401, 9, 1),
            (1, 40, 20),
            (1, 7, 7),
        ],
    )
    def test_the_places_of_a_map_divide_it(self, channels: int, side: int, places: int) -> None:
        t = torch.randn(3, channels, side, side, generator=torch.Generator().manual_seed(1))
        cell = side // places
        by_hand = t.view(3, channels, places, cell, places, cell).mean((3, 5)).flatten(1)
        assert torch.allclose(flatten(t), by_hand, atol=1e-6)

    def test_a_side_that_nothing_divides_keeps_most_of_its_places(self) -> None:
        t = torch.randn(2, 4, 13, 26, generator=torch.Generator().manual_seed(1))  # 10 x 10 places at most
        assert flatten(t).shape == (2, 4 * 10 * 10)

    def test_height_and_width_are_told_apart(self) -> None:
        t = torch.randn(2, 16, 8, 3, generator=torch.Generator().manual_seed(1))
        assert torch.allclose(flatten(t), t.view(2, 16, 4, 2, 3).mean(3).flatten(1), atol=1e-6)

    def test_tokens_are_averaged_however_many(self) -> None:
        tokens = torch.randn(3, 20, 30, generator=torch.Generator().manual_seed(1))
        assert torch.allclose(flatten(tokens), torch.stack([tokens[i].mean(0) for i in range(3)]), atol=1e-6)
        assert torch.allclose(flatten(tokens[:, :4, :10]), tokens[:, :4, :10].mean(1), atol=1e-6)
        volume = torch.randn(3, 4, 5, 6, 7, generator=torch.Generator().manual_seed(1))
        assert torch.allclose(flatten(volume), volume.mean((2, 3, 4)), atol=1e-6)
        series = torch.randn(3, 16, 300, generator=torch.Generator().manual_seed(1))
        assert torch.allclose(flatten(series, channels_first=True), series.mean(2), atol=1e-6)

    @pytest.mark.parametrize("shape", [(7,), (3, 4, 4), (30, 30), (3, 5)])
    def test_no_samples_have_the_width_of_others(self, shape: tuple[int, ...]) -> None:
        assert flatten(torch.zeros(0, *shape)).shape == (0, flatten(torch.zeros(2, *shape)).shape[1])


class TestReading:
    def test_it_is_what_enters_the_head(self, net: Net) -> None:
        with torch.no_grad():
            expected = net.last(net.high(net.low(X)).mean((2, 3)))
        assert torch.equal(read(net, "head"), expected)

    def test_taps_stand_before_it_in_their_order(self, net: Net) -> None:
        with torch.no_grad():
            low = net.low(X)
            high = net.high.conv(low)
            z = net.last(nn.functional.relu(high).mean((2, 3)))
        found = read(net, "head", ("high.conv", "low"))
        pooled = high.view(6, 5, 8, 8)  # 5 · 8² = 320
        assert torch.allclose(found[:, :320], pooled.flatten(1), atol=1e-6)
        assert torch.allclose(found[:, 320:-7], low.flatten(1), atol=1e-6)
        assert torch.equal(found[:, -7:], z)

    def test_a_tap_is_a_layer_s_own_output_even_where_the_next_works_in_place(self) -> None:
        model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 3))
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            expected = model[0](x)
        assert (expected < 0).any()
        assert torch.equal(read(model, "2", ("0",), x)[:, :5], expected)

    def test_hooks_of_the_user_s_stay_and_run(self, net: Net) -> None:
        seen = []
        net.head.register_forward_pre_hook(lambda module, inputs: seen.append("before"))
        net.low.register_forward_hook(lambda module, inputs, output: seen.append("after"))
        before = hooks(net)
        read(net, "head", ("low",))
        assert hooks(net) == before
        assert sorted(seen) == ["after", "before"]

    def test_the_hooks_are_gone_after_an_error(self, net: Net) -> None:
        before = hooks(net)
        with pytest.raises(ModelError, match=r"^the model fails on inputs"):
            read(net, "head", ("low", "high"), torch.zeros(1, 9, 8, 8))
        assert hooks(net) == before

    def test_the_hooks_are_gone_where_a_tap_is_not_there(self, net: Net) -> None:
        before = hooks(net)
        with pytest.raises((AttributeError, ModelError)):
            read(net, "head", ("low", "nowhere"))
        assert hooks(net) == before

    def test_a_failed_pass_leaves_nothing_for_the_next(self, net: Net) -> None:
        expected = read(net, "head", ("low",))
        with torch.no_grad(), reading(net, "head", ("low",)) as features:
            with pytest.raises(ModelError, match=r"^the model fails on inputs"):
                features(torch.zeros(1, 9, 8, 8))
            assert torch.equal(features(X), expected)
            assert torch.equal(features(X[:2]), expected[:2])

    def test_a_pass_around_the_head(self) -> None:
        class Skips(Net):
            def forward(self, x: Tensor) -> Tensor:
                return self.low(x)

        with pytest.raises(ModelError) as caught:
            read(Skips(), "head")
        assert str(caught.value) == (
            "the model did not reach its head in this pass; the head must be used in every pass."
        )

    def test_a_tap_that_is_used_twice(self) -> None:
        class Twice(Net):
            def forward(self, x: Tensor) -> Tensor:
                return super().forward(x + self.low(x)[:, :2])

        with pytest.raises(ModelError) as caught:
            read(Twice(), "head", ("low",))
        assert str(caught.value) == '"low" is used twice in one pass; what is read must be used once.'

    @pytest.mark.parametrize("gives", ["a tuple", "a number", "another batch", "nothing"])
    def test_a_tap_that_gives_no_tensor_for_each_sample(self, gives: str) -> None:
        class Odd(nn.Module):
            def forward(self, x: Tensor) -> object:
                return {"a tuple": (x, x), "a number": x.mean((1, 2, 3)), "another batch": x[:-1]}[gives]

        class Around(Net):
            def __init__(self) -> None:
                super().__init__()
                self.odd = Odd()

            def forward(self, x: Tensor) -> Tensor:
                if gives != "nothing":
                    self.odd(x)
                return super().forward(x)

        with pytest.raises(ModelError) as caught:
            read(Around(), "head", ("odd",))
        assert str(caught.value) == (
            'the tap "odd" gives no tensor [B, …] for each of B samples. Choose another layer.'
        )

    @pytest.mark.parametrize("tap", ["head", "after"])
    def test_a_tap_that_is_not_before_the_head(self, net: Net, tap: str) -> None:
        # Under a new head the old one's scores are not there any more: no model could serve such a tap.
        with pytest.raises(ModelError, match=f'"{tap}"'):
            read(net, "head", (tap,))

    def test_two_threads_on_one_model_read_each_their_own(self, net: Net) -> None:
        parts = [X[:3], X[3:] * 2]
        expected = [read(net, "head", ("low",), part) for part in parts]
        assert in_threads(lambda part: read(net, "head", ("low",), part), parts, expected)


def in_threads(run: Callable[[Tensor], Tensor], parts: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    """Whether threads that start together get what each part gives alone, every time."""
    right: list[bool] = []
    start = threading.Barrier(len(parts))

    def work(index: int) -> None:
        start.wait(timeout=10)
        with torch.no_grad():
            right.extend(torch.equal(run(parts[index]), expected[index]) for _ in range(30))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(parts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(right) == 30 * len(parts) and all(right)


class Handshake(nn.Module):
    """A layer in which two passes wait for each other, so that they are certainly under way together."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.barriers: list[threading.Barrier] = []

    def forward(self, x: Tensor) -> Tensor:
        for barrier in self.barriers:
            barrier.wait(timeout=10)
        return self.linear(x)


TAPS = ("low", "high.conv")


@pytest.fixture
def tapped(net: Net) -> TappedBackbone:
    return TappedBackbone(Backbone(copy.deepcopy(net), "head"), [f"model.{tap}" for tap in TAPS]).eval()


class TestTappedBackbone:
    def test_it_gives_what_reading_gives(self, net: Net, tapped: TappedBackbone) -> None:
        with torch.no_grad():
            assert torch.equal(tapped(X), read(net, "head", TAPS))
            assert torch.equal(tapped(X[:1]), read(net, "head", TAPS, X[:1]))

    def test_gradients_pass_through_the_taps(self, tapped: TappedBackbone) -> None:
        tapped(X)[:, :10].sum().backward()
        assert tapped.backbone.model.low.conv.weight.grad.abs().sum() > 0
        assert tapped.backbone.model.last.weight.grad.abs().sum() == 0

    def test_a_deep_copy_is_equal_and_independent(self, tapped: TappedBackbone) -> None:
        expected = tapped(X).detach()
        other = copy.deepcopy(tapped)
        assert torch.equal(other(X), expected)
        for parameter in other.parameters():
            parameter.data.mul_(-2)
        assert not torch.equal(other(X), expected)
        assert torch.equal(tapped(X), expected)

    def test_it_survives_its_file(self, tapped: TappedBackbone) -> None:
        file = io.BytesIO()
        torch.save(tapped, file)
        file.seek(0)
        found = torch.load(file, weights_only=False)
        assert torch.equal(found(X), tapped(X))
        del tapped.backbone.model.low
        assert found(X).shape == (6, 256 + 320 + 7)

    def test_its_state_fits_another(self, tapped: TappedBackbone) -> None:
        fresh = TappedBackbone(Backbone(Net(), "head"), tapped.taps).eval()
        assert not torch.equal(fresh(X), tapped(X))
        assert fresh.state_dict().keys() == tapped.state_dict().keys()
        fresh.load_state_dict(tapped.state_dict())
        assert torch.equal(fresh(X), tapped(X))

    def test_a_layer_that_runs_by_itself_does_not_count(self, tapped: TappedBackbone) -> None:
        expected = tapped(X)
        tapped.backbone.model.low(X[:1])
        assert torch.equal(tapped(X), expected)

    def test_a_failed_pass_leaves_nothing_for_the_next(self, tapped: TappedBackbone) -> None:
        expected = tapped(X)
        with pytest.raises(RuntimeError):
            tapped(torch.zeros(1, 9, 8, 8))
        assert torch.equal(tapped(X), expected)

    def test_a_layer_that_is_used_twice(self) -> None:
        layer = nn.Linear(3, 3)
        with pytest.raises(ModelError, match=r'^"0" is used twice in one pass'):
            TappedBackbone(nn.Sequential(layer, layer), ("0",))(torch.zeros(2, 3))

    def test_many_threads(self, tapped: TappedBackbone) -> None:
        parts = [X[:3], X[3:] * 2, X[2:3]]
        with torch.no_grad():
            expected = [tapped(part) for part in parts]
        assert in_threads(tapped, parts, expected)

    def test_two_passes_that_are_certainly_under_way_together(self) -> None:
        layer = Handshake()
        model = TappedBackbone(nn.Sequential(nn.Linear(4, 3), layer), ("0",))
        parts = [torch.ones(2, 4), torch.full((5, 4), -3.0)]
        with torch.no_grad():
            expected = [model(part) for part in parts]
            layer.barriers.append(threading.Barrier(2))
            assert in_threads(model, parts, expected)


def deep(number: int) -> nn.Module:
    """That many stages of a linear layer and a ReLU, then the head, and something after it."""
    stages = [nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(number)]
    return nn.Sequential(OrderedDict(stages=nn.Sequential(*stages), head=nn.Linear(4, 3), after=nn.Linear(3, 3)))


def ours(name: str, shape: tuple[int, int, int] = (3, 16, 16)) -> SplitModel:
    moments = [0.5] * 3
    images = torch.zeros(2, *shape, dtype=torch.uint8)
    return build_model(ModelSpec(name), images, 4, preprocess=Normalize(moments, moments), seed=0).eval()


def auto(model: nn.Module, head: str, example: Tensor) -> tuple[str, ...]:
    with evaluating(model):
        return find_taps(model, head, example, "auto")


class TestAutomaticTaps:
    @pytest.mark.parametrize("number", range(1, 30))
    def test_at_most_five_stages_evenly_and_none_after_the_head(self, number: int) -> None:
        found = auto(deep(number), "head", torch.zeros(2, 4))
        stages = [int(tap.split(".")[1]) for tap in found]
        assert list(found) == [f"stages.{stage}.1" for stage in stages]  # the ReLU, not the layer before it
        assert len(found) == min(5, number - 1)  # what the head reads is there already
        assert stages == sorted(set(stages))
        if stages:
            assert (stages[0], stages[-1]) == (0, number - 2)
            steps = [right - left for left, right in itertools.pairwise(stages)]
            assert not steps or max(steps) - min(steps) <= 1

    @pytest.mark.parametrize(
        ("name", "taps"),
        [
            ("digits-cnn", ("layer1.2", "flatten.1")),
            ("simple-cnn", ("layer1.2", "flatten.1", "layer3.1", "layer4.1", "layer5.1")),
        ],
    )
    def test_the_small_networks_of_ours(self, name: str, taps: tuple[str, ...]) -> None:
        found = auto(ours(name), "head", torch.zeros(2, 3, 16, 16, dtype=torch.uint8))
        assert found == tuple(f"backbone.model.{tap}" for tap in taps)

    @pytest.mark.parametrize("name", [name for name in MODELS if name != "linear"])
    def test_every_network_of_ours_can_be_read_there(self, name: str) -> None:
        model = ours(name)
        x = torch.randint(0, 256, (3, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
        taps = auto(model, "head", x[:2])
        assert 1 <= len(taps) <= 5
        assert len(set(taps)) == len(taps)
        found = read(model, "head", taps, x)
        with torch.no_grad():
            z = model.features(x)
        assert found.shape[1] > z.shape[1]
        assert torch.equal(found[:, -z.shape[1] :], z)

    def test_wide_outputs_are_left_out(self) -> None:
        model = nn.Sequential(nn.Linear(4, 2001), nn.Linear(2001, 2000), nn.Linear(2000, 5), nn.Linear(5, 3))
        assert auto(model, "3", torch.zeros(2, 4)) == ("1",)

    def test_a_layer_that_is_used_twice_is_left_out(self) -> None:
        relu, twice = nn.ReLU(), nn.Linear(4, 4)
        model = nn.Sequential(nn.Linear(4, 4), relu, twice, relu, twice, nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
        assert auto(model, "7", torch.zeros(2, 4)) == ("0",)

    def test_what_gives_tuples_or_integers_is_left_out(self) -> None:
        class Recurrent(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.embedding = nn.Embedding(10, 4)
                self.gru = nn.GRU(4, 5, batch_first=True)
                self.middle = nn.Linear(5, 6)
                self.head = nn.Linear(6, 3)

            def forward(self, x: Tensor) -> Tensor:
                outputs, _ = self.gru(self.embedding(x))
                return self.head(self.middle(outputs[:, -1]))

        model = Recurrent()
        tokens = torch.arange(8).view(2, 4)
        taps = auto(model, find_head(model, tokens), tokens)
        assert taps == ("embedding",)
        assert read(model, "head", taps, tokens).shape == (2, 4 + 6)

    def test_a_transformer(self) -> None:
        layer = nn.TransformerEncoderLayer(4, nhead=2, dim_feedforward=8, batch_first=True)
        encoder = nn.TransformerEncoder(layer, num_layers=3, enable_nested_tensor=False)

        class Classifier(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.embedding, self.encoder, self.head = nn.Embedding(10, 4), encoder, nn.Linear(4, 3)

            def forward(self, x: Tensor) -> Tensor:
                return self.head(self.encoder(self.embedding(x)).mean(1))

        model = Classifier().eval()
        tokens = torch.arange(10).view(2, 5)
        taps = auto(model, "head", tokens)
        ran = [path for path, _ in model.named_modules()]
        assert len(taps) == 5
        assert [ran.index(tap) for tap in taps] == sorted(ran.index(tap) for tap in taps)
        assert taps[0] == "embedding"
        assert taps[-1].startswith("encoder.layers.2.")
        with torch.no_grad():
            z = model.encoder(model.embedding(tokens)).mean(1)
        found = read(model, "head", taps, tokens)
        assert found.shape == (2, sum(read(model, "head", (tap,), tokens).shape[1] - 4 for tap in taps) + 4)
        assert torch.allclose(found[:, -4:], z, atol=1e-6)

    def test_the_model_is_left_as_it_was(self) -> None:
        model = deep(4)
        before = hooks(model)
        auto(model, "head", torch.zeros(2, 4))
        assert hooks(model) == before
        with pytest.raises(RuntimeError):
            find_taps(model, "head", torch.zeros(2, 9), "auto")
        assert hooks(model) == before


class TestNamedTaps:
    @pytest.mark.parametrize(
        ("given", "found"),
        [
            (None, ()),
            ("", ()),
            ((), ()),
            ("low", ("low",)),
            ("low.conv", ("low.conv",)),
            ("low+high.relu", ("low", "high.relu")),
            (["high.relu", "low"], ("high.relu", "low")),
        ],
    )
    def test_by_path(self, net: Net, given: str | Sequence[str] | None, found: tuple[str, ...]) -> None:
        assert find_taps(net, "head", X[:2], given) == found

    def test_by_the_end_of_a_path(self) -> None:
        model = ours("digits-cnn")
        example = torch.zeros(2, 3, 16, 16, dtype=torch.uint8)
        found = find_taps(model, "head", example, "layer1+model.layer2.0+backbone.model.layer3")
        assert found == ("backbone.model.layer1", "backbone.model.layer2.0", "backbone.model.layer3")

    def test_a_whole_path_goes_before_the_end_of_others(self) -> None:
        model = nn.ModuleDict({"low": nn.ReLU(), "other": nn.ModuleDict({"low": nn.ReLU()})})
        assert find_taps(model, "", X, "low") == ("low",)

    def test_only_whole_names_are_the_end_of_a_path(self, net: Net) -> None:
        with pytest.raises(ModelError, match="is none of its modules"):
            find_taps(net, "head", X, "onv")

    def test_an_ambiguous_name(self, net: Net) -> None:
        with pytest.raises(ModelError) as caught:
            find_taps(net, "head", X, "conv")
        assert str(caught.value) == 'the tap "conv" of the model is low.conv, high.conv.'

    def test_an_unknown_name(self, net: Net) -> None:
        message = 'the tap "lwo" of the model is none of its modules. Did you mean "low"? Known: after, head, high'
        with pytest.raises(ModelError, match=f"^{re.escape(message)}"):
            find_taps(net, "head", X, "low+lwo")
