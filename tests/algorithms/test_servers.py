"""Server optimisers: equal to plain implementations, alone and above what clients do."""

from dataclasses import replace

import pytest

from ccvr.algorithms.spec import TrainingSpec
from ccvr.algorithms.table import ALGORITHMS, algorithm_of, find_algorithm
from ccvr.core.errors import SpecError
from tests.algorithms.against_plain import BASE, require_equal
from tests.algorithms.plain import Rule
from tests.algorithms.plain_drift import FedNova, FedProx, Scaffold
from tests.algorithms.plain_servers import FedAdagrad, FedAdam, FedAvgM, FedExp, FedYogi

SERVERS = {
    "fedavgm,momentum=0.3": lambda: FedAvgM(0.3),
    "fedadagrad,lr=0.2,beta1=0.4,tau=0.01": lambda: FedAdagrad(0.2, 0.4, 0.01),
    "fedadam,lr=0.05,beta1=0.8,beta2=0.9,tau=0.01": lambda: FedAdam(0.05, 0.8, 0.01, 0.9),
    "fedyogi,lr=0.05,beta1=0.8,beta2=0.9,tau=0.01": lambda: FedYogi(0.05, 0.8, 0.01, 0.9),
    "fedexp,eps=0.0001": lambda: FedExp(0.0001),
}
LOCALS = {
    "fedprox,mu=0.7": lambda: FedProx(0.7),
    "scaffold": Scaffold,
    "scaffold,by_samples=true": lambda: Scaffold(by_samples=True),
    "fednova,mu=0.6": lambda: FedNova(0.6),
}
SPEC = replace(BASE, rounds=4)


@pytest.mark.parametrize("fraction", [1.0, 0.6])
@pytest.mark.parametrize("server", SERVERS)
def test_equals_the_plain_implementation(server, fraction, clients, tmp_path):
    spec = replace(SPEC, algorithm=server, client_fraction=fraction)
    require_equal(spec, clients, tmp_path, Rule(), SERVERS[server]())


OTHER_MEANS = {"scaffold", "fednova,mu=0.6"}
"""Clients' algorithms whose average is not that of the models by samples; fedexp refuses them."""
PAIRS = [(s, a) for s in SERVERS for a in LOCALS if not (s.startswith("fedexp") and a in OTHER_MEANS)]


@pytest.mark.parametrize(("server", "algorithm"), PAIRS)
def test_above_what_clients_do(server, algorithm, clients, tmp_path):
    spec = replace(SPEC, algorithm=algorithm, server=server, client_fraction=0.6)
    require_equal(spec, clients, tmp_path, LOCALS[algorithm](), SERVERS[server]())


@pytest.mark.parametrize("algorithm", ["scaffold", "scaffold,by_samples=true,lr=0.5", "fednova"])
def test_fedexp_refuses_clients_that_are_averaged_otherwise(algorithm):
    with pytest.raises(SpecError) as error:
        algorithm_of(TrainingSpec(algorithm=algorithm, server="fedexp"))
    assert str(error.value) == (
        'training.server is "fedexp", which compares the clients\' changes with their mean by samples, and '
        f'"{algorithm}" takes another mean. Choose another server optimiser.'
    )


def test_fedexp_takes_longer_steps_than_fedavg(clients, tmp_path):
    server = FedExp(0.0001)
    require_equal(replace(SPEC, algorithm="fedexp,eps=0.0001"), clients, tmp_path, Rule(), server)
    assert max(server.rates) > 1, "else the test sees FedAvg alone"


def test_as_an_algorithm_and_above_fedavg_are_the_same(clients, tmp_path):
    alone = require_equal(
        replace(SPEC, algorithm="fedadam"), clients, tmp_path / "1", Rule(), FedAdam(0.01, 0.9, 0.001, 0.99)
    )
    above = require_equal(
        replace(SPEC, server="fedadam"), clients, tmp_path / "2", Rule(), FedAdam(0.01, 0.9, 0.001, 0.99)
    )
    assert all(alone[-1].parameters[name].equal(tensor) for name, tensor in above[-1].parameters.items())


@pytest.mark.parametrize("server", [name for name, row in ALGORITHMS.items() if row.is_server])
@pytest.mark.parametrize("algorithm", [name for name, row in ALGORITHMS.items() if row.is_server or not row.averages])
def test_an_algorithm_with_a_rule_of_its_own_refuses_a_server_optimiser(algorithm, server):
    with pytest.raises(SpecError) as error:
        algorithm_of(TrainingSpec(algorithm=algorithm, server=server))
    assert str(error.value) == (
        f'training.server is "{server}", and "{algorithm}" has a rule of its own for the server. '
        "Leave training.server out, or choose another algorithm."
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fedadam,lr=0", "lr is 0.0; give a number above 0."),
        ("fedyogi,tau=0", "tau is 0.0; give a number above 0."),
        ("fedadagrad,beta1=1", "beta1 is 1.0; give a number from 0 to below 1."),
        ("fedadam,beta2=-0.1", "beta2 is -0.1; give a number from 0 to below 1."),
        ("fedadagrad,beta2=0.9", 'fedadagrad has no option "beta2". Did you mean "beta1"? Known: beta1, lr, tau.'),
        ("fedexp,eps=0", "fedexp: eps is 0.0; give a number above 0."),
    ],
)
def test_options_that_cannot_be(text, message):
    with pytest.raises(SpecError) as error:
        find_algorithm(text)
    assert str(error.value) == message
