"""ccvr.forecast: near the truth where features are Gaussian, and plain about where it can not be."""

import dataclasses

import numpy as np
import ot
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import ccvr
from ccvr.calibration.forecast import Forecast, mean_sliced_distance
from ccvr.calibration.sampling import draw
from ccvr.core.errors import CalibrationError, CcvrError
from ccvr.models.heads import LinearHead
from ccvr.statistics.collect import statistics_of
from ccvr.statistics.moments import ClassStatistics

C, D = 4, 8
WORLD = np.random.default_rng(77)
MEAN, FACTOR = 0.6 * WORLD.standard_normal((C, D)), WORLD.standard_normal((D, D)) / 4 + np.eye(D)
COV = FACTOR @ FACTOR.T


def samples(n: int, seed: int, classes: tuple[int, ...] = tuple(range(C))) -> tuple[Tensor, Tensor]:
    """Gaussian classes of one covariance, whose best head is linear and known."""
    rng = np.random.default_rng(seed)
    y = rng.choice(classes, n)
    z = MEAN[y] + rng.standard_normal((n, D)) @ FACTOR.T
    return torch.from_numpy(z).float(), torch.from_numpy(y)


def network(biased: bool = True) -> nn.Sequential:
    """The best head behind a backbone that keeps its input; biased as local training on skewed clients does."""
    weight = np.linalg.solve(COV, MEAN.T).T
    bias = -0.5 * (weight * MEAN).sum(1)
    if biased:
        weight, bias = weight * np.array([[2.0], [1.0], [1.0], [0.2]]), bias + np.array([3.0, 0.0, 0.0, -3.0])
    model = nn.Sequential(nn.Linear(D, D), nn.Linear(D, C))
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(D))
        model[0].bias.zero_()
        model[1].weight.copy_(torch.from_numpy(weight))
        model[1].bias.copy_(torch.from_numpy(bias))
    return model


def collected(model: nn.Module, data: tuple[Tensor, Tensor], **request: object) -> ClassStatistics:
    return ccvr.collect(model, [data], num_classes=C, **{"min_count": 0, **request})


def real(model: nn.Module) -> ccvr.ClassCounts:
    return ccvr.score(model, [samples(20_000, seed=2)], C)


# --- against the truth ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "method"),
    [("full", None), ("full", "lda"), ("pooled", "lda"), ("pooled", "ridge"), ("full", "ncm"), ("full", "ccvr")],
)
def test_before_and_after_are_the_real_accuracies_where_features_are_gaussian(kind, method):
    model = network()
    statistics = collected(model, samples(4000, seed=1), kind=kind)
    found = ccvr.forecast(model, statistics, method, num_draws=5000)
    calibrated = ccvr.calibrate(model, statistics, method)
    assert found.before == pytest.approx(real(model).accuracy, abs=1.5)
    assert found.after == pytest.approx(real(calibrated).accuracy, abs=1.5)
    assert found.gain == pytest.approx(found.after - found.before)
    assert found.gain > (10 if method != "ncm" else 2)
    np.testing.assert_allclose(found.recall_before, real(model).recall, atol=3)
    np.testing.assert_allclose(found.recall_after, real(calibrated).recall, atol=3)


def test_a_good_head_leaves_nothing_to_gain():
    model = network(biased=False)
    found = ccvr.forecast(model, collected(model, samples(4000, seed=1)), num_draws=5000)
    assert abs(found.gain) < 1
    assert found.advice.startswith("The head is nearly as good as the features allow (")
    assert found.advice.endswith("points): calibration may not pay.")


def test_the_model_and_the_statistics_are_left_as_they_are():
    model = network().train()
    statistics = collected(model, samples(400, seed=1))
    before, sums = {name: tensor.clone() for name, tensor in model.state_dict().items()}, statistics.copy()
    ccvr.forecast(model, statistics, "ccvr,num_virtual=20,epochs=1", num_draws=50)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model.training
    assert torch.equal(statistics.second, sums.second)


