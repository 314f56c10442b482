"""ccvr.calibrate: any model and merged statistics → a new model, the old one left alone."""

import copy
import io
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ccvr
from ccvr.calibration.calibrate import BEST, best_method
from ccvr.calibration.closed_forms import Lda
from ccvr.calibration.table import CALIBRATORS
from ccvr.core.errors import CalibrationError, CcvrError, SpecError, UnknownName
from ccvr.core.methods import option_names
from ccvr.models.heads import Head
from ccvr.models.preprocess import Normalize
from ccvr.models.random_features import RandomFeatures
from ccvr.models.split import SplitModel, split_model
from ccvr.models.transform import FeatureTransform
from ccvr.statistics.kinds import KINDS
from ccvr.statistics.moments import ClassStatistics

C = 4
Batches = list[tuple[Tensor, Tensor]]
FAST = {"ccvr": "ccvr,num_virtual=30,epochs=1", "ccvr-converged": "ccvr-converged,num_virtual=30,iterations=5"}
METHODS = [name for name, cls in CALIBRATORS.items() if not cls.raw]
LINEAR = [name for name in METHODS if name != "kernel"]


def text(name: str) -> str:
    return FAST.get(name, name)


def seeded_model(make) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make()


def network() -> nn.Sequential:
    return seeded_model(
        lambda: nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, C))
    )


def convolutions() -> nn.Sequential:
    return seeded_model(
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Conv2d(4, 8, 3, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(32, 12),
            nn.ReLU(),
            nn.Linear(12, C),
        )
    )


def vectors(n: int = 240, classes: tuple[int, ...] = tuple(range(C)), seed: int = 0) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    y = rng.choice(classes, n)
    x = 2 * np.random.default_rng(9).standard_normal((C, 6))[y] + rng.standard_normal((n, 6))
    return torch.from_numpy(x).float(), torch.from_numpy(y)


def images(n: int = 240, seed: int = 0) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, C, n)
    x = np.random.default_rng(9).standard_normal((C, 1, 10, 10))[y] + rng.standard_normal((n, 1, 10, 10))
    return torch.from_numpy(x).float(), torch.from_numpy(y)


def clients(x: Tensor, y: Tensor, number: int = 3) -> list[Batches]:
    """Each with batches of 32, none with the same mix of classes."""
    order = torch.argsort(y, stable=True) if number > 1 else torch.arange(len(y))
    parts = [torch.cat([part, order[k::20]]) for k, part in enumerate(order.chunk(number))]
    return [[(x[rows], y[rows]) for rows in part.split(32)] for part in parts]


def collected(model: nn.Module, data: tuple[Tensor, Tensor], **request: object) -> ClassStatistics:
    request = {"num_classes": C, "min_count": 0, **request}
    parts = clients(*data)
    if request.get("kind") == "kernel":
        first = ccvr.merge(ccvr.collect(model, part, **{**request, "kind": "diagonal"}) for part in parts)
        request["projection"] = ccvr.random_features(first, num_features=60)
    return ccvr.merge(ccvr.collect(model, part, **request).to_bytes() for part in parts)


def for_method(name: str, model: nn.Module, data: tuple[Tensor, Tensor], **request: object) -> ClassStatistics:
    return collected(model, data, kind=CALIBRATORS[name].kinds[0], **request)


def accuracy(model: nn.Module, data: tuple[Tensor, Tensor]) -> float:
    return ccvr.score(model, [data], C).accuracy


def scores(model: nn.Module, x: Tensor) -> Tensor:
    """Of a copy in eval mode."""
    with torch.no_grad():
        return copy.deepcopy(model).eval()(x)


def trace(model: nn.Module) -> dict[str, object]:
    """All that a caller could notice: tensors, modes, gradients, hooks."""
    return {
        "tensors": {name: tensor.clone() for name, tensor in model.state_dict().items()},
        "types": {name: (type(module), module.training) for name, module in model.named_modules()},
        "parameters": {name: (parameter.requires_grad, parameter.grad) for name, parameter in model.named_parameters()},
        "ids": [id(parameter) for parameter in model.parameters()],
        "hooks": {
            name: (len(module._forward_hooks), len(module._forward_pre_hooks), len(module._backward_hooks))
            for name, module in model.named_modules()
        },
    }


