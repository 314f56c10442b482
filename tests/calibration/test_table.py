"""Every calibrator makes a new head of the same kind, and ccvr gives back what a biased head lost."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ccvr.calibration.gaussians import ClassGaussians
from ccvr.calibration.retrain import retrain
from ccvr.calibration.spec import CalibrationOptions
from ccvr.calibration.table import CALIBRATORS, allocate, ccvr, oracle, oracle_partial
from ccvr.core.errors import CalibrationError
from ccvr.models.heads import Head, LinearHead, NormedHead, copy_head
from ccvr.models.transform import FeatureTransform
from ccvr.statistics.moments import ClassStatistics, statistics_of

C = 4
FAST = CalibrationOptions(num_virtual=40, epochs=2, batch_size=16, lr=0.05, per_class=5)
TUKEY = FeatureTransform("tukey", 0.5)
SIGNED = FeatureTransform("signed-tukey", 0.5)


@dataclass
class Federation:
    """Clients' features in one place, served as an engine serves them, with a record of what was asked for."""

    clients: list[tuple[Tensor, Tensor]]
    asked: list[str] = field(default_factory=list)

    def statistics(self, transform: FeatureTransform) -> ClassStatistics:
        self.asked.append(str(transform))
        parts = [statistics_of(transform(z), y, C, transform=str(transform)) for z, y in self.clients]
        return sum(parts[1:], start=parts[0])

    def features(self) -> tuple[Tensor, Tensor]:
        self.asked.append("features")
        return torch.cat([z for z, _ in self.clients]), torch.cat([y for _, y in self.clients])


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def federation(classes: tuple[int, ...] = (0, 1, 2, 3), d: int = 6, per_class: int = 30) -> Federation:
    """Three clients: one has the first class alone, one a single sample, one the rest."""
    rng = np.random.default_rng(4)
    y = np.repeat(classes, per_class)
    z = 2 * rng.standard_normal((C, d))[y] + rng.standard_normal((len(y), d))
    owner = np.where(y == classes[0], 0, 2)
    owner[-1] = 1
    return Federation([(torch.from_numpy(z[owner == k]).float(), torch.from_numpy(y[owner == k])) for k in (2, 0, 1)])


CASES = {
    "all classes": federation(),
    "class 1 absent": federation(classes=(0, 2, 3)),
    "fewer samples than features": federation(d=50, per_class=6),
}
HEADS = {
    "linear": lambda d: LinearHead(torch.randn(C, d, generator=seeded(1)), torch.randn(C, generator=seeded(2))),
    "no bias": lambda d: LinearHead(torch.randn(C, d, generator=seeded(1)), None),
    "normed": lambda d: NormedHead(torch.randn(C, d, generator=seeded(1))),
}
VARIANTS = {
    "T0": {},
    "T1": {"transform": "tukey:0.5", "transform_at": "statistics"},
    "T2": {"transform": "tukey:0.5", "transform_at": "draws"},
    "signed T1": {"transform": "signed-tukey:0.5"},
    "zero start": {"start": "zero"},
    "proportional": {"allocation": "proportional"},
}


def tensors(head: Head) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in head.named_parameters()}


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", CALIBRATORS)
def test_contract_of_every_calibrator(name, case, kind, variant):
    evidence, options = CASES[case], replace(FAST, **VARIANTS[variant])
    head = HEADS[kind](evidence.clients[0][0].shape[1])
    before = tensors(head)
    fit = CALIBRATORS[name].fit
    found, again, other = (fit(head, evidence, options, rng=seeded(seed)) for seed in (1, 1, 2))
    assert same(tensors(head), before), "the head that comes in is left as it is"
    assert head.transform == FeatureTransform()
    assert found is not head
    assert type(found) is type(head)
    assert found.transform == FeatureTransform.parse(options.transform)
    assert {key: tensor.shape for key, tensor in tensors(found).items()} == {k: t.shape for k, t in before.items()}
    assert all(tensor.isfinite().all() and tensor.dtype == torch.float32 for tensor in tensors(found).values())
    assert same(tensors(found), tensors(again)), "the same seed, the same bits"
    assert not same(tensors(found), tensors(other))
    assert not same(tensors(found), before), "it learned"
    z = evidence.clients[0][0]
    assert torch.equal(found(z), found.score(found.transform(z))), "inference applies the transform"


@pytest.mark.parametrize("name", CALIBRATORS)
def test_a_class_that_nobody_has_keeps_its_row(name):
    head = HEADS["linear"](6)
    found = CALIBRATORS[name].fit(head, CASES["class 1 absent"], FAST, rng=seeded())
    assert torch.equal(found.weight[1], head.weight[1])
    assert found.bias[1] == head.bias[1]
    assert not torch.equal(found.weight[0], head.weight[0])


