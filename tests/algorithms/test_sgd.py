"""The optimiser against torch's own."""

import copy

import pytest
import torch
from torch import nn

from ccvr.algorithms.sgd import Sgd, step_weight
from ccvr.algorithms.spec import TrainingSpec

SPECS = [
    TrainingSpec(lr=0.1, momentum=momentum, weight_decay=weight_decay)
    for momentum in (0.0, 0.9)
    for weight_decay in (0.0, 0.01)
]
each_spec = pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.momentum}-{spec.weight_decay}")


def torchs(parameters, spec, **how):
    return torch.optim.SGD(parameters, lr=spec.lr, momentum=spec.momentum, weight_decay=spec.weight_decay, **how)


def network(memory_format=torch.contiguous_format):
    """Odd sizes, so that no tensor fills whole registers; a frozen tensor."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten(), nn.Linear(5 * 9, 7))
    model[0].bias.requires_grad_(False)
    return model.to(memory_format=memory_format)


def bits(model):
    return [parameter.detach().reshape(-1).view(torch.uint8).tolist() for parameter in model.parameters()]


@each_spec
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_bits_are_those_of_torchs_fused_sgd(spec, memory_format, dtype):
    ours = network(memory_format).to(dtype)
    theirs, start = copy.deepcopy(ours), bits(ours)
    optimiser, reference = Sgd(list(ours.parameters()), spec), torchs(theirs.parameters(), spec, fused=True)
    for _ in range(6):
        images = torch.randn(4, 3, 5, 5, dtype=dtype)
        for model, forget in ((ours, optimiser.drop_gradients), (theirs, reference.zero_grad)):
            forget()
            model(images).pow(2).mean().backward()
        optimiser.step()
        reference.step()
        assert bits(ours) == bits(theirs)
    moved = [before != after for before, after in zip(start, bits(ours), strict=True)]
    assert moved == [parameter.requires_grad for parameter in ours.parameters()], "all but the frozen one"


@each_spec
def test_parameters_without_a_gradient_stay_and_keep_their_velocity(spec):
    """In some steps, at first, or always: as in torch's plain loop over the parameters."""
    turns = [(0,), (0, 1), (1,), (0,), (0, 1), (1,), ()]
    torch.manual_seed(0)
    ours = [nn.Parameter(torch.randn(7, 3, dtype=torch.float64)) for _ in range(3)]
    theirs = copy.deepcopy(ours)
    optimiser, reference = Sgd(ours, spec), torchs(theirs, spec, foreach=False, fused=False)
    for live in turns:
        optimiser.drop_gradients()
        reference.zero_grad()
        before = [parameter.detach().clone() for parameter in ours]
        for place in live:
            ours[place].grad = torch.randn(7, 3, dtype=torch.float64)
            theirs[place].grad = ours[place].grad.clone()
        optimiser.step()
        reference.step()
        for place, (mine, plain) in enumerate(zip(ours, theirs, strict=True)):
            torch.testing.assert_close(mine, plain, rtol=0, atol=1e-14)
            assert torch.equal(mine, before[place]) is (place not in live)


def test_gradients_are_left_as_they_are_until_they_are_dropped():
    parameter = nn.Parameter(torch.ones(3))
    optimiser = Sgd([parameter], SPECS[-1])
    parameter.grad = torch.full((3,), 2.0)
    optimiser.step()
    assert parameter.grad.tolist() == [2, 2, 2]
    assert parameter.requires_grad
    assert parameter.is_leaf
    optimiser.drop_gradients()
    assert parameter.grad is None


@each_spec
def test_a_gradient_in_another_order_of_memory(spec):
    """An objective may put ``c - parameter.grad`` there, with a c that came from the server."""
    ours = nn.Parameter(torch.randn(4, 3, 5, 5).contiguous(memory_format=torch.channels_last))
    theirs = copy.deepcopy(ours)
    ours.grad = torch.randn(4, 3, 5, 5)
    theirs.grad = ours.grad.clone()
    Sgd([ours], spec).step()
    torchs([theirs], spec, foreach=False, fused=False).step()
    torch.testing.assert_close(ours, theirs)


def test_a_parameter_with_gaps_leaves_its_neighbours_alone():
    whole = torch.zeros(4, 6)
    parameter = nn.Parameter(whole[:, ::2])
    parameter.grad = torch.ones(4, 3)
    Sgd([parameter], TrainingSpec(lr=0.5, momentum=0.9, weight_decay=0.0)).step()
    assert torch.equal(whole[:, ::2], torch.full((4, 3), -0.5))
    assert not whole[:, 1::2].any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@each_spec
def test_half_precision_moves_as_torchs_plain_loop_moves_it(spec, dtype):
    start = torch.linspace(-1, 1, 320, dtype=torch.float64).to(dtype)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    optimiser, plain = Sgd([ours], spec), torchs([theirs], spec, foreach=False, fused=False)
    for _ in range(3):
        ours.grad, theirs.grad = ours.detach().clone(), theirs.detach().clone()
        optimiser.step()
        plain.step()
    assert torch.allclose(ours, theirs, rtol=1e-12 if dtype == torch.float64 else 0)
    assert not torch.equal(ours[:256], start[:256])


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("steps", [1, 2, 7, 200])
def test_the_weight_of_steps_with_momentum(beta, steps):
    expected = (steps - beta * (1 - beta**steps) / (1 - beta)) / (1 - beta)
    assert step_weight(steps, TrainingSpec(momentum=beta)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("steps", [1, 2, 7, 200])
def test_the_weight_of_steps_that_are_pulled_back(steps):
    spec, mu = TrainingSpec(momentum=0.0, lr=0.05), 0.6
    expected = (1 - (1 - spec.lr * mu) ** steps) / (spec.lr * mu)
    assert step_weight(steps, spec, mu) == pytest.approx(expected, rel=1e-12)


def test_the_weight_of_steps_is_how_far_sgd_goes():
    """A constant gradient of 1, pulled back to the start, momentum on."""
    spec, mu = TrainingSpec(momentum=0.9, lr=0.05, weight_decay=0.0), 0.6
    weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimiser = Sgd([weight], spec)
    for _ in range(13):
        weight.grad = 1 + mu * weight.detach()
        optimiser.step()
    assert -weight.item() == pytest.approx(spec.lr * step_weight(13, spec, mu), rel=1e-12)