def assert_untouched(before: dict[str, object], model: nn.Module) -> None:
    after = trace(model)
    assert before["tensors"].keys() == after["tensors"].keys()
    for name, tensor in before["tensors"].items():
        assert tensor.dtype == after["tensors"][name].dtype, name
        assert torch.equal(tensor, after["tensors"][name]), name
    for key in ("types", "parameters", "ids", "hooks"):
        assert before[key] == after[key], key


# --- a plain model ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("mode", ["train", "eval", "mixed"])
def test_the_model_is_left_as_it_is_and_the_new_one_is_another(name, mode):
    model = network().train(mode != "eval")
    if mode == "mixed":
        model[1].eval()
        model[0].weight.requires_grad_(False)
    model[2].register_forward_hook(lambda module, inputs, output: None)
    statistics = for_method(name, model, vectors())
    before, sums = trace(model), statistics.copy()
    new = ccvr.calibrate(model, statistics, text(name))
    assert_untouched(before, model)
    assert torch.equal(statistics.second, sums.second)
    assert torch.equal(statistics.total, sums.total)
    assert new is not model
    assert not {id(tensor) for tensor in new.parameters()} & {id(tensor) for tensor in model.parameters()}
    assert new.training == model.training
    assert new[1].training == model[1].training
    with torch.no_grad():
        new[0].weight.zero_()
    assert_untouched(before, model)


@pytest.mark.parametrize("name", LINEAR)
def test_the_new_state_loads_into_the_same_class(name):
    model, (x, _) = network(), vectors()
    new = ccvr.calibrate(model, for_method(name, model, vectors()), text(name))
    assert type(new) is type(model)
    assert type(new[-1]) is nn.Linear
    fresh = network()
    fresh.load_state_dict(new.state_dict())
    assert torch.equal(scores(fresh, x), scores(new, x))
    assert not torch.equal(scores(fresh, x), scores(model, x))
    backbone = [key for key in model.state_dict() if not key.startswith("4.")]
    assert all(torch.equal(new.state_dict()[key], model.state_dict()[key]) for key in backbone)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_makes_an_untrained_head_a_good_one(name):
    model, train, test = network(), vectors(600), vectors(1000, seed=1)
    options = {"ccvr": "ccvr,num_virtual=300,lr=0.05", "ccvr-converged": "ccvr-converged,num_virtual=300"}
    new = ccvr.calibrate(model, for_method(name, model, train), options.get(name, name))
    assert accuracy(model, test) < 50
    assert accuracy(new, test) > 80


@pytest.mark.parametrize("transform", ["none", "tukey:0.5", "signed-tukey:0.3"])
@pytest.mark.parametrize("name", LINEAR)
def test_the_new_head_applies_the_transform_of_the_statistics(name, transform):
    model, (x, _) = network(), vectors()
    statistics = for_method(name, model, vectors(), transform=transform)
    new = ccvr.calibrate(model, statistics, text(name), seed=3)
    head = new[-1]
    with torch.no_grad():
        z = FeatureTransform.parse(transform)(copy.deepcopy(model).eval()[:-1](x))
        expected = nn.functional.linear(z, head.weight, head.bias)
    torch.testing.assert_close(scores(new, x), expected)
    assert isinstance(head, Head) is (transform != "none")


def test_raw_statistics_with_a_transform_of_draws():
    """The paper's literal order, from statistics that anybody can collect."""
    model, (x, _) = network(), vectors()
    new = ccvr.calibrate(model, collected(model, (x, _)), "ccvr,num_virtual=30,transform=tukey,transform_at=draws")
    assert new[-1].transform == FeatureTransform("tukey", 0.5)


