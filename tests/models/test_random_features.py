import copy
import hashlib
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ccvr.core.errors import StatisticsError
from ccvr.models.heads import LinearHead, copy_head
from ccvr.models.random_features import FORMAT, Projection, RandomFeatures
from ccvr.models.tensor_file import tensors_from_bytes, tensors_to_bytes


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def make(p: int = 4, num_features: int = 6, *, bandwidth: float = 0.7, seed: int = 3) -> Projection:
    return Projection(3 * draw(p), draw(p, seed=1).abs() + 0.1, num_features, bandwidth, seed)


sizes = st.integers(1, 6)


@settings(max_examples=40)
@given(sizes, sizes, st.floats(0.01, 10), st.integers(0, 2**63 - 1))
def test_it_is_the_cosine_of_standardised_features(p: int, num: int, bandwidth: float, seed: int) -> None:
    projection = make(p, num, bandwidth=bandwidth, seed=seed)
    u = 5 * draw(3, p, seed=2)
    rng = np.random.Generator(np.random.Philox(seed))
    omega = rng.standard_normal((p, num)) * bandwidth / math.sqrt(p)
    b = rng.uniform(0, 2 * math.pi, num)
    expected = np.empty((3, num))
    for i in range(3):
        v = [(float(u[i, k]) - float(projection.mean[k])) / float(projection.std[k]) for k in range(p)]
        for j in range(num):
            expected[i, j] = math.cos(sum(v[k] * omega[k, j] for k in range(p)) + b[j])
    found = RandomFeatures.of(projection)(u.float())
    assert found.dtype == torch.float32
    scale = 1 + float((u.abs().max() + projection.mean.abs().max()) / projection.std.min()) * bandwidth
    assert np.abs(found.numpy() - expected).max() <= 1e-5 * scale


def test_units_and_origin_of_a_layer_do_not_matter() -> None:
    plain = Projection(torch.zeros(4).double(), torch.ones(4).double(), 50, 0.7, 3)
    mean, std = draw(4), draw(4, seed=1).abs() + 0.1
    moved = replace(plain, mean=mean, std=std)
    u = draw(20, 4, seed=2)
    expected = RandomFeatures.of(plain)(u.float())
    assert torch.allclose(RandomFeatures.of(moved)((u * std + mean).float()), expected, atol=1e-4)
    assert not torch.allclose(RandomFeatures.of(moved)(u.float()), expected, atol=1e-1)


def test_inner_products_are_those_of_the_gaussian_kernel() -> None:
    p, bandwidth = 4, 0.7
    first = Projection(torch.zeros(p).double(), torch.ones(p).double(), 20_000, bandwidth, 5)
    u = draw(5, p, seed=2).float()
    phi = torch.cat([RandomFeatures.of(replace(first, seed=seed))(u) for seed in range(10)], dim=1)
    kernel = torch.exp(-torch.cdist(u, u).square() * bandwidth**2 / (2 * p))
    assert torch.allclose(2 * phi @ phi.T / 200_000, kernel, atol=0.02)


def test_phases_and_directions_spread() -> None:
    omega, phase = Projection(torch.zeros(4).double(), torch.ones(4).double(), 5000, 0.7, 3).weights
    assert omega.std().item() == pytest.approx(0.7 / 2, rel=0.05)
    assert abs(omega.mean().item()) < 0.02
    assert 0 <= phase.min() < 0.1
    assert 2 * math.pi - 0.1 < phase.max() <= 2 * math.pi + 1e-6


def test_weights_are_those_of_one_draw() -> None:
    """They are made in blocks, and come out as if they were not."""
    mean, std = draw(700), draw(700, seed=1).abs() + 0.1
    projection = Projection(mean, std, 3000, 0.7, 3)
    rng = np.random.Generator(np.random.Philox(3))
    omega = torch.from_numpy(rng.standard_normal((700, 3000))) * 0.7 / 700**0.5 / std.unsqueeze(1)
    phase = torch.from_numpy(rng.uniform(0, 2 * np.pi, 3000)) - mean @ omega
    found = projection.weights
    assert torch.equal(found[0], omega.float())
    torch.testing.assert_close(found[1], phase.float())
    both = b"".join(part.numpy().tobytes() for part in found)
    assert projection.digest == hashlib.sha256(both).hexdigest()


