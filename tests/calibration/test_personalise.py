"""A model under one client's own label frequencies."""

import copy
import doctest
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import ccvr
from ccvr.calibration import personalise as module
from ccvr.calibration.personalise import personalise, prior_shift
from ccvr.core.errors import CalibrationError, CcvrError, ModelError
from ccvr.models.heads import LinearHead, NormedHead
from ccvr.models.split import SplitModel
from ccvr.models.transform import FeatureTransform

COUNTS = [40, 0, 3, 7]
RNG = torch.Generator().manual_seed(0)
X = torch.randn(50, 5, generator=RNG, dtype=torch.float64)


class Gaussians:
    """Four classes with known densities N(mu_c, I) of two numbers."""

    mean = torch.tensor([[0.0, 0.0], [1.0, 0.5], [-1.0, 2.0], [0.5, -1.5]], dtype=torch.float64)

    def density(self, z):
        """p(z | c), [B, C]."""
        far = (z.unsqueeze(1) - self.mean).square().sum(2)
        return (-far / 2).exp() / (2 * math.pi)

    def head(self, prior):
        """log p(z | c) + log prior_c, up to what all classes share, as a linear layer."""
        linear = nn.Linear(2, 4, dtype=torch.float64)
        linear.load_state_dict({"weight": self.mean, "bias": prior.log() - self.mean.square().sum(1) / 2})
        return linear


def posterior(z, prior):
    """Bayes' rule, written out."""
    joint = Gaussians().density(z) * prior
    return joint / joint.sum(1, keepdim=True)


@pytest.mark.parametrize("prior", [[0.25] * 4, [0.4, 0.3, 0.2, 0.1]])
def test_it_is_bayes_rule(prior):
    """The personalised scores are the client's own posterior, from the densities themselves."""
    z, pi, n = X[:, :2], torch.tensor(prior, dtype=torch.float64), torch.tensor(COUNTS, dtype=torch.float64)
    model = Gaussians().head(pi)
    torch.testing.assert_close(model(z).softmax(1), posterior(z, pi), rtol=0, atol=1e-12)
    own = personalise(model, COUNTS, prior=prior, smoothing=0.5)
    mix = (n + 0.5 * 4 * pi) / (n.sum() + 0.5 * 4)
    assert mix.sum().item() == pytest.approx(1)
    torch.testing.assert_close(own(z).softmax(1), posterior(z, mix), rtol=0, atol=1e-12)
    assert not torch.equal(own(z).argmax(1), model(z).argmax(1))
    assert torch.equal(own(z).argmax(1), posterior(z, mix).argmax(1))


def test_a_calibrated_model_under_uniform_priors():
    """The default suits what ``ccvr.calibrate`` gives: (n_c + 1) / (n + C) over 1 / C."""
    model, y = nn.Sequential(nn.Linear(5, 3), nn.ReLU(), nn.Linear(3, 4)).double(), torch.arange(50) % 4
    statistics = ccvr.collect(model, [(X, y)], num_classes=4)
    for method in ("lda", "ccvr,epochs=1,num_virtual=10,transform=tukey:0.5,transform_at=draws"):
        fixed = ccvr.calibrate(model, statistics, method)
        own = personalise(fixed, COUNTS)
        expected = fixed(X) + torch.tensor([math.log(4 * (n + 1) / 54) for n in COUNTS], dtype=torch.float64)
        torch.testing.assert_close(own(X), expected, rtol=0, atol=1e-9)


def split(head, backbone=None):
    return SplitModel(nn.Identity(), backbone or nn.Linear(5, 3), head)


WEIGHT, BIAS = torch.randn(4, 3, generator=RNG), torch.randn(4, generator=RNG)
MODELS = {
    "a linear layer": nn.Linear(5, 4),
    "without a bias": nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 4, bias=False)),
    "scores that go on": nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 4), nn.LogSoftmax(1)),
    "split": split(LinearHead(WEIGHT, BIAS)),
    "normed": split(NormedHead(WEIGHT)),
    "transformed": split(LinearHead(WEIGHT, None, FeatureTransform("signed-tukey"))),
    "a wide layer before": split(LinearHead(WEIGHT, BIAS), nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_logarithms_are_added_to_the_scores(name):
    model = copy.deepcopy(MODELS[name]).double().eval()
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    own = personalise(model, torch.tensor(COUNTS), prior=[1, 2, 3, 4], smoothing=2)
    shift = prior_shift(COUNTS, [1, 2, 3, 4], 2)
    expected = model(X) + shift
    found = own(X)
    if name == "scores that go on":
        expected = expected.log_softmax(1)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert type(own) is type(model)
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())
    with torch.no_grad():
        next(own.parameters()).zero_()
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items()), "nothing is shared"