def test_the_seed_decides():
    model = network()
    statistics = collected(model, vectors())
    first, again, other = (ccvr.calibrate(model, statistics, FAST["ccvr"], seed=seed)[-1].weight for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_seed_behind_the_method_counts():
    model = network()
    statistics = collected(model, vectors())
    by_option = ccvr.calibrate(model, statistics, f"{FAST['ccvr']},seed=5", seed=1)
    by_argument = ccvr.calibrate(model, statistics, FAST["ccvr"], seed=5)
    assert torch.equal(by_option[-1].weight, by_argument[-1].weight)


def test_a_kind_behind_the_method_counts():
    model = network()
    statistics = collected(model, vectors())
    asked = ccvr.calibrate(model, statistics, f"{FAST['ccvr']},kind=pooled")
    given = ccvr.calibrate(model, statistics.as_kind("pooled"), FAST["ccvr"])
    assert torch.equal(asked[-1].weight, given[-1].weight)


def test_a_kind_behind_the_method_that_the_statistics_do_not_hold_is_refused():
    model = network()
    with pytest.raises(CcvrError, match="pooled"):
        ccvr.calibrate(model, collected(model, vectors(), kind="pooled"), f"{FAST['ccvr']},kind=full")


def test_gradients_may_be_off():
    model = network()
    statistics = collected(model, vectors())
    expected = ccvr.calibrate(model, statistics, FAST["ccvr"])
    with torch.no_grad():
        found = ccvr.calibrate(model, statistics, FAST["ccvr"])
    assert torch.equal(found[-1].weight, expected[-1].weight)


@pytest.mark.parametrize("name", METHODS)
def test_the_new_model_has_the_type_of_the_old(name):
    """Of its numbers, that is."""
    model, (x, y) = network().double(), vectors()
    data = x.double(), y
    statistics = for_method(name, model, data)
    before = trace(model)
    new = ccvr.calibrate(model, statistics, text(name))
    assert_untouched(before, model)
    assert {tensor.dtype for tensor in new.parameters()} == {torch.float64}
    assert scores(new, data[0]).dtype == torch.float64


def test_a_model_that_is_nothing_but_a_head():
    model, (x, y) = nn.Linear(6, C), vectors()
    new = ccvr.calibrate(model, collected(model, (x, y)), "lda")
    assert type(new) is nn.Linear
    assert accuracy(new, (x, y)) > 80


def test_a_head_without_a_bias_stays_without_one_where_it_is_retrained():
    model = seeded_model(lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, C, bias=False)))
    new = ccvr.calibrate(model, collected(model, vectors()), FAST["ccvr"])
    seeded_model(lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, C, bias=False))).load_state_dict(
        new.state_dict()
    )
    assert new[-1].bias is None


def test_a_head_that_is_named_and_followed_by_more():
    model = nn.Sequential(network(), nn.LogSoftmax(dim=1))
    statistics = collected(model, vectors(), head="0.4")
    new = ccvr.calibrate(model, statistics, "lda")
    assert accuracy(new, vectors()) > 80
    torch.testing.assert_close(scores(new, vectors()[0]).exp().sum(1), torch.ones(240))


def test_a_calibrated_model_can_be_calibrated_again():
    model, data = network(), vectors(600)
    once = ccvr.calibrate(model, collected(model, data, transform="signed-tukey"), "lda")
    for name in ("ccvr-converged", "lda"):
        twice = ccvr.calibrate(once, collected(once, data, transform="signed-tukey"), name)
        assert accuracy(twice, data) > 80


# --- refusals ---------------------------------------------------------------------------------------------------------