class TestDigest:
    def test_equal_agreements_draw_the_same_weights(self) -> None:
        one, other = make(), make()
        assert all(torch.equal(a, b) for a, b in zip(one.weights, other.weights, strict=True))
        assert one.digest == other.digest
        assert len(one.digest) == 64

    def test_every_field_counts(self) -> None:
        first = make()
        others = [
            replace(first, mean=first.mean + torch.tensor([0, 0, 0, 1e-3])),
            replace(first, std=first.std * torch.tensor([1, 1, 1.001, 1])),
            replace(first, num_features=7),
            replace(first, bandwidth=0.701),
            replace(first, seed=4),
            make(5),
        ]
        assert len({projection.digest for projection in [first, *others]}) == 7

    def test_the_weights_of_one_seed_are_pinned(self) -> None:
        omega, phase = Projection(torch.zeros(1).double(), torch.ones(1).double(), 2, 1.0, 0).weights
        rng = np.random.Generator(np.random.Philox(0))
        assert omega.flatten().tolist() == np.float32(rng.standard_normal(2)).tolist()
        assert phase.tolist() == np.float32(rng.uniform(0, 2 * np.pi, 2)).tolist()

    def test_the_global_generator_is_left_alone_and_does_not_matter(self) -> None:
        torch.manual_seed(1)
        before = torch.get_rng_state()
        digest = make().digest
        assert torch.equal(torch.get_rng_state(), before)
        torch.manual_seed(2)
        assert make().digest == digest


@pytest.mark.parametrize(
    ("num_features", "bandwidth"),
    [
        (0, 1.0),
        (-3, 1.0),
        (20_001, 1.0),
        (5.9, 1.0),
        ("5", 1.0),
        (True, 1.0),
        (math.inf, 1.0),
        (5, 0.0),
        (5, -1.0),
        (5, math.nan),
        (5, math.inf),
        (5, "wide"),
        (5, True),
    ],
)
def test_what_cannot_be(num_features: int, bandwidth: float) -> None:
    with pytest.raises(StatisticsError) as caught:
        Projection(torch.zeros(2).double(), torch.ones(2).double(), num_features, bandwidth, 0)
    assert str(caught.value) == (
        f"random features: number {num_features!r}, bandwidth {bandwidth!r}; "
        "give a whole number of 1 to 20,000, and a bandwidth above 0 and below a million."
    )


class TestInAHead:
    def test_the_head_scores_random_features(self) -> None:
        phi, weight, bias = RandomFeatures.of(make()), draw(3, 6, seed=4).float(), draw(3, seed=5).float()
        u = draw(5, 4, seed=2).float()
        head = LinearHead(weight, bias, phi)
        assert torch.allclose(head(u), torch.cos(u @ phi.omega + phi.phase) @ weight.T + bias, atol=1e-5)
        assert torch.equal(copy_head(head)(u), head(u))

    def test_its_weights_travel_with_the_head_but_are_not_trained(self) -> None:
        head = LinearHead(torch.zeros(3, 6), None, RandomFeatures.of(make()))
        assert set(head.state_dict()) == {"weight", "transform.omega", "transform.phase"}
        assert [name for name, _ in head.named_parameters()] == ["weight"]
        fresh = LinearHead(torch.ones(3, 6), None, RandomFeatures(torch.zeros(4, 6), torch.zeros(6)))
        fresh.load_state_dict(head.state_dict())
        u = draw(5, 4).float()
        assert torch.equal(fresh.transform(u), head.transform(u))

    def test_what_it_reads_stays_as_it_is(self) -> None:
        phi, u = RandomFeatures.of(make()), draw(5, 4).float()
        before, phase = u.clone(), phi.phase.clone()
        phi(u)
        assert torch.equal(u, before)
        assert torch.equal(phi.phase, phase)

    def test_gradients_reach_the_backbone(self) -> None:
        u = draw(5, 4).float().requires_grad_()
        RandomFeatures.of(make())(u).sum().backward()
        phi = RandomFeatures.of(make())
        expected = -torch.sin(u.detach() @ phi.omega + phi.phase) @ phi.omega.T
        assert torch.allclose(u.grad, expected, atol=1e-5)

    def test_a_copy_is_independent(self) -> None:
        phi = RandomFeatures.of(make())
        other = copy.deepcopy(phi)
        other.omega.zero_()
        assert phi.omega.abs().sum() > 0
        assert str(phi) == "random-features"


