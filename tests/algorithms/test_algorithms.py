"""The algorithms of the paper against plain implementations, and what holds for every algorithm of the table."""

from dataclasses import dataclass, replace

import pytest
import torch

from ccvr.algorithms.algorithm import Algorithm
from ccvr.algorithms.spec import TrainingSpec
from ccvr.algorithms.table import ALGORITHMS, algorithm_of, canonical, find_algorithm, upgraded
from ccvr.core.errors import SpecError, UnknownName
from ccvr.training.client_state import ClientStates
from ccvr.training.rounds import ServerPart, federate
from tests.algorithms import plain
from tests.algorithms.against_plain import BASE, SEED, require_equal
from tests.algorithms.plain_drift import FedProx
from tests.algorithms.plain_features import Moon
from tests.algorithms.plain_servers import FedAvgM
from tests.algorithms.small import model_for, small_model

MU, TEMPERATURE, MOMENTUM = 0.7, 0.4, 0.3
RULES = {"fedavg": plain.Rule, "fedprox": lambda: FedProx(MU), "moon": lambda: Moon(MU, TEMPERATURE)}
SERVERS = {"": plain.Server, "fedavgm": lambda: FedAvgM(MOMENTUM)}
FEDPROX, FEDAVGM, MOON = f"fedprox,mu={MU}", f"fedavgm,momentum={MOMENTUM}", f"moon,mu={MU},temperature={TEMPERATURE}"
SPECS = {
    "fedavg": BASE,
    "fedprox": replace(BASE, algorithm=FEDPROX),
    "fedavgm": replace(BASE, algorithm=FEDAVGM),
    "moon": replace(BASE, algorithm=MOON),
    "clsnorm": replace(BASE, clsnorm=True),
    "clsprox": replace(BASE, clsprox=0.5),
    "moon with both": replace(BASE, algorithm=MOON, clsnorm=True, clsprox=0.5),
    "fedavgm with both": replace(BASE, algorithm=FEDAVGM, clsnorm=True, clsprox=0.5),
    "fedprox under fedavgm": replace(BASE, algorithm=FEDPROX, server=FEDAVGM),
    "moon under fedavgm": replace(BASE, algorithm=MOON, server=FEDAVGM, client_fraction=0.6, rounds=4),
    "fedprox of some": replace(BASE, algorithm=FEDPROX, client_fraction=0.6),
    "moon of some": replace(BASE, algorithm=MOON, client_fraction=0.6, rounds=4),
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_equals_the_plain_implementation(spec, clients, tmp_path):
    rule = RULES.get(spec.algorithm_name, plain.Rule)()
    server = spec.server or (spec.algorithm if spec.algorithm == FEDAVGM else "")
    require_equal(spec, clients, tmp_path, rule, SERVERS[server.partition(",")[0]]())


def test_the_algorithms_differ(clients, tmp_path):
    finals = {}
    for name, spec in SPECS.items():
        if not spec.clsnorm and spec.client_fraction == 1:
            states = list(federate(small_model(), clients, spec, seed=SEED, states=ClientStates(tmp_path / name)))
            finals[name] = states[-1].parameters["head.weight"]
    weights = list(finals.values())
    for index, first in enumerate(weights):
        assert all((first - second).abs().max() > 1e-4 for second in weights[index + 1 :])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_trains(name, clients, tmp_path):
    # Four rounds: scaffold corrects no gradient in the first, so clients then end nearer to their own minima.
    spec = TrainingSpec(algorithm=name, rounds=4, local_epochs=3, batch_size=8, lr=0.1)
    files, pixels = ClientStates(tmp_path), clients[0].data.samples.first(30)
    first, *_, last = federate(model_for(name), clients, spec, seed=1, states=files, server=ServerPart(pixels))
    losses = [sum(report.metrics.loss for report in state.clients) for state in (first, last)]
    assert losses[1] < losses[0]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_says_what_it_sends_beside_the_model(name, clients, tmp_path, monkeypatch):
    row, sent = ALGORITHMS[name], []
    aggregate = row.aggregate

    def heard(self, before, results, state, server):
        def noted():
            for result in results:
                sent.append(result.payload)
                yield result

        sent.append(self.broadcast(state))
        return aggregate(self, before, noted(), state, server)

    monkeypatch.setattr(row, "aggregate", heard)
    spec = TrainingSpec(algorithm=name, rounds=2, local_epochs=1, batch_size=8)
    files, pixels = ClientStates(tmp_path), clients[0].data.samples.first(30)
    list(federate(model_for(name), clients, spec, seed=1, states=files, server=ServerPart(pixels)))
    assert len(sent) == 2 * (1 + len(clients))
    assert any(sent) is bool(row.sends), row.sends


def test_an_algorithm_of_the_users_own(clients, tmp_path, monkeypatch):
    (tmp_path / "my_algorithms.py").write_text(
        "from dataclasses import dataclass\n"
        "import torch\n"
        "from ccvr.algorithms.algorithm import Algorithm\n"
        "@dataclass(frozen=True)\n"
        "class Still(Algorithm):\n"
        "    add: int = 0\n"
        "    def aggregate(self, before, results, state, server):\n"
        "        return before, {'clients': torch.tensor([r.client + self.add for r in results])}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    spec = TrainingSpec(algorithm="my_algorithms:Still,add=10", rounds=1, local_epochs=1)
    model = small_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    (state,) = federate(model, clients, spec, seed=0, states=ClientStates(tmp_path))
    assert all(torch.equal(before[name], value) for name, value in state.parameters.items())
    assert state.server["clients"].tolist() == [12, 11, 10]  # largest first


@pytest.mark.parametrize(
    ("algorithm", "server", "message"),
    [
        ("fedavg", "fedprox", 'training.server is "fedprox", which is no server optimiser. Known: '),
        (
            "fedavgm",
            "fedavgm,momentum=0.5",
            '"fedavgm" has a rule of its own for the server. Leave training.server out',
        ),
        ("fedavg", "fedavgm,momentum=2", "fedavgm: momentum is 2.0; give a number from 0 to below 1."),
    ],
)
def test_servers_that_cannot_be(algorithm, server, message):
    with pytest.raises(SpecError) as error:
        algorithm_of(TrainingSpec(algorithm=algorithm, server=server))
    assert message in str(error.value)


def test_a_server_optimiser_in_toml():
    assert upgraded({"server": {"name": "fedavgm", "momentum": 0.5}}) == {"server": "fedavgm,momentum=0.5"}


def test_an_unknown_algorithm():
    with pytest.raises(UnknownName, match=r'no algorithm "fedprix". Did you mean "fedprox"\? Known: fed'):
        find_algorithm("fedprix")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fedprox,nu=1", 'fedprox has no option "nu". Known: mu.'),
        ("fedavg,mu=1", 'fedavg has no option "mu". It has none.'),
        ("fedprox,mu=1,mu=2", 'fedprox gives the option "mu" twice. Leave one out.'),
        ("fedprox,mu=much", 'fedprox: mu is "much"; give a number.'),
        ("fedprox,mu=nan", "mu is nan; give at least 0."),
        ("fedprox,mu=inf", "fedprox: mu is inf; give a finite number."),
        ("fedprox,mu=-1", "mu is -1.0; give at least 0."),
        ("moon,temperature=0", "moon: temperature is 0.0; give a number above 0."),
        ("fedavgm,momentum=1", "fedavgm: momentum is 1.0; give a number from 0 to below 1."),
        (
            "json:loads",
            'algorithm "json:loads" is not a dataclass derived from Algorithm. Write it so (docs/extending.md).',
        ),
    ],
)
def test_options_that_cannot_be(text, message):
    with pytest.raises(SpecError) as error:
        find_algorithm(text)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"algorithm": "fedavg", "mu": 0.3, "temperature": 0.5, "server_momentum": 0.1}, "fedavg"),
        ({"algorithm": "fedprox", "mu": 0.01, "temperature": 0.7, "server_momentum": 0.1}, "fedprox,mu=0.01"),
        ({"algorithm": "fedprox", "mu": 0.001}, "fedprox"),
        ({"algorithm": "fedprox", "temperature": 0.5}, "fedprox"),
        ({"algorithm": "moon", "mu": 5.0, "temperature": 0.25}, "moon,mu=5,temperature=0.25"),
        ({"algorithm": "fedavgm", "server_momentum": 0.3}, "fedavgm,momentum=0.3"),
        ({"algorithm": "mine:own", "mu": 2.0, "temperature": 0.5}, "mine:own,mu=2"),
        ({"algorithm": {"name": "fedprox", "mu": 0.01}}, "fedprox,mu=0.01"),
        ({"algorithm": "fedprox,mu=0.01"}, "fedprox,mu=0.01"),
    ],
)
def test_sections_of_before_and_tables_mean_the_same(old, new):
    assert upgraded({"rounds": 3, **old}) == {"rounds": 3, "algorithm": new}