def test_several_layers_together():
    model, y = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 4)), torch.arange(50)
    x = X.float()
    statistics = ccvr.collect(model, [(x, y % 4)], num_classes=4, kind="pooled", taps="auto")
    fixed = ccvr.calibrate(model, statistics).eval()
    own = personalise(fixed, COUNTS)
    torch.testing.assert_close(own(x), fixed(x) + prior_shift(COUNTS, "uniform", 1).float(), rtol=0, atol=1e-4)


def test_type_and_state_stay_those_of_the_model():
    model = nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 4)).to(torch.bfloat16)
    own = personalise(model, COUNTS)
    assert {key: tensor.dtype for key, tensor in own.state_dict().items()} == dict.fromkeys(
        model.state_dict(), torch.bfloat16
    )
    model.load_state_dict(own.state_dict())


@given(
    st.lists(st.integers(1, 10**6), min_size=1, max_size=20),
    st.integers(1, 1000),
    st.floats(1e-6, 1e6),
    st.floats(1e-3, 1e3),
)
def test_counts_as_in_the_prior_change_nothing(prior, factor, scale, smoothing):
    counts = [factor * each for each in prior]
    assert prior_shift(counts, [scale * each for each in prior], smoothing).abs().max() < 1e-9


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=9).filter(any), st.floats(1e-3, 1e3))
def test_of_two_classes_the_more_frequent_one_gains(counts, smoothing):
    shift = prior_shift(counts, "uniform", smoothing)
    assert shift.isfinite().all()
    assert torch.equal(shift.argsort(stable=True), torch.tensor(counts).argsort(stable=True))
    mean = shift.exp().mean().item()
    assert mean == pytest.approx(1), "the mean of pi_k(c) / pi(c) under pi"


def test_a_class_that_nobody_has_is_as_one_that_only_the_client_lacks():
    shift = prior_shift([5, 0, 0], [5, 5, 0], 1)
    assert shift[1] == shift[2] < 0 < shift[0]


