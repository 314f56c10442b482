"""Suspects: every attack is named, honest clients are not, and what cannot be told is not said."""

import doctest
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import ccvr
from ccvr.core.errors import StatisticsError
from ccvr.statistics.kinds import Pooled
from ccvr.statistics.moments import ClassStatistics
from ccvr.statistics.robust import THRESHOLD, Sketches, Suspect, _root_metric, majority_outside

C, D = 5, 16
Samples = tuple[Tensor, Tensor]
ATTACKS = {
    "labels": lambda z, y: (z, (y + 1) % C),
    "shift": lambda z, y: (z + 1.0, y),
    "scale": lambda z, y: (z * 2, y),
    "spread": lambda z, y: (z + 2 * torch.randn(z.shape, generator=torch.Generator().manual_seed(9)), y),
}


def clients(seed: int, sizes: list[int], *, num_classes: int = C) -> list[Samples]:
    """Honest clients: classes with means of their own, correlated features, and each client's own label mix."""
    rng = np.random.default_rng(seed)
    means = rng.normal(0, 1.5, (num_classes, D))
    mixing = rng.normal(0, 1, (D, D)) / np.sqrt(D)
    found = []
    for size in sizes:
        y = rng.choice(num_classes, size, p=rng.dirichlet(np.full(num_classes, 0.5)))
        z = means[y] + rng.standard_normal((size, D)) @ mixing
        found.append((torch.from_numpy(z), torch.from_numpy(y)))
    return found


def parts_of(samples: list[Samples], kind: str = "full") -> list[ClassStatistics]:
    return [ccvr.statistics_of(z, y, C, kind=kind) for z, y in samples]


def suspects_in(parts: list[ClassStatistics]) -> list[Suspect]:
    found: list[Suspect] = []
    ccvr.merge(parts, suspects=found.append)
    return found


def attacked(seed: int, attack: str, liars: tuple[int, ...], size: int = 300) -> list[Samples]:
    samples = clients(seed, [size] * 10)
    return [ATTACKS[attack](*each) if k in liars else each for k, each in enumerate(samples)]


@pytest.mark.parametrize("kind", ["full", "diagonal", "pooled"])
@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("liars", [(4,), (0, 4, 7)])
def test_each_attack_is_named_and_nobody_else(attack, liars, kind):
    found = suspects_in(parts_of(attacked(1, attack, liars), kind))
    assert {suspect.position for suspect in found} == set(liars)
    assert all(suspect.distance > THRESHOLD for suspect in found)
    if attack == "spread":
        assert {suspect.measure for suspect in found} == {"spread"}
    elif attack == "labels":
        assert all(suspect.measure == "mean" and suspect.labels for suspect in found)


def test_honest_clients_pass():
    """None of 1,500 clients with Dirichlet mixes and 5 to 500 samples is named."""
    rng = np.random.default_rng(0)
    named = [suspects_in(parts_of(clients(seed, rng.integers(5, 500, 15).tolist()), "diagonal")) for seed in range(100)]
    assert sum(map(len, named)) == 0


def test_honest_clients_whose_features_differ_pass():
    """What all clients differ by, beyond sampling noise, is not held against any: each feature has its own offset."""
    named = 0
    for seed in range(30):
        rng = torch.Generator().manual_seed(seed)
        samples = [(z + 0.3 * torch.randn(D, generator=rng), y) for z, y in clients(seed, [400] * 10)]
        named += len(suspects_in(parts_of(samples)))
    assert named <= 3


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1), st.sampled_from(sorted(ATTACKS)), st.randoms(use_true_random=False))
def test_the_order_of_clients_changes_nothing(seed, attack, random):
    parts = parts_of(attacked(seed, attack, (2, 5), size=120))
    order = list(range(10))
    random.shuffle(order)
    found = {suspect.position: suspect for suspect in suspects_in(parts)}
    again = {order[suspect.position]: suspect for suspect in suspects_in([parts[k] for k in order])}
    assert found.keys() == again.keys()
    for client, suspect in found.items():
        assert suspect.labels == again[client].labels
        assert suspect.distance == pytest.approx(again[client].distance, rel=1e-6)


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1), st.sampled_from(sorted(ATTACKS)), st.sampled_from([1e-3, 0.3, 7.0, 1e4]))
def test_the_unit_of_features_changes_nothing(seed, attack, unit):
    samples = attacked(seed, attack, (3,), size=120)
    before, after = suspects_in(parts_of(samples)), suspects_in(parts_of([(z * unit, y) for z, y in samples]))
    assert [s.position for s in before] == [s.position for s in after]
    assert [s.distance for s in before] == pytest.approx([s.distance for s in after], rel=1e-4)


@pytest.mark.parametrize("number", [1, 2])
def test_of_two_owners_of_a_class_nobody_can_tell_which_is_wrong(number):
    *others, (z, _) = clients(0, [300] * 5 + [50], num_classes=4)
    owners = [(z + 20 * k, torch.full((50,), 4)) for k in range(number)]
    assert suspects_in(parts_of([*others, *owners])) == []


