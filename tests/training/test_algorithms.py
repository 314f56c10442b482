"""Each algorithm against the plain implementation of ``plain.py``: float64, two rounds, three clients, 1e-9."""

from dataclasses import replace

import pytest
import torch

from ccvr.core.errors import UnknownName
from ccvr.core.seeds import stream
from ccvr.data.batches import epoch
from ccvr.training.algorithms import ALGORITHMS, local_objectives
from ccvr.training.client_state import ClientStates
from ccvr.training.rounds import draw_cohorts, federate
from ccvr.training.spec import TrainingSpec
from tests.training import plain
from tests.training.small import small_model

BASE = TrainingSpec(
    rounds=2, local_epochs=2, batch_size=4, lr=0.05, momentum=0.9, weight_decay=1e-3, server_momentum=0.3, mu=0.7
)
SPECS = {
    "fedavg": BASE,
    "fedprox": replace(BASE, algorithm="fedprox"),
    "fedavgm": replace(BASE, algorithm="fedavgm"),
    "moon": replace(BASE, algorithm="moon", temperature=0.4),
    "clsnorm": replace(BASE, clsnorm=True),
    "clsprox": replace(BASE, clsprox=0.5),
    "moon with both": replace(BASE, algorithm="moon", clsnorm=True, clsprox=0.5),
    "fedavgm with both": replace(BASE, algorithm="fedavgm", clsnorm=True, clsprox=0.5),
    "fedprox of some": replace(BASE, algorithm="fedprox", client_fraction=0.6, rounds=3),
    "moon of some": replace(BASE, algorithm="moon", client_fraction=0.6, rounds=4),
}
SEED = 5


def named(state):
    names = {"backbone.model.1.weight": "W1", "backbone.model.1.bias": "b1", "head.weight": "W2", "head.bias": "b2"}
    return {names[name]: value for name, value in state.items()}


def batches_of(clients, model, spec):
    def all_epochs(client, number):
        rng = stream(SEED, "batches", client=client, round=number)
        for _ in range(spec.local_epochs):
            for crops, labels in epoch(clients[client].images, clients[client].indices, spec.batch_size, rng=rng):
                yield model.normalize(crops.images).flatten(1), labels

    return all_epochs


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_equals_the_plain_implementation(spec, clients, tmp_path):
    model = small_model(clsnorm=spec.clsnorm)
    start = named({name: value.detach().clone() for name, value in model.named_parameters()})
    sizes = [len(client.indices) for client in clients]
    cohorts = draw_cohorts(len(clients), spec, seed=SEED)
    expected = list(plain.federate(start, sizes, batches_of(clients, small_model(), spec), cohorts, spec))
    found = [
        named(state.parameters) for state in federate(model, clients, spec, seed=SEED, memories=ClientStates(tmp_path))
    ]
    assert len(found) == len(expected) == spec.rounds
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.keys() == theirs.keys()
        for name in ours:
            torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=1e-9)


def test_the_algorithms_differ(clients, tmp_path):
    finals = {}
    for name, spec in SPECS.items():
        if not spec.clsnorm and spec.client_fraction == 1:
            states = list(federate(small_model(), clients, spec, seed=SEED, memories=ClientStates(tmp_path / name)))
            finals[name] = states[-1].parameters["head.weight"]
    weights = list(finals.values())
    for index, first in enumerate(weights):
        assert all((first - second).abs().max() > 1e-4 for second in weights[index + 1 :])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_trains(name, clients, tmp_path):
    spec = TrainingSpec(algorithm=name, rounds=2, local_epochs=3, batch_size=8, lr=0.1)
    first, last = federate(small_model(), clients, spec, seed=1, memories=ClientStates(tmp_path))
    losses = [sum(report.metrics.loss for report in state.clients) for state in (first, last)]
    assert losses[1] < losses[0]


def test_an_algorithm_of_the_users_own(clients, tmp_path, monkeypatch):
    (tmp_path / "my_algorithms.py").write_text(
        "import torch\n"
        "from ccvr.training.algorithms import Algorithm\n"
        "from ccvr.training.server import ServerUpdate\n"
        "class Still(ServerUpdate):\n"
        "    def apply(self, parameters, results, state):\n"
        "        return parameters, {'clients': torch.tensor([r.client for r in results])}\n"
        "still = Algorithm(server=lambda spec: Still())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    spec = TrainingSpec(algorithm="my_algorithms:still", rounds=1, local_epochs=1)
    model = small_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    (state,) = federate(model, clients, spec, seed=0, memories=ClientStates(tmp_path))
    assert all(torch.equal(before[name], value) for name, value in state.parameters.items())
    assert state.server["clients"].tolist() == [2, 1, 0]  # largest first


def test_an_unknown_algorithm():
    with pytest.raises(UnknownName, match=r'no algorithm "fedprix". Did you mean "fedprox"\? Known: fedavg, '):
        local_objectives(TrainingSpec(algorithm="fedprix"))