def refusal(error: type[Exception], *args: object) -> str:
    with pytest.raises(error) as refused:
        ccvr.calibrate(*args)
    message = str(refused.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("changed", ["0.weight", "1.running_mean"])
def test_another_backbone_is_refused_by_name(changed):
    model, other = network(), network()
    with torch.no_grad():
        other.state_dict()[changed][0] += 1e-3
    statistics, theirs = collected(model, vectors()), collected(other, vectors())
    message = refusal(CalibrationError, other, statistics, "lda")
    assert message == (
        f"the statistics are of the backbone {statistics.source.model[:12]}…; this model's is "
        f"{theirs.source.model[:12]}…. Collect them from the model that is calibrated."
    )


def test_another_head_on_the_same_backbone_is_the_same_source():
    model, other = network(), network()
    with torch.no_grad():
        other[-1].weight.normal_()
        other[-1].bias.fill_(3)
    statistics = collected(model, vectors())
    one, two = (ccvr.calibrate(each, statistics, "lda") for each in (model, other))
    assert torch.equal(one[-1].weight, two[-1].weight)


def test_a_head_that_is_not_there_is_refused():
    model = network()
    statistics = collected(model, vectors())
    message = refusal(CalibrationError, nn.Sequential(nn.Linear(6, C)), statistics, "lda")
    assert message == 'the statistics are of the head "4", which this model does not have.'


def test_another_number_of_classes_is_refused():
    model = network()
    source = collected(model, vectors()).source
    statistics = ccvr.statistics_of(torch.randn(50, 16), torch.arange(50) % (C + 1), C + 1, source=source)
    message = refusal(CalibrationError, model, statistics, "lda")
    assert message == f'the statistics are of {C + 1} classes; the head "4" does not score as many.'


@pytest.mark.parametrize(("found", "wanted"), [("none", "tukey:0.5"), ("tukey:0.5", "none")])
@pytest.mark.parametrize("name", LINEAR)
def test_statistics_of_other_features_are_refused(name, found, wanted):
    model = network()
    statistics = for_method(name, model, vectors(), transform=found)
    message = refusal(CalibrationError, model, statistics, f"{name},transform={wanted}")
    assert message == (
        f'{name} asks for statistics of "{wanted}" features; these are of "{found}" ones. '
        f'Collect with transform="{wanted}".'
    )


def test_statistics_of_transformed_features_are_refused_where_draws_are_transformed():
    model = network()
    transformed = collected(model, vectors(), transform="tukey:0.5")
    message = refusal(CalibrationError, model, transformed, "ccvr,transform=tukey:0.5,transform_at=draws")
    assert 'asks for statistics of "none" features; these are of "tukey:0.5" ones' in message


@pytest.mark.parametrize("name", [name for name, cls in CALIBRATORS.items() if cls.raw])
def test_oracles_are_refused(name):
    model = network()
    message = refusal(CalibrationError, model, collected(model, vectors()), name)
    assert message == f"{name} needs raw features, which statistics are there to spare. Choose another."


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", METHODS)
def test_every_method_takes_every_kind_or_says_what_it_needs(name, kind):
    model, cls = network(), CALIBRATORS[name]
    statistics = collected(model, vectors(), kind=kind)
    if kind in cls.kinds or (kind == "full" and "pooled" in cls.kinds):
        assert scores(ccvr.calibrate(model, statistics, text(name)), vectors()[0]).isfinite().all()
    else:
        message = refusal(CalibrationError, model, statistics, text(name))
        needed = " or ".join(cls.kinds)
        assert message == f"{cls.__name__} needs {needed} statistics; these are {kind}. Collect with that kind."


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("lda", "taps=auto"),
        ("lda", "min_count=3"),
        ("ccvr", "min_count=3"),
        ("kernel", "taps="),
        ("kernel", "num_features=7"),
        ("kernel", "bandwidth=2"),
    ],
)
def test_what_was_settled_when_statistics_were_collected_is_no_option_any_more(name, option):
    model = network()
    message = refusal(CalibrationError, model, for_method(name, model, vectors()), f"{name},{option}")
    settled = option.partition("=")[0]
    assert message == f"{settled} is settled when statistics are collected. Give it there, not to {name}."


def test_names_that_nobody_knows():
    model = network()
    statistics = collected(model, vectors())
    assert refusal(UnknownName, model, statistics, "ldaa").startswith('no calibrator "ldaa". Did you mean "lda"?')
    assert refusal(SpecError, model, statistics, "lda,epochs=3").startswith('lda has no option "epochs".')