def test_of_three_the_one_that_contradicts_both_is_named():
    samples = clients(0, [300] * 3)
    samples[0] = ATTACKS["shift"](*samples[0])
    assert [suspect.position for suspect in suspects_in(parts_of(samples))] == [0]


def test_the_only_owner_of_a_class_is_believed():
    samples = clients(3, [300] * 6, num_classes=4)
    lie = torch.full((50, D), 100.0) + torch.randn(50, D, generator=torch.Generator().manual_seed(0))
    samples.append((lie, torch.full((50,), 4)))
    assert suspects_in(parts_of(samples)) == []


def test_small_classes_cannot_vouch_for_a_liar():
    """Clients of two samples differ from nobody by more than sampling explains, and that is no agreement."""
    samples = clients(1, [300] * 10 + [2] * 60)
    samples[0] = (samples[0][0] + 0.5, samples[0][1])
    assert [suspect.position for suspect in suspects_in(parts_of(samples))] == [0]


def test_a_small_class_far_away_is_named():
    samples = clients(0, [300] * 6)
    samples[2] = (
        torch.full((C, D), 1e6, dtype=torch.float64),
        torch.arange(C),
    )  # too few samples to agree with anybody
    assert [suspect.position for suspect in suspects_in(parts_of(samples))] == [2]


# --- what merge does with them ----------------------------------------------------------------------------------------


def test_a_robust_merge_is_the_exact_sum_of_the_others():
    parts = parts_of(attacked(1, "scale", (4, 6)))
    found: list[Suspect] = []
    total = ccvr.merge(parts, suspects=found.append, robust=True)
    honest = ccvr.merge(part for k, part in enumerate(parts) if k not in (4, 6))
    assert {suspect.position for suspect in found} == {4, 6}
    for name in ("count", "total", "clients"):
        assert torch.equal(getattr(total, name), getattr(honest, name))
    assert torch.equal(total.pooled_scatter(), honest.pooled_scatter())


def test_suspects_alone_leaves_the_sum_as_it_is():
    parts = parts_of(attacked(1, "scale", (4,)))
    named, plain = ccvr.merge(parts, suspects=lambda _: None), ccvr.merge(parts)
    assert torch.equal(named.total, plain.total)


class Counted(list):
    reads = 0

    def __iter__(self):
        self.reads += 1
        return super().__iter__()


@pytest.mark.parametrize(("liars", "reads"), [((), 1), ((3,), 2)])
def test_parts_are_read_twice_only_if_somebody_is_left_out(liars, reads):
    parts = Counted(part.to_bytes() for part in parts_of(attacked(1, "labels", liars)))
    ccvr.merge(parts, robust=True)
    assert parts.reads == reads


def test_what_is_read_once_cannot_be_merged_robustly():
    parts = parts_of(attacked(1, "labels", (3,)))
    with pytest.raises(StatisticsError, match=r"may read the parts twice, and a generator is read once. Give a list"):
        ccvr.merge((part for part in parts), robust=True)
    found: list[Suspect] = []
    ccvr.merge(iter(parts), suspects=found.append)
    assert [suspect.position for suspect in found] == [3]


def test_refused_parts_keep_their_positions_and_are_refused_once():
    blobs = [part.to_bytes() for part in parts_of(attacked(1, "labels", (3,)))]
    refused: list[StatisticsError] = []
    found: list[Suspect] = []
    total = ccvr.merge([b"junk", *blobs, b""], refused=refused.append, suspects=found.append, robust=True)
    assert [suspect.position for suspect in found] == [4]
    assert len(refused) == 2
    assert int(total.count.sum()) == 9 * 300


def test_means_alone_cannot_be_compared():
    parts = parts_of(clients(0, [50] * 3), "means")
    with pytest.raises(StatisticsError, match="means statistics hold no variances"):
        ccvr.merge(parts, suspects=print)


def test_a_suspect_is_one_line():
    assert str(Suspect(3, "mean", (1, 4), 8.16, 3.0)) == (
        "part 3: the mean of classes 1, 4 is 8.2 times as far from most other clients' as honest clients differ "
        "(threshold 3)"
    )
    assert "the spread of all classes is" in str(Suspect(3, "spread", (), 8.16, 3.0))
    assert len(str(Suspect(3, "mean", tuple(range(1000)), 8.16, 3.0))) < 200


def test_the_example():
    found = doctest.testmod(sys.modules["ccvr.statistics.merge"])
    assert (found.failed, found.attempted > 1) == (0, True)


# --- hostile numbers --------------------------------------------------------------------------------------------------


class Forged:
    """Honest statistics with another value in all means, as no client of ours collects them."""

    def __init__(self, honest: ClassStatistics, value: float) -> None:
        self.honest, self.value = honest, value

    def __getattr__(self, name):
        return getattr(self.honest, name)

    def means_of(self, classes: Tensor) -> Tensor:
        return torch.full_like(self.honest.means_of(classes), self.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e9, 1e300])
