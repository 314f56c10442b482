"""Algorithms against drift: equal to plain implementations, and the laws behind them."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from ccvr.algorithms.messages import group_of
from ccvr.algorithms.table import find_algorithm
from ccvr.core.errors import SpecError
from ccvr.models.preprocess import Normalize
from ccvr.models.split import split_model
from ccvr.training.client_state import ClientStates
from ccvr.training.rounds import federate
from tests.algorithms.against_plain import BASE, SEED, require_equal
from tests.algorithms.plain_drift import FedDyn, FedNova, FedSam, Scaffold
from tests.algorithms.small import NUM_CLASSES, small_model

RULES = {
    "scaffold": Scaffold,
    "scaffold,lr=0.7,by_samples=true": lambda: Scaffold(0.7, by_samples=True),
    "fednova": FedNova,
    "fednova,mu=0.6": lambda: FedNova(0.6),
    "feddyn,alpha=0.1,clip=0": lambda: FedDyn(0.1),
    "feddyn,alpha=0.3,clip=0.5,by_samples=true": lambda: FedDyn(0.3, 0.5, by_samples=True),
    "fedsam,rho=0.2": lambda: FedSam(0.2),
}
SPEC = replace(BASE, rounds=4)


@pytest.mark.parametrize("fraction", [1.0, 0.6])
@pytest.mark.parametrize("algorithm", RULES)
def test_equals_the_plain_implementation(algorithm, fraction, clients, tmp_path):
    require_equal(replace(SPEC, algorithm=algorithm, client_fraction=fraction), clients, tmp_path, RULES[algorithm]())


@pytest.mark.parametrize("algorithm", RULES)
def test_with_both_regularisers_of_the_head(algorithm, clients, tmp_path):
    rule = RULES[algorithm]()
    if isinstance(rule, FedDyn):
        rule.clip, algorithm = 0.0, algorithm.replace("clip=0.5", "clip=0")  # clsprox is added to a clipped gradient
    spec = replace(SPEC, algorithm=algorithm, clsnorm=True, clsprox=0.5, client_fraction=0.6)
    require_equal(spec, clients, tmp_path, rule)


def test_some_gradients_are_clipped_and_some_are_not(clients, tmp_path):
    rule = FedDyn(0.3, 0.5)
    states = require_equal(replace(SPEC, algorithm="feddyn,alpha=0.3,clip=0.5"), clients, tmp_path, rule)
    steps = sum(report.num_steps for state in states for report in state.clients)
    assert 0 < rule.clipped < steps


def last_of(spec, clients, folder, model=None):
    *_, last = federate(model or small_model(), clients, spec, seed=SEED, states=ClientStates(folder))
    return last


@pytest.mark.parametrize("algorithm", ["scaffold", "feddyn,alpha=0.1"])
def test_the_server_remembers_the_mean_of_what_clients_do(algorithm, clients, tmp_path):
    """All clients take part every round: then c = mean c_k, and h = mean h_k."""
    spec = replace(SPEC, algorithm=algorithm)
    last, files = last_of(spec, clients, tmp_path), ClientStates(tmp_path)
    mine = [group_of(files.read(client.id, spec.rounds), "algorithm") for client in clients]
    for name in last.parameters:
        mean = sum(each[name] for each in mine) / len(mine)
        assert mean.abs().max() > 1e-5, "else zero equals zero"
        torch.testing.assert_close(last.server[name], mean, rtol=0, atol=1e-12)


def test_control_variates_are_means_of_gradients(clients, tmp_path):
    """One client, small steps: c_k is nearly the gradient at the received model, whatever the momentum."""
    found = {}
    for momentum in (0.0, 0.9):
        spec = replace(BASE, algorithm="scaffold", rounds=1, lr=1e-6, momentum=momentum, local_epochs=4)
        found[momentum] = last_of(spec, [replace(clients[2], id=0)], tmp_path / str(momentum)).server["head.weight"]
    assert (found[0.0] - found[0.9]).norm() < 0.1 * found[0.0].norm()


def test_fednova_is_fedavg_where_all_take_as_many_steps(clients, tmp_path):
    alike = [replace(client, indices=client.indices[:7]) for client in clients]
    ours, theirs = (
        last_of(replace(SPEC, algorithm=name), alike, tmp_path / name).parameters for name in ("fednova", "fedavg")
    )
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=0, atol=1e-12)


def test_scaffold_sends_its_controls_both_ways_fednova_two_numbers_feddyn_nothing(clients, tmp_path):
    size, normalisation = 8 * (6 * 5 + 5 + 5 * 3 + 3), 8 * 2
    extra = {"fedavg": (0, 0), "scaffold": (size, size), "fednova": (0, 16), "feddyn": (0, 0), "fedsam": (0, 0)}
    for name, (down, up) in extra.items():
        for report in last_of(replace(SPEC, algorithm=name), clients, tmp_path / name).clients:
            assert report.metrics.bytes_down == size + normalisation + down, name
            assert report.metrics.bytes_up == size + normalisation + up, name


def normalised():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, NUM_CLASSES))
    return split_model(layers, Normalize([0.4], [0.3]), torch.zeros(2, 1, 2, 3, dtype=torch.uint8)).double()


def test_sam_without_a_radius_is_fedavg_also_in_its_moments(clients, tmp_path):
    """The second pass leaves no trace in batch normalisation."""
    spec = replace(SPEC, batch_size=7)
    theirs = last_of(spec, clients, tmp_path / "fedavg", normalised())
    ours = last_of(replace(spec, algorithm="fedsam,rho=0"), clients, tmp_path / "fedsam", normalised())
    assert any(name.endswith("num_batches_tracked") for name in ours.buffers)
    for name, tensor in (theirs.parameters | theirs.buffers).items():
        assert torch.equal((ours.parameters | ours.buffers)[name], tensor), name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("scaffold,lr=0", "scaffold: lr is 0.0; give a number above 0."),
        ("fednova,mu=-1", "fednova: mu is -1.0; give at least 0."),
        ("feddyn,alpha=0", "feddyn: alpha is 0.0; give a number above 0."),
        ("feddyn,clip=-1", "feddyn: clip is -1.0; give at least 0."),
        ("fedsam,rho=-1", "fedsam: rho is -1.0; give at least 0."),
    ],
)
def test_options_that_cannot_be(text, message):
    with pytest.raises(SpecError) as error:
        find_algorithm(text)
    assert str(error.value) == message