@pytest.mark.parametrize("name", METHODS)
def test_statistics_without_samples_are_refused(name):
    model = network()
    some = for_method(name, model, vectors())
    nothing = ClassStatistics.zeros(
        C, some.num_features, kind=some.kind, source=some.source, projection=some.projection
    )
    message = refusal(CalibrationError, model, nothing, text(name))
    assert message == "the statistics hold no samples. Collect them from clients that have some."


# --- absent classes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_a_class_that_nobody_has_is_a_warning(name):
    model, data = network(), vectors(classes=(0, 2))
    statistics = for_method(name, model, data)
    with pytest.warns(UserWarning, match="^nobody has samples") as noted:
        new = ccvr.calibrate(model, statistics, text(name))
    assert [str(each.message) for each in noted] == [
        "nobody has samples of 2 of 4 classes (1, 3): closed forms never predict them, "
        "re-training leaves their rows as they are"
    ]
    assert noted[0].filename == __file__, "it points at the caller"
    if "start" in option_names(CALIBRATORS[name]):
        assert torch.equal(new[-1].weight[[1, 3]], model[-1].weight[[1, 3]])
        assert torch.equal(new[-1].bias[[1, 3]], model[-1].bias[[1, 3]])
    else:
        x = 100 * torch.randn(500, 6, generator=torch.Generator().manual_seed(0))
        assert set(scores(new, x).argmax(1).tolist()) <= {0, 2}


def test_no_warning_where_every_class_is_there():
    model = network()
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        ccvr.calibrate(model, collected(model, vectors()), "lda")
    assert noted == []


# --- the best method --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_method_it_is_the_best_one(kind):
    model, (x, _) = network(), vectors()
    statistics = collected(model, vectors(), kind=kind)
    assert best_method(statistics).startswith(BEST[kind])
    chosen, named = ccvr.calibrate(model, statistics), ccvr.calibrate(model, statistics, best_method(statistics))
    assert torch.equal(scores(chosen, x), scores(named, x))


@pytest.mark.parametrize(
    ("num_classes", "num_features", "per_class", "draws"),
    [(10, 84, 500, 2000), (100, 84, 500, 200), (1000, 84, 500, 200), (100, 1280, 500, 600), (100, 1280, 5000, 1536)],
)
def test_the_best_method_for_many_classes_draws_fewer_of_each(num_classes, num_features, per_class, draws):
    statistics = ClassStatistics.zeros(num_classes, num_features)
    statistics.count.fill_(per_class)
    assert best_method(statistics) == f"ccvr-converged,num_virtual={draws}"


def test_every_kind_has_a_best_method_that_can_use_it():
    assert BEST.keys() == KINDS.keys()
    assert all(kind in CALIBRATORS[method.partition(",")[0]].kinds for kind, method in BEST.items())


@pytest.mark.parametrize(
    ("kind", "best"), [("full", "lda,shrinkage=oas"), ("pooled", "lda,shrinkage=oas"), ("kernel", "kernel")]
)
def test_with_taps_the_best_method_reads_them(kind, best):
    model = network()
    statistics = collected(model, vectors(), kind=kind, taps="auto" if kind == "kernel" else ("0",))
    assert best_method(statistics) == best
    assert accuracy(ccvr.calibrate(model, statistics), vectors()) > 80


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_was_collected_with_taps_can_be_used_without_naming_a_method(kind):
    model = network()
    statistics = collected(model, vectors(), kind=kind, taps=("0",))
    assert accuracy(ccvr.calibrate(model, statistics), vectors()) > 60


# --- taps and random features -----------------------------------------------------------------------------------------

TAPPED = {
    "lda on taps": {"kind": "pooled", "taps": "auto"},
    "lda on a named tap": {"kind": "pooled", "taps": ("4", "7")},
    "ridge on taps": {"kind": "full", "taps": ("4",)},
    "ncm on taps": {"kind": "means", "taps": ("4",)},
    "kernel on taps": {"kind": "kernel", "taps": "auto"},
    "kernel": {"kind": "kernel"},
}