def test_hostile_values_name_their_client_alone(value):
    sketches = Sketches()
    for position, part in enumerate(parts_of(clients(1, [300] * 8))):
        sketches.add(position, Forged(part, value) if position == 5 else part)
    assert [suspect.position for suspect in sketches.suspects()] == [5]


@pytest.mark.parametrize("factor", [0.0, 1e-9, 1e9])
def test_a_hostile_spread_names_its_client_alone(factor):
    samples = clients(1, [300] * 8)
    z, y = samples[5]
    mean = torch.stack([z[y == label].mean(0) if (y == label).any() else torch.zeros(D) for label in range(C)])[y]
    samples[5] = (mean + factor * (z - mean), y)
    assert [suspect.position for suspect in suspects_in(parts_of(samples))] == [5]


def test_nobody_with_a_variance_is_no_verdict():
    assert suspects_in(parts_of([(torch.randn(C, D), torch.arange(C)) for _ in range(4)])) == []
    assert suspects_in([ClassStatistics.zeros(C, D) for _ in range(4)]) == []


class Noisy(Pooled):
    exact = False

    def finish(self, statistics, *, rng):
        noise = torch.from_numpy(rng.normal(0, 200, statistics.second.shape))
        statistics.second.add_(noise + noise.T)
        return statistics


NOISY = Noisy()


def test_noisy_kinds_are_compared_by_their_means():
    samples = attacked(1, "labels", (3,))
    rng = np.random.default_rng(0)
    parts = [ccvr.statistics_of(z, y, C, kind=f"{__name__}:NOISY", rng=rng) for z, y in samples]
    assert 3 in {suspect.position for suspect in suspects_in(parts)}


# --- oracles ----------------------------------------------------------------------------------------------------------


def test_the_metric_expects_sampling_noise():
    """|(a − b) Q|² is 1/n + 1/m on average, for means of n and m samples of any covariance."""
    rng = np.random.default_rng(0)
    mixing = rng.normal(0, 1, (D, D))
    root, variance = _root_metric(torch.from_numpy(mixing.T @ mixing))
    a, b = (rng.standard_normal((4000, n, D)).mean(1) @ mixing for n in (10, 40))
    squared = ((torch.from_numpy(a - b) @ root) ** 2).sum(1).mean()
    assert squared == pytest.approx(1 / 10 + 1 / 40, rel=0.03)
    assert torch.allclose(variance, torch.from_numpy((mixing**2).sum(0)))


def test_the_majority_decides():
    far, none = 9.0, torch.nan
    distances = torch.tensor(
        [
            [none, far, far, 1.0],
            [far, none, 1.0, 1.0],
            [far, 1.0, none, 1.0],
            [1.0, 1.0, 1.0, none],
        ]
    )
    assert majority_outside(distances, 3.0) == {0: far}
    distances[0, 2] = distances[2, 0] = 1.0  # one against one, among three
    assert majority_outside(distances, 3.0) == {}
    assert majority_outside(torch.full((3, 3), far), 3.0) == {}, "where all differ as much, that is how clients differ"
    assert majority_outside(torch.full((0, 0), far), 3.0) == {}


def _client(centres, n, shift=0.0, *, seed, kind="diagonal"):
    labels = torch.arange(len(centres)).repeat_interleave(n)
    noise = torch.randn(len(labels), centres.shape[1], generator=torch.Generator().manual_seed(seed))
    return ccvr.statistics_of(centres[labels] + noise + shift, labels, len(centres), kind=kind)


@pytest.mark.parametrize("liars", [1, 2, 3])
@pytest.mark.parametrize(
    ("sizes", "of_liar"), [((300,) * 8 + (4,) * 60, 300), ((7,) * 17, 7), ((7,) * 12 + (40,) * 6, 40)]
)
def test_honest_clients_of_few_samples_switch_nothing_off(sizes, of_liar, liars):
    centres = 2 * torch.randn(4, 16, generator=torch.Generator().manual_seed(9))
    parts = [_client(centres, of_liar, 50.0, seed=seed) for seed in range(liars)]
    parts += [_client(centres, n, seed=100 + number) for number, n in enumerate(sizes)]
    found = []
    total = ccvr.merge(parts, suspects=found.append, robust=True)
    assert {each.position for each in found} == set(range(liars))
    assert (total.mean - centres).abs().max() < 1


def test_a_part_that_is_refused_is_no_suspect():
    centres = 2 * torch.randn(4, 16, generator=torch.Generator().manual_seed(9))
    parts = [_client(centres, 40, seed=seed) for seed in range(8)] + [_client(centres, 400, 50.0, seed=8)]
    refused, named = [], []
    ccvr.merge(parts, suspects=named.append, refused=refused.append, max_count=100)
    assert (len(refused), named) == (1, [])


def test_wide_statistics_are_not_compared():
    wide = ccvr.statistics_of(torch.randn(4, 8_001), torch.arange(4) % 2, 2, kind="diagonal")
    with pytest.raises(StatisticsError, match="clients of 8,001 features are not compared"):
        ccvr.merge([wide], suspects=print)