def test_a_projection_travels_as_bytes():
    sent = Projection(torch.tensor([0.5, 1.0]).double(), torch.tensor([1.0, 2.0]).double(), 3, 0.5, 7)
    received = Projection.from_bytes(sent.to_bytes())
    assert received == sent
    assert received.digest == sent.digest


def test_a_projection_that_was_damaged_or_comes_out_otherwise_is_refused():
    sent = Projection(torch.tensor([0.5, 1.0]).double(), torch.tensor([1.0, 2.0]).double(), 3, 0.5, 7)
    blob = sent.to_bytes()
    with pytest.raises(StatisticsError, match="not a projection"):
        Projection.from_bytes(blob[:-3])
    with pytest.raises(StatisticsError, match="not a projection"):
        Projection.from_bytes(b"nonsense")
    with pytest.raises(StatisticsError, match="other random features here"):
        Projection.from_bytes(blob.replace(b'seed\\": 7', b'seed\\": 8'))


def sealed(**changes: object) -> bytes:
    """Bytes of a projection whose header says something else."""
    sent = Projection(torch.tensor([0.5, 1.0]).double(), torch.tensor([1.0, 2.0]).double(), 3, 0.5, 7)
    header, tensors = tensors_from_bytes(sent.to_bytes(), format=FORMAT)
    return tensors_to_bytes(tensors, **(header | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"num_features": 1e400},
        {"seed": 1e400},
        {"num_features": "3"},
        {"num_features": 3.0},
        {"num_features": 3.9},
        {"num_features": True},
        {"seed": "7"},
        {"seed": 7.0},
        {"seed": 10**400},
        {"seed": -1},
        {"bandwidth": "0.5"},
        {"bandwidth": 1e400},
        {"num_features": 10**9},
        {"digest": 1},
    ],
)
def test_numbers_of_another_type_or_range_are_refused(changes):
    with pytest.raises(StatisticsError, match=r"not a projection|other random features"):
        Projection.from_bytes(sealed(**changes))


@pytest.mark.parametrize(
    ("mean", "std"),
    [
        (torch.zeros(3), torch.ones(2)),
        (torch.zeros(3, 1), torch.ones(3, 1)),
        (torch.zeros(2).long(), torch.ones(2)),
        (torch.tensor([0.0, math.nan]), torch.ones(2)),
        (torch.zeros(2), torch.tensor([1.0, 0.0])),
        (torch.zeros(2), torch.tensor([1.0, math.inf])),
    ],
)
def test_layers_that_cannot_be(mean, std):
    with pytest.raises(StatisticsError, match="random features: "):
        Projection(mean, std, 5, 1.0, 0)


def test_a_projection_of_too_many_weights_is_refused_before_they_are_drawn():
    p = 10**6
    with pytest.raises(StatisticsError, match="20,000 of 1,000,000 numbers take more than 100,000,000 weights"):
        Projection(torch.zeros(p), torch.ones(p), 20_000, 1.0, 0)