@pytest.fixture(params=TAPPED)
def tapped(request) -> tuple[nn.Module, ClassStatistics, str]:
    model = convolutions()
    return model, collected(model, images(), **TAPPED[request.param]), request.param.partition(" ")[0]


def test_heads_on_several_layers_leave_the_model_alone(tapped):
    model, statistics, method = tapped
    before = trace(model)
    new = ccvr.calibrate(model, statistics, method)
    scores(new, images()[0])
    assert_untouched(before, model)
    assert not {id(tensor) for tensor in new.parameters()} & {id(tensor) for tensor in model.parameters()}
    assert accuracy(new, images(seed=1)) > 70 > accuracy(model, images(seed=1))


def test_heads_on_several_layers_read_what_was_collected(tapped):
    """The scores by hand: outputs of the layers, pooled and joined, then random features, then the head's row."""
    model, statistics, method = tapped
    new, (x, _) = ccvr.calibrate(model, statistics, method), images(40, seed=2)
    layers, outputs = copy.deepcopy(model).eval(), []
    with torch.no_grad():
        for index, layer in enumerate(layers[:-1]):
            x = layer(x)
            if str(index) in statistics.source.taps:
                outputs.append(x if x.dim() == 2 else flat(x))
        u = torch.cat([*outputs, x], dim=1)
        head = next(module for module in new.modules() if isinstance(module, Head))
        if statistics.projection is not None:
            omega, phase = statistics.projection.weights
            u = torch.cos(u @ omega + phase)
        expected = u @ head.weight.T + head.bias
    torch.testing.assert_close(scores(new, images(40, seed=2)[0]), expected, rtol=1e-4, atol=1e-4)


def flat(maps: Tensor) -> Tensor:
    """Averages over blocks that leave at most 400 numbers: 8 x 8 of 4 channels, 3 x 3 of 8 channels fit as they are."""
    assert maps[0].numel() <= 400
    return maps.flatten(1)