HOSTILE = {
    "too few": ([1, 2], {}, ModelError, r'no linear layer can be the head of 2 classes .*: "0" 3, "1" 4\)'),
    "too many": ([1] * 5, {}, ModelError, "no linear layer can be the head of 5 classes"),
    "negative": ([1, -1, 0, 0], {}, CalibrationError, r"counts\[1\] is -1; give finite numbers from 0 on."),
    "not a number": ([1, 1, math.nan, 0], {}, CalibrationError, r"counts\[2\] is nan; give finite numbers"),
    "infinite": ([math.inf, 1, 1, 0], {}, CalibrationError, r"counts\[0\] is inf; give finite numbers"),
    "overflow": ([1e308] * 4, {}, CalibrationError, "the sum of counts is inf"),
    "no samples": ([0, 0, 0, 0], {}, CalibrationError, "the sum of counts is 0; give at least one sample"),
    "frequencies": ([0.5, 0.5, 0, 0], {}, CalibrationError, r"counts\[0\] is 0.5; give whole numbers of samples"),
    "a matrix": ([[1, 2], [3, 4]], {}, CalibrationError, r"counts has the shape \[2, 2\]; give one number per class"),
    "ragged": ([[1, 2], [3]], {}, CalibrationError, "counts is not a list of one number per class"),
    "nothing": ([], {}, CalibrationError, r"counts has the shape \[0\]"),
    "words": (["a"] * 4, {}, CalibrationError, "counts is not a list of one number per class"),
    "no counts": (None, {}, CalibrationError, "counts is not a list of one number per class"),
    "smoothing 0": (COUNTS, {"smoothing": 0}, CalibrationError, "smoothing is 0; give a finite number above 0."),
    "smoothing below 0": (COUNTS, {"smoothing": -1}, CalibrationError, "smoothing is -1"),
    "smoothing nan": (COUNTS, {"smoothing": math.nan}, CalibrationError, "smoothing is nan"),
    "smoothing a word": (
        COUNTS,
        {"smoothing": "a"},
        CalibrationError,
        "smoothing is 'a'; give a finite number above 0.",
    ),
    "smoothing none": (
        COUNTS,
        {"smoothing": None},
        CalibrationError,
        "smoothing is None; give a finite number above 0.",
    ),
    "smoothing complex": (COUNTS, {"smoothing": 1j}, CalibrationError, "smoothing is 1j; give a finite number"),
    "smoothing infinite": (COUNTS, {"smoothing": math.inf}, CalibrationError, "smoothing is inf"),
    "smoothing too large": (COUNTS, {"smoothing": 10**400}, CalibrationError, "smoothing is 1000.*; give a finite"),
    "complex": ([1 + 2j, 1, 1, 1], {}, CalibrationError, "counts is complex; give one real number per class."),
    "a complex tensor": (torch.ones(4) * 1j, {}, CalibrationError, "counts is complex; give one real number"),
    "a complex array": (np.ones(4) * 1j, {}, CalibrationError, "counts is complex; give one real number"),
    "prior complex": (COUNTS, {"prior": [1j, 1, 1, 1]}, CalibrationError, "prior is complex; give one real number"),
    "another prior": (COUNTS, {"prior": "counts"}, CalibrationError, "prior is not a list of one number per class"),
    "prior too short": (COUNTS, {"prior": [1, 1]}, CalibrationError, "prior has 2 classes and counts has 4"),
    "prior negative": (COUNTS, {"prior": [1, 1, -2, 1]}, CalibrationError, r"prior\[2\] is -2"),
    "prior of zeros": (COUNTS, {"prior": [0, 0, 0, 0]}, CalibrationError, "the sum of prior is 0"),
    "prior without its class": (
        COUNTS,
        {"prior": [0, 1, 1, 1]},
        CalibrationError,
        r"counts\[0\] is 40 and the prior of that class is 0.",
    ),
    "another head": (COUNTS, {"head": "2"}, ModelError, 'the head "2" is not an nn.Linear of this model'),
    "a layer of another width": (COUNTS, {"head": "0"}, ModelError, "no linear layer can be the head of 4 classes"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_input_is_one_clear_line(name):
    counts, options, kind, message = HOSTILE[name]
    with pytest.raises(kind, match=message) as error:
        personalise(nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 4)), counts, **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("smoothing", [2, 2.0, np.float32(2), np.int64(2), Fraction(2)])
def test_any_real_number_smooths(smoothing):
    assert torch.equal(prior_shift(COUNTS, "uniform", smoothing), prior_shift(COUNTS, "uniform", 2.0))


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (None, {}, "the model is a NoneType; give an nn.Module."),
        ({"weight": torch.ones(4, 3)}, {"head": "head"}, "the model is a dict; give an nn.Module."),
        (nn.Conv2d(1, 4, 1), {}, r"no linear layer can be the head of 4 classes .*there are none"),
        (nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 4)), {}, "2 linear layers can be the head of 4 classes"),
        (MODELS["split"], {"head": "backbone"}, 'the head of this model is "head", not "backbone"'),
        (split(LinearHead(torch.ones(3, 3), None)), {}, "no linear layer can be the head of 4 classes"),
    ],
)
def test_models_whose_head_is_not_found(model, options, message):
    with pytest.raises(ModelError, match=message):
        personalise(model, COUNTS, **options)


def test_the_head_of_several_can_be_named():
    model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 4)).double()
    own = personalise(model, COUNTS, head="1")
    torch.testing.assert_close(own(X), model(X) + prior_shift(COUNTS, "uniform", 1), rtol=0, atol=1e-12)


def test_the_public_name_and_its_example():
    assert ccvr.personalise is personalise
    found = doctest.testmod(module)
    assert (found.failed, found.attempted > 1) == (0, True)
    assert issubclass(CalibrationError, CcvrError)