@pytest.mark.parametrize("name", CALIBRATORS)
def test_a_federation_without_samples_is_refused(name):
    nobody = Federation([(torch.empty(0, 6), torch.empty(0, dtype=torch.int64))])
    with pytest.raises(CalibrationError):
        CALIBRATORS[name].fit(HEADS["linear"](6), nobody, FAST, rng=seeded())


@pytest.mark.parametrize("name", CALIBRATORS)
def test_raw_calibrators_are_those_that_ask_for_features(name):
    evidence = federation()
    CALIBRATORS[name].fit(HEADS["linear"](6), evidence, FAST, rng=seeded())
    assert ("features" in evidence.asked) is CALIBRATORS[name].raw


@pytest.mark.parametrize("kind", ["linear", "normed"])
@pytest.mark.parametrize("name", CALIBRATORS)
def test_a_start_from_zero_forgets_the_trained_weights(name, kind):
    one, two = HEADS[kind](6), HEADS[kind](6)
    with torch.no_grad():
        two.weight.mul_(-3)
    options = replace(FAST, start="zero")
    heads = [CALIBRATORS[name].fit(head, CASES["all classes"], options, rng=seeded()) for head in (one, two)]
    assert same(*map(tensors, heads))


# --- the three readings of the paper's transform ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "asked", "after"),
    [
        ({}, "none", FeatureTransform()),
        ({"transform": "none", "transform_at": "draws"}, "none", FeatureTransform()),
        ({"transform": "tukey:0.5"}, "tukey:0.5", FeatureTransform()),
        ({"transform": "tukey:0.5", "transform_at": "draws"}, "none", TUKEY),
        ({"transform": "signed-tukey", "transform_at": "draws"}, "none", SIGNED),
    ],
    ids=["T0", "T0 at draws", "T1", "T2", "T2 signed"],
)
def test_ccvr_is_statistics_then_draws_then_retraining(options, asked, after):
    evidence, options = federation(), replace(FAST, **options)
    head = HEADS["linear"](6)
    found = ccvr(head, evidence, options, rng=seeded(3))
    assert evidence.asked == [asked]
    z = torch.cat([z for z, _ in evidence.clients])
    y = torch.cat([y for _, y in evidence.clients])
    rng = seeded(3)
    gaussians = ClassGaussians.of(statistics_of(FeatureTransform.parse(asked)(z), y, C))
    virtual, labels = gaussians.sample([options.num_virtual] * C, rng=rng)
    expected = copy_head(head)
    retrain(expected, after(virtual), labels, options, rng=rng)
    for name, tensor in tensors(expected).items():
        torch.testing.assert_close(tensors(found)[name], tensor, rtol=1e-5, atol=1e-6)


def test_the_oracle_retrains_on_every_transformed_feature():
    evidence, options, head = federation(), replace(FAST, transform="tukey:0.5"), HEADS["linear"](6)
    z, y = evidence.features()
    expected = retrain(copy_head(head), z.clamp(min=0).sqrt(), y, options, rng=seeded(3))
    assert same(tensors(oracle(head, evidence, options, rng=seeded(3))), tensors(expected))


@given(st.lists(st.integers(0, 9), min_size=C, max_size=C), st.integers(1, 8), st.integers(0, 99))
@settings(deadline=None)
def test_oracle_partial_uses_exactly_per_class_features_of_each_class(counts, per_class, seed):
    """Sample i has feature e_i, so column i of a head that started at zero moved if and only if sample i was used."""
    y = torch.arange(C).repeat_interleave(torch.tensor(counts))
    if not len(y):
        return
    y = y[torch.randperm(len(y), generator=seeded(seed))]
    evidence = Federation([(torch.eye(len(y)), y)])
    options = CalibrationOptions(per_class=per_class, epochs=1, weight_decay=0, start="zero", lr=1)
    labels = y.unique()
    head = oracle_partial(HEADS["linear"](len(y)), evidence, options, rng=seeded(seed))
    used = head.weight.detach().abs().amax(0) > 0
    if len(labels) == 1:
        return  # one class alone is certain from the start: nothing moves
    assert [int(used[y == label].sum()) for label in range(C)] == [min(n, per_class) for n in counts]