def test_flat_options_belong_to_algorithms_of_their_time_or_are_an_error():
    assert upgraded({"algorithm": "fednova", "mu": 0.1}) == {"algorithm": "fednova,mu=0.1"}
    assert upgraded({"algorithm": "fedavg", "mu": 0.1}) == {"algorithm": "fedavg"}, "old specs always have it"
    with pytest.raises(SpecError, match='scaffold has no option "mu"'):
        upgraded({"algorithm": "scaffold", "mu": 0.1})


def test_an_algorithm_has_one_way_to_be_written():
    assert canonical("moon,temperature=0.5,mu=5.0") == canonical("moon,mu=5") == "moon,mu=5"


@dataclass(frozen=True)
class PrivateHead(Algorithm):
    """FedPer: the head stays with the client."""

    def is_private(self, name):
        return name.startswith("head.")


def test_private_tensors_stay_with_the_client(clients, tmp_path, monkeypatch):
    monkeypatch.setitem(ALGORITHMS._rows, "private", PrivateHead)
    find_algorithm.cache_clear()
    spec = TrainingSpec(algorithm="private", rounds=2, local_epochs=1, batch_size=4, lr=0.1)
    model, files = small_model(), ClientStates(tmp_path)
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    first, last = federate(model, clients, spec, seed=0, states=files)
    heads = [files.read(client.id, 2)["private/head.weight"] for client in clients]
    assert all(torch.equal(last.parameters[name], start[name]) for name in ("head.weight", "head.bias"))
    assert not torch.equal(last.parameters["backbone.model.1.weight"], start["backbone.model.1.weight"])
    assert len({tuple(head.flatten().tolist()) for head in heads}) == len(clients)
    sizes = {report.metrics.bytes_up for report in last.clients} | {
        report.metrics.bytes_down for report in last.clients
    }
    assert sizes == {8 * (6 * 5 + 5 + 2)}, "the head is not billed; normalisation is"
    assert {report.metrics.head_row_norms for report in last.clients} == {()}
    again = list(federate(small_model(), clients, spec, seed=0, states=files, resume=first))
    assert all(torch.equal(again[-1].parameters[name], tensor) for name, tensor in last.parameters.items())


def test_a_private_head_is_the_clients_own_training(clients, tmp_path, monkeypatch):
    """One client alone: what is private and what is shared together are what FedAvg makes of it."""
    monkeypatch.setitem(ALGORITHMS._rows, "private", PrivateHead)
    find_algorithm.cache_clear()
    spec = TrainingSpec(rounds=3, local_epochs=1, batch_size=4, lr=0.1)
    alone = [replace(clients[2], id=0)]
    *_, plain_state = federate(small_model(), alone, spec, seed=0, states=ClientStates(tmp_path / "plain"))
    files = ClientStates(tmp_path / "own")
    *_, own = federate(small_model(), alone, replace(spec, algorithm="private"), seed=0, states=files)
    whole = {**own.parameters, **{n.removeprefix("private/"): t for n, t in files.read(0, 3).items()}}
    for name, tensor in plain_state.parameters.items():
        torch.testing.assert_close(whole[name], tensor, rtol=0, atol=1e-12)