def test_the_seed_decides():
    model = network()
    statistics = collected(model, samples(400, seed=1))
    first, again, other = (ccvr.forecast(model, statistics, "lda", num_draws=300, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_a_class_that_nobody_has():
    model = network()
    found = ccvr.forecast(model, collected(model, samples(900, seed=1, classes=(0, 1, 3))), "lda", num_draws=200)
    assert found.recall_before[2] is None
    assert found.recall_after[2] is None
    assert all(0 <= found.recall_after[label] <= 100 for label in (0, 1, 3))


def test_taps_stand_before_what_the_old_head_reads():
    """The first layer's output beside the same thing again: the old head still reads its own part."""
    model = network()
    data = samples(4000, seed=1)
    found = ccvr.forecast(model, collected(model, data, kind="pooled", taps=("0",)), "ridge", num_draws=3000)
    assert found.before == pytest.approx(real(model).accuracy, abs=1.5)
    assert found.after > found.before + 5


@pytest.mark.parametrize("transform", ["tukey:0.5", "signed-tukey:0.5"])
def test_a_head_on_transformed_features(transform):
    model, data = network(), samples(4000, seed=1)
    once = ccvr.calibrate(model, collected(model, data, transform=transform), "ncm")
    found = ccvr.forecast(once, collected(once, data, transform=transform), "lda", num_draws=3000)
    assert found.before == pytest.approx(real(once).accuracy, abs=6)
    assert found.gain > 1


def test_draws_that_are_transformed():
    model = network()
    statistics = collected(model, samples(4000, seed=1))
    method = "ccvr-converged,transform=signed-tukey,transform_at=draws"
    found = ccvr.forecast(model, statistics, method, num_draws=3000)
    assert found.after == pytest.approx(real(ccvr.calibrate(model, statistics, method)).accuracy, abs=2)


# --- separability -----------------------------------------------------------------------------------------------------


def unequal(seed: int = 0, counts: tuple[int, ...] = (60, 40, 80, 0)) -> ClassStatistics:
    """Classes whose Gaussians differ in mean and in shape; the last one is absent."""
    rng = np.random.default_rng(seed)
    rows = [rng.standard_normal((n, 5)) @ rng.standard_normal((5, 5)) + 2 * rng.standard_normal(5) for n in counts]
    z, y = torch.from_numpy(np.concatenate(rows)), torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    return statistics_of(z, y, len(counts))


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_separability_is_the_sliced_wasserstein_distance_of_draws():
    statistics, number = unequal(), 5000
    z, y = draw(statistics, [number] * 4, rng=seeded(1))
    directions = torch.randn(5, 60, dtype=torch.float64, generator=seeded(7))
    directions = (directions / directions.norm(dim=0)).numpy()
    classes = [z[y == label].double().numpy() for label in range(3)]
    pairs = [(0, 1), (0, 2), (1, 2)]
    plain = [ot.sliced_wasserstein_distance(classes[a], classes[b], projections=directions, p=2) for a, b in pairs]
    found = mean_sliced_distance(statistics, num_projections=60, rng=seeded(7))
    assert found == pytest.approx(np.mean(plain), rel=0.02)
    assert np.mean(plain) > 1


def test_separability_of_two_spheres_is_the_distance_of_their_means_over_the_root_of_d():
    """The mean over directions of ((m₁ − m₂)·u)² is ‖m₁ − m₂‖²/d."""
    d, rng = 6, np.random.default_rng(0)
    noise = rng.standard_normal((400, d))
    z = np.concatenate([noise, noise + np.array([6.0, 0, 0, 0, 0, 0])])
    statistics = statistics_of(torch.from_numpy(z), torch.arange(2).repeat_interleave(400), 2)
    found = mean_sliced_distance(statistics, num_projections=20_000, rng=seeded())
    assert found == pytest.approx(6 / np.sqrt(d), rel=0.02)


def test_separability_of_one_class_is_zero():
    assert mean_sliced_distance(unequal(counts=(50, 0, 0, 0)), rng=seeded()) == 0


def test_a_forecast_holds_the_separability():
    model = network()
    near, far = (collected(model, (z * 1.0 + k * y.unsqueeze(1), y)) for k in (0, 5) for z, y in [samples(400, 1)])
    one, two = (ccvr.forecast(model, each, "lda", num_draws=50) for each in (near, far))
    assert two.separability > 2 * one.separability > 0


# --- the covariance ---------------------------------------------------------------------------------------------------


def test_rank_and_condition():
    """Features of known spread along axes of their own; one of them never changes."""
    n, spread = 4000, np.array([8.0, 4.0, 2.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    rng = np.random.default_rng(0)
    axes = np.linalg.qr(rng.standard_normal((D, D)))[0]
    y = rng.integers(0, C, n)
    z = (MEAN[y] + (rng.standard_normal((n, D)) * spread) @ axes.T).astype(np.float64)
    model = network().double()
    found = ccvr.forecast(model, collected(model, (torch.from_numpy(z), torch.from_numpy(y))), "ncm", num_draws=50)
    assert found.rank == 7
    assert found.condition == pytest.approx(64, rel=0.15)
    assert found.samples_per_dimension == np.bincount(y).min() / D


def test_no_spread_at_all():
    model = network()
    z, y = torch.from_numpy(MEAN).float(), torch.arange(C)
    found = ccvr.forecast(model, collected(model, (z, y)), "ncm", num_draws=5)
    assert (found.rank, found.condition, found.samples_per_dimension) == (0, 1.0, 1 / D)
    assert found.after == 100


def test_fewer_samples_than_features():
    model = network()
    found = ccvr.forecast(model, collected(model, samples(24, seed=3)), "ncm", num_draws=50)
    assert found.samples_per_dimension < 1
    assert found.advice.startswith(f"Fewer samples than features ({found.samples_per_dimension:.2f} per dimension)")


# --- words ------------------------------------------------------------------------------------------------------------

EXAMPLE = Forecast(
    separability=1.234,
    before=60.0,
    after=65.5,
    recall_before=(60.0,),
    recall_after=(65.5,),
    method="lda",
    condition=120.0,
    rank=8,
    samples_per_dimension=12.5,
)


@pytest.mark.parametrize(
    ("change", "advice"),
    [
        ({}, "Calibrate with lda: expect about +5.5 points, less where features are not Gaussian."),
        (
            {"after": 60.9},
            "The head is nearly as good as the features allow (+0.9 points): calibration may not pay.",
        ),
        (
            {"after": 50.0},
            "The head is 10.0 points better than what lda would make: keep it.",
        ),
        (
            {"samples_per_dimension": 0.25},
            "Fewer samples than features (0.25 per dimension): shrink the covariances or collect "
            'kind="pooled", and choose by ccvr.select.',
        ),
    ],
)
def test_advice(change, advice):
    assert dataclasses.replace(EXAMPLE, **change).advice == advice


def test_text():
    assert str(EXAMPLE) == (
        "forecast on Gaussian features: 60.0 % before, 65.5 % after lda; separability 1.23, rank 8, "
        "condition 1.2e+02, 12.5 samples per dimension. "
        "Calibrate with lda: expect about +5.5 points, less where features are not Gaussian."
    )


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_statistics_that_the_head_does_not_read_are_refused():
    model = network()
    statistics = collected(model, samples(400, seed=1), transform="tukey:0.5")
    with pytest.raises(CalibrationError) as refused:
        ccvr.forecast(model, statistics)
    assert str(refused.value) == (
        'the head reads "none" features; the statistics are of "tukey:0.5" ones. '
        'Collect with transform="none" for a forecast.'
    )


def test_another_model_is_refused():
    model, other = network(), network()
    with torch.no_grad():
        other[0].bias.add_(1)
    with pytest.raises(CalibrationError, match="Collect them from the model that is calibrated"):
        ccvr.forecast(other, collected(model, samples(400, seed=1)))


@pytest.mark.parametrize("method", ["oracle", "oracle-partial"])
def test_oracles_are_refused(method):
    model = network()
    with pytest.raises(CalibrationError, match=f"{method} needs raw features"):
        ccvr.forecast(model, collected(model, samples(400, seed=1)), method)


@pytest.mark.parametrize("kind", ["means", "kernel"])
def test_kinds_without_covariances_are_refused(kind):
    model, data = network(), samples(400, seed=1)
    request = {"kind": kind}
    if kind == "kernel":
        request["projection"] = ccvr.random_features(collected(model, data, kind="diagonal"), num_features=20)
    with pytest.raises(CcvrError) as refused:
        ccvr.forecast(model, collected(model, data, **request))
    assert str(refused.value) == f'{kind} statistics hold no covariance of a class. Collect with kind="full".'


def test_no_samples_are_refused():
    model = network()
    statistics = collected(model, samples(40, seed=1), min_count=1000)
    with pytest.raises(CalibrationError, match="the statistics hold no samples"):
        ccvr.forecast(model, statistics)


def test_a_head_of_ours():
    """A model whose head is one of ours already, with a transform of its own."""
    model = network()
    model[1] = LinearHead(model[1].weight, model[1].bias)
    found = ccvr.forecast(model, collected(model, samples(4000, seed=1)), "lda", num_draws=3000)
    assert found.before == pytest.approx(real(model).accuracy, abs=1.5)


def test_units_that_hardly_ever_fire_do_not_spoil_it():
    """Half of the features are 0 but for rounding: what is fitted on draws of them must hold on other draws."""
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(900) % 3
    model = nn.Sequential(nn.Linear(12, 12), nn.Linear(12, 3))
    z = torch.randn(900, 12, generator=rng, dtype=torch.float64) + 3 * functional.one_hot(y, 12)
    z[:, 6:] = 0
    z[5, 6:] = 1e-9
    found = ccvr.forecast(model, ccvr.statistics_of(z, y, model=model, head="1"))
    assert found.after > 90