def test_oracle_partial_draws_other_samples_for_another_seed():
    y = torch.arange(C).repeat_interleave(50)
    evidence = Federation([(torch.eye(200), y)])
    options = CalibrationOptions(per_class=10, epochs=1, weight_decay=0, start="zero", lr=1)
    heads = [oracle_partial(HEADS["linear"](200), evidence, options, rng=seeded(seed)) for seed in range(40)]
    used = torch.stack([head.weight.detach().abs().amax(0) > 0 for head in heads]).sum(0)
    assert used.min() >= 1, "all samples have their turn: each is left out 40 times with probability 0.8⁴⁰ = 0.0001"
    assert used.max() < 40


# --- how many virtual features ----------------------------------------------------------------------------------------


def test_equal_allocation():
    assert allocate(torch.tensor([5, 0, 1, 900]), CalibrationOptions(num_virtual=70)) == [70, 0, 70, 70]


def test_proportional_allocation():
    options = CalibrationOptions(num_virtual=100, allocation="proportional")
    assert allocate(torch.tensor([10, 0, 30, 60]), options) == [30, 0, 90, 180]
    assert allocate(torch.tensor([1, 0, 0, 99_999]), options) == [1, 0, 0, 200], "every class that is there has one"


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=20).filter(any), st.integers(1, 3000))
def test_proportional_allocation_has_num_virtual_as_its_mean(counts, num_virtual):
    numbers = allocate(torch.tensor(counts), CalibrationOptions(num_virtual=num_virtual, allocation="proportional"))
    present = [number for number, count in zip(numbers, counts, strict=True) if count]
    assert all(number == 0 for number, count in zip(numbers, counts, strict=True) if not count)
    assert min(present) >= 1
    assert abs(sum(present) - num_virtual * len(present)) <= len(present), "up to rounding and the one that each has"
    ideal = [num_virtual * len(present) * count / sum(counts) for count in counts if count]
    assert all(abs(number - wish) <= 1 for number, wish in zip(present, ideal, strict=True))


@pytest.mark.parametrize("allocation", ["equal", "proportional"])
def test_no_samples_at_all(allocation):
    with pytest.raises(CalibrationError) as refused:
        allocate(torch.zeros(3, dtype=torch.int64), CalibrationOptions(allocation=allocation))
    message = "the statistics hold no samples. Collect them from clients that have images."
    assert str(refused.value) == message


# --- the point of it all ----------------------------------------------------------------------------------------------


def gaussian_classes(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Features of C classes with one covariance, whose best classifier is linear and known."""
    d = 8
    world = np.random.default_rng(77)
    mean, factor = 0.6 * world.standard_normal((C, d)), world.standard_normal((d, d)) / 4 + np.eye(d)
    y = rng.integers(0, C, n)
    return mean[y] + rng.standard_normal((n, d)) @ factor.T, y, mean, factor @ factor.T


@pytest.mark.parametrize("name", CALIBRATORS)
def test_a_biased_head_recovers_to_nearly_the_best_possible(name):
    z, y, mean, cov = gaussian_classes(np.random.default_rng(1), 4000)
    test_z, test_y, _, _ = gaussian_classes(np.random.default_rng(2), 20_000)
    weight = np.linalg.solve(cov, mean.T).T  # w_c = Σ⁻¹ mu_c, b_c = −½ mu_cᵀ Σ⁻¹ mu_c: the Bayes-optimal head
    bias = -0.5 * (weight * mean).sum(1)
    # What local training on skewed clients does: one class inflated, another one starved.
    biased = LinearHead(
        torch.from_numpy(weight * np.array([[2.0], [1.0], [1.0], [0.2]])).float(),
        torch.from_numpy(bias + np.array([3.0, 0.0, 0.0, -3.0])).float(),
    )
    # Non-IID: a client has one class almost alone, and the clients' shares differ.
    owner = np.where(np.random.default_rng(3).random(4000) < 0.9, y, (y + 1) % C)
    evidence = Federation(
        [(torch.from_numpy(z[owner == k]).float(), torch.from_numpy(y[owner == k])) for k in (3, 1, 0, 2)]
    )

    def accuracy(scores: np.ndarray) -> float:
        return 100 * float((scores.argmax(1) == test_y).mean())

    def score(head: Head) -> float:
        with torch.no_grad():
            return accuracy(head(torch.from_numpy(test_z).float()).numpy())

    best = accuracy(test_z @ weight.T + bias)
    before = score(biased)
    options = CalibrationOptions(num_virtual=1000, epochs=20, lr=0.02, per_class=800)
    after = score(CALIBRATORS[name].fit(biased, evidence, options, rng=seeded()))
    assert before < best - 15, "the case is a hard one"
    assert best - 1.0 < after < best + 0.5