def test_state_pickle_and_copy_of_heads_on_several_layers(tapped, tmp_path):
    model, statistics, method = tapped
    x = images(50, seed=3)[0]
    new = ccvr.calibrate(model, statistics, method)
    expected = scores(new, x)

    other = ccvr.calibrate(model, statistics, method)
    with torch.no_grad():
        for tensor in other.state_dict().values():
            tensor.copy_(torch.zeros_like(tensor))
    assert not torch.equal(scores(other, x), expected)
    blob = io.BytesIO()
    torch.save(new.state_dict(), blob)
    blob.seek(0)
    other.load_state_dict(torch.load(blob, weights_only=True))
    assert torch.equal(scores(other, x), expected)

    assert torch.equal(scores(copy.deepcopy(new), x), expected)
    torch.save(new, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    assert torch.equal(scores(loaded, x), expected)
    assert torch.equal(scores(new, x), expected), "nothing above changed it"


def test_a_copy_and_its_original_do_not_share_what_their_layers_gave():
    model = convolutions()
    new = ccvr.calibrate(model, collected(model, images(), kind="pooled", taps="auto"), "lda")
    other = copy.deepcopy(new)
    with torch.no_grad():
        next(other.parameters()).zero_()
    x = images(50)[0]
    expected = scores(new, x)
    assert not torch.equal(scores(other, x), expected)
    assert torch.equal(scores(new, x), expected)


@pytest.mark.parametrize("method", ["ccvr", "ccvr-converged"])
def test_retraining_on_taps_is_refused(method):
    model = convolutions()
    statistics = collected(model, images(), taps=("4",))
    message = refusal(CalibrationError, model, statistics, method)
    assert message.startswith("re-training starts from a head of 12 features; these statistics have 84.")
    assert message.endswith("With taps use lda, ridge or kernel.")


@pytest.mark.parametrize("kind", ["pooled", "kernel"])
@pytest.mark.parametrize("method", ["lda", "ccvr-converged", "kernel"])
def test_a_model_with_a_head_on_several_layers_can_be_calibrated_again(kind, method):
    """Its features are what that head reads: the layers' outputs beside its own input."""
    model = convolutions()
    once = ccvr.calibrate(model, collected(model, images(), kind=kind, taps=("4",)))
    statistics = for_method(method, once, images())
    if kind == "kernel" and method == "ccvr-converged":
        message = refusal(CalibrationError, once, statistics, method)
        assert message.startswith("re-training starts from a head of 60 features; these statistics have 84.")
        return
    before = trace(once)
    twice = ccvr.calibrate(once, statistics, method)
    assert_untouched(before, once)
    assert accuracy(twice, images(seed=1)) > 70


@pytest.mark.parametrize("method", ["lda", "kernel"])
def test_a_backbone_is_the_same_under_a_new_head(method):
    """Statistics of the backbone serve every head on it."""
    model = network()
    statistics = for_method(method, model, vectors())
    once = ccvr.calibrate(model, statistics, method)
    assert collected(once, vectors()).source.model == statistics.source.model
    twice = ccvr.calibrate(once, statistics, method)
    assert torch.equal(scores(twice, vectors()[0]), scores(once, vectors()[0]))


def test_models_with_random_features_share_them_with_nobody():
    model, x = network(), vectors()[0]
    statistics = collected(model, vectors(), kind="kernel")
    one, two = (ccvr.calibrate(model, statistics, "kernel") for _ in range(2))
    expected, digest = scores(two, x), statistics.projection.digest
    with torch.no_grad():
        one[-1].transform.omega.zero_()
    assert torch.equal(scores(two, x), expected)
    assert torch.equal(scores(ccvr.calibrate(model, statistics, "kernel"), x), expected)
    assert statistics.projection.digest == digest


# --- our own models ---------------------------------------------------------------------------------------------------


def split(kind: str = "linear") -> SplitModel:
    example = torch.zeros(2, 1, 10, 10, dtype=torch.uint8)
    return split_model(convolutions(), Normalize([0.5], [0.25]), example, head_kind=kind)


def photos(seed: int = 0) -> tuple[Tensor, Tensor]:
    x, y = images(seed=seed)
    return (128 + 40 * x).clamp(0, 255).to(torch.uint8), y


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("kind", ["linear", "normed"])
def test_a_split_model(name, kind):
    model = split(kind)
    taps = {"taps": "auto"} if name in ("lda", "kernel") else {}
    statistics = for_method(name, model, photos(), **taps)
    before = trace(model)
    new = ccvr.calibrate(model, statistics, text(name))
    assert_untouched(before, model)
    assert isinstance(new, SplitModel)
    assert scores(new, photos()[0]).isfinite().all()
    if "start" not in option_names(CALIBRATORS[name]):
        assert accuracy(new, photos(seed=1)) > 60


@pytest.mark.parametrize("method", ["lda", FAST["ccvr"]])
def test_a_split_model_in_double_precision_is_left_as_it_is(method):
    model = split().double()
    x, y = images()
    data = x.double(), y
    statistics = collected(model, data)
    before = trace(model)
    new = ccvr.calibrate(model, statistics, method)
    assert_untouched(before, model)
    assert scores(new, data[0]).dtype == torch.float64


def test_options_are_those_of_the_method():
    """The text behind the method reaches the calibrator: the same head as from the calibrator itself."""
    model = network()
    statistics = collected(model, vectors(), kind="pooled")
    new = ccvr.calibrate(model, statistics, "lda,shrinkage=fixed:0.9,priors=counts")
    expected = Lda(shrinkage="fixed:0.9", priors="counts").fit(None, statistics, rng=torch.Generator())
    assert torch.equal(new[-1].weight, expected.weight)
    assert torch.equal(new[-1].bias, expected.bias)
    plain = ccvr.calibrate(model, statistics, "lda")
    assert not torch.equal(new[-1].weight, plain[-1].weight)


def test_random_features_are_part_of_the_new_model():
    model = network()
    new = ccvr.calibrate(model, collected(model, vectors(), kind="kernel"), "kernel")
    assert isinstance(new[-1].transform, RandomFeatures)
    assert new.state_dict()["4.transform.omega"].shape == (16, 60)
