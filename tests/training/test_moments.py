"""Sums for batch normalisation against a plain forward pass, and the laws of their merging."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from ccvr.core.errors import TrainingError
from ccvr.data.batches import Batch
from ccvr.models.preprocess import Normalize
from ccvr.models.split import split_model
from ccvr.models.state import buffers_of
from ccvr.training.moments import merged_sums, moment_sums, moments_of, require_sums

MEAN, STD = 0.4, 0.3
RNG = torch.Generator().manual_seed(0)
BATCHES = [
    Batch(torch.randint(0, 256, (n, 1, 4, 4), dtype=torch.uint8, generator=RNG), torch.zeros(n, dtype=torch.int64))
    for n in (5, 7, 2, 1)
]


@pytest.fixture
def model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Sequential(
            *(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5)),
            *(nn.Linear(12, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)),
        )
    made = split_model(layers, Normalize([MEAN], [STD]), BATCHES[0].inputs)
    for name, parameter in made.named_parameters():  # an affine part that is not the identity
        if parameter.dim() == 1:
            nn.init.uniform_(parameter, 0.5, 1.5, generator=torch.Generator().manual_seed(len(name)))
    return made


def plain_activations(model, batches):
    """What enters both normalisations, [n, C] each, with every batch normalised by its own moments; float64."""
    weights = [tensor.detach().double() for _, tensor in model.named_parameters()]
    w1, b1, g1, s1, w2, b2, g2, s2, _, _ = weights
    found = [[], []]
    for inputs, _ in batches:
        x = (inputs.double() / 255 - MEAN) / STD
        first = functional.conv2d(x, w1, b1)
        found[0].append(first.permute(0, 2, 3, 1).reshape(-1, 3))
        mean, var = first.mean((0, 2, 3), keepdim=True), first.var((0, 2, 3), correction=0, keepdim=True)
        normed = (first - mean) / (var + 1e-5).sqrt() * g1.view(1, 3, 1, 1) + s1.view(1, 3, 1, 1)
        second = normed.relu().flatten(1) @ w2.T + b2
        found[1].append(second)
        assert g2.shape == s2.shape == (5,)
    return [torch.cat(parts) for parts in found]


def test_moments_are_those_of_all_activations_together(model):
    """Clients of 12 and 2 samples; the moments are those of the 14 samples' activations, with n − 1."""
    clients = [BATCHES[:2], BATCHES[2:3]]
    sums = merged_sums(moment_sums(model, batches) for batches in clients)
    found = moments_of(sums, buffers_of(model))
    names = [name for name in buffers_of(model) if name.endswith(("running_mean", "running_var"))]
    assert sorted(found) == sorted(names)
    for number, values in enumerate(plain_activations(model, BATCHES[:3])):
        mean, var = names[2 * number : 2 * number + 2]
        torch.testing.assert_close(found[mean].double(), values.mean(0), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(found[var].double(), values.var(0), rtol=1e-5, atol=1e-6)
        assert found[mean].dtype == torch.float32


def test_merging_is_addition_in_any_grouping(model):
    parts = [moment_sums(model, [batch]) for batch in BATCHES[:3]]
    whole = moment_sums(model, BATCHES[:3])
    for merged in (merged_sums(parts), merged_sums([merged_sums(parts[:2]), parts[2]]), merged_sums(reversed(parts))):
        for name, tensor in whole.items():
            torch.testing.assert_close(merged[name], tensor, rtol=1e-12, atol=1e-9)
    nobody = moment_sums(model, [])
    assert all(torch.equal(a, b) for a, b in zip(merged_sums([nobody, whole]).values(), whole.values(), strict=True))


def test_a_single_sample_is_left_out_and_the_model_is_left_as_it_was(model):
    model.train()
    model.get_submodule("backbone.model.4").eval()
    before, modes = copy.deepcopy(model.state_dict()), [part.training for part in model.modules()]
    assert all(not tensor.any() for tensor in moment_sums(model, BATCHES[3:]).values())
    moment_sums(model, BATCHES)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert [part.training for part in model.modules()] == modes
    assert not any(part._forward_pre_hooks for part in model.modules())


def test_moments_of_nobody_are_an_error(model):
    with pytest.raises(TrainingError, match="no client has two samples"):
        moments_of(moment_sums(model, []), buffers_of(model))


@pytest.mark.parametrize(
    ("part", "change", "words"),
    [
        ("count", lambda t: t * 2, "its 12 samples have less"),
        ("count", lambda t: -t, "its 12 samples have less"),
        ("total", lambda t: t * torch.nan, "is not finite"),
        ("total", lambda t: t[:1], "are not those of the model's batch normalisation"),
        ("second", lambda t: t * 0, "less than any numbers with these sums can have"),
    ],
)
def test_sums_that_a_client_cannot_have_are_refused(part, change, words, model):
    one = {name: tensor / 2 for name, tensor in moment_sums(model, BATCHES[2:3]).items()}
    sums = moment_sums(model, BATCHES[:2])
    require_sums(sums, one, 12)
    name = next(name for name in sums if name.endswith(f"/{part}"))
    with pytest.raises(TrainingError, match=words):
        require_sums({**sums, name: change(sums[name])}, one, 12)
