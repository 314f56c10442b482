"""fedma and pfnm: equal to plain implementations that try every order, and the laws behind them."""

from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from ccvr.algorithms.algorithm import ServerContext
from ccvr.algorithms.matching import class_shares
from ccvr.algorithms.messages import LocalMetrics, LocalResult, ModelState
from ccvr.algorithms.table import find_algorithm
from ccvr.core.errors import SpecError, TrainingError
from ccvr.experiment.pipeline import start
from ccvr.experiment.spec import Spec
from ccvr.models.build import ModelSpec, build_model
from ccvr.models.chain import chain_of, reordered
from ccvr.models.preprocess import Normalize
from ccvr.models.split import split_model
from ccvr.models.state import buffers_of, parameters_of
from ccvr.training.client_state import ClientStates
from ccvr.training.rounds import federate
from tests.algorithms.against_plain import BASE, SEED, require_equal
from tests.algorithms.plain_matching import FedMA, Pfnm
from tests.algorithms.small import NUM_CLASSES, small_model

RULES = {"fedma": FedMA, "pfnm": Pfnm}
SPEC = replace(BASE, lr=0.6, rounds=4)
"""Steps so large that neurons leave their places."""
NAMES = {
    **{"backbone.model.1.weight": "V1", "backbone.model.1.bias": "a1"},
    **{"backbone.model.3.weight": "W1", "backbone.model.3.bias": "b1"},
    **{"head.weight": "W2", "head.bias": "b2"},
}


def deep_model(*, clsnorm=False):
    """Two hidden layers."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        hidden = [nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 5), nn.Tanh()]
        layers = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(5, NUM_CLASSES))
    example, kind = torch.zeros(2, 1, 2, 3, dtype=torch.uint8), "normed" if clsnorm else "linear"
    return split_model(layers, Normalize([0.4], [0.3]), example, head_kind=kind).double()


def labels_of(clients):
    return [client.data.samples.labels[torch.from_numpy(client.indices)] for client in clients]


def equal_to_plain(name, clients, folder, spec=SPEC, **options):
    rule = RULES[name](labels_of(clients), NUM_CLASSES, **options)
    text = ",".join([name, *(f"{key}={str(value).lower()}" for key, value in options.items())])
    states = require_equal(replace(spec, algorithm=text), clients, folder, rule, build=deep_model, names=NAMES)
    assert any(rule.moved), "else matching is not seen"
    return states


@pytest.mark.parametrize("options", [{}, {"by_samples": True}, {"iterations": 1}], ids=str)
@pytest.mark.parametrize("fraction", [1.0, 0.6])
@pytest.mark.parametrize("name", RULES)
def test_equals_the_plain_implementation(name, fraction, options, clients, tmp_path):
    equal_to_plain(name, clients, tmp_path, replace(SPEC, client_fraction=fraction), **options)


@pytest.mark.parametrize("name", RULES)
def test_with_both_regularisers_of_the_head(name, clients, tmp_path):
    equal_to_plain(name, clients, tmp_path, replace(SPEC, clsnorm=True, clsprox=0.5))


# --- copies of one network --------------------------------------------------------------------------------------------


def convolutions(shape, num_classes):
    """Batch normalisation behind convolutions, one without a bias, and behind a flatten."""
    body = [nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6)]
    return nn.Sequential(
        *body, nn.ReLU(), nn.Flatten(), nn.BatchNorm1d(96), nn.Linear(96, 7), nn.Linear(7, num_classes)
    )


def perceptron(shape, num_classes):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, num_classes)
    )


BUILD = partial(build_model, inputs=torch.zeros(1, 1, 8, 8, dtype=torch.uint8), num_classes=4, seed=0)
COPIED = [("fedma", "digits-cnn"), ("fedma", f"{__name__}:convolutions"), ("pfnm", f"{__name__}:perceptron")]


def shuffled(model, seed):
    """The tensors of the same function, with the neurons of every layer in random order."""
    tensors, rng = {name: tensor.clone() for name, tensor in model.state_dict().items()}, np.random.default_rng(seed)
    for layer in chain_of(model)[:-1]:
        tensors = reordered(tensors, layer, torch.from_numpy(rng.permutation(layer.width)))
    return tensors


def result_of(client, tensors, model, counts):
    parameters, buffers = ({name: tensors[name] for name in of(model)} for of in (parameters_of, buffers_of))
    metrics = LocalMetrics(0.0, (), 0, 0, 0.0)
    return LocalResult(client, parameters, buffers, sum(counts), 1, {"counts": torch.tensor(counts)}, {}, metrics)


def aggregated(algorithm, model, results, round=1):
    server = ServerContext(round, np.random.default_rng(0), lambda: model)
    before = ModelState(parameters_of(model), buffers_of(model))
    return find_algorithm(algorithm).aggregate(before, results, {}, server)


@pytest.mark.parametrize("by_samples", ["true", "false"])
@pytest.mark.parametrize(("algorithm", "name"), COPIED)
def test_copies_in_other_orders_average_to_the_same_function(algorithm, name, by_samples):
    model = BUILD(ModelSpec(name))
    pixels = torch.randint(256, (40, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    model.train()(pixels)  # moments that differ between channels
    expected, counts = model.eval()(pixels), [(9, 0, 3, 0), (2, 4, 1, 0), (1, 1, 1, 1)]
    copies = [shuffled(model, seed) for seed in range(3)]
    results = [result_of(k, *each) for k, each in enumerate(zip(copies, [model] * 3, counts, strict=True))]
    made, state = aggregated(f"{algorithm},by_samples={by_samples}", model, results)
    assert state["moved"] > 0.5
    assert all(torch.equal(tensor, copies[0][key]) for key, tensor in made.tensors.items()), "the largest client's"
    other = BUILD(ModelSpec(name)).eval()
    other.load_state_dict(made.tensors)
    torch.testing.assert_close(other(pixels), expected)
    other.load_state_dict(aggregated("fedavg", model, results)[0].tensors)
    assert (other(pixels) - expected).abs().max() > 0.1, "the plain average is another function"


def test_the_order_in_which_results_come_changes_nothing():
    model = BUILD(ModelSpec("digits-cnn"))
    results = [result_of(k, shuffled(model, k), model, (k, 1, 2, 3)) for k in range(3)]
    found = [aggregated("fedma", model, given)[0].tensors for given in (results, results[::-1])]
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


# --- weights ----------------------------------------------------------------------------------------------------------


def test_rows_of_the_head_are_averaged_by_the_samples_of_their_class():
    model, counts = BUILD(ModelSpec("digits-cnn")), [(6, 1, 0, 0), (2, 0, 0, 4)]
    results = [result_of(k, {**model.state_dict()}, model, each) for k, each in enumerate(counts)]
    for k, result in enumerate(results):
        result.parameters["head.bias"] = torch.full((4,), float(k))
    made, _ = aggregated("fedma", model, results)
    assert made.parameters["head.bias"].tolist() == [0.25, 0.0, 0.5, 1.0], "nobody has the third: all count alike"
    made, _ = aggregated("fedma,by_samples=true", model, results)
    torch.testing.assert_close(made.parameters["head.bias"], torch.full((4,), 6 / 13))


@pytest.mark.parametrize("payload", [{}, {"counts": torch.tensor([1, 2, 3])}, {"counts": torch.tensor([5, 0, 0, 0])}])
def test_counts_that_are_not_the_client_s(payload):
    model = BUILD(ModelSpec("digits-cnn"))
    result = replace(result_of(3, {**model.state_dict()}, model, (1, 1, 1, 1)), payload=payload)
    with pytest.raises(TrainingError, match="client 3 sent label counts that are not those of its 4 samples"):
        class_shares([result], 4)


def test_without_counts_none_are_sent(clients, tmp_path):
    for index, (options, extra) in enumerate([("", 8 * NUM_CLASSES), (",by_samples=true", 0)]):
        spec = replace(SPEC, algorithm=f"fedma{options}", rounds=1)
        (state,) = federate(small_model(), clients, spec, seed=0, states=ClientStates(tmp_path / str(index)))
        assert {r.metrics.bytes_up - r.metrics.bytes_down for r in state.clients} == {extra}


def test_neurons_in_their_places_are_averaged_as_fedavg_does(clients, tmp_path):
    found = {}
    for name in ("fedavg", "pfnm,by_samples=true"):
        spec = replace(BASE, algorithm=name, lr=0.01)
        found[name] = list(federate(small_model(), clients, spec, seed=SEED, states=ClientStates(tmp_path / name)))
    for theirs, ours in zip(*found.values(), strict=True):
        assert ours.server["moved"] == 0
        assert all(torch.equal(ours.parameters[name], tensor) for name, tensor in theirs.parameters.items())


# --- rounds -----------------------------------------------------------------------------------------------------------


def test_a_layer_rests_from_the_round_after_its_own_to_the_end_of_the_cycle(clients, tmp_path):
    spec = replace(SPEC, algorithm="fedma", rounds=7)
    states = list(federate(deep_model(), clients, spec, seed=SEED, states=ClientStates(tmp_path)))
    layers = [layer.weight for layer in chain_of(deep_model())]
    for before, after in pairwise(states):
        changed = [not torch.allclose(before.parameters[n], after.parameters[n], rtol=0, atol=1e-14) for n in layers]
        first = (after.round - 1) % 3
        assert changed == [number >= first for number in range(3)], after.round
    assert ["moved" in state.server for state in states] == [True, True, False] * 2 + [True]


# --- what cannot be ---------------------------------------------------------------------------------------------------


class Residual(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(64, 8), nn.Linear(8, 8), nn.Linear(8, num_classes)

    def forward(self, x):
        z = torch.relu(self.first(x.flatten(1)))
        return self.head(z + torch.relu(self.second(z)))


def residual(shape, num_classes):
    return Residual(num_classes)


@pytest.mark.parametrize(
    ("algorithm", "model", "message"),
    [
        (
            "fedma",
            f"{__name__}:residual",
            'the neurons of "backbone.model.first" cannot be matched: where they change their order, and '
            '"backbone.model.second.weight" reads them in that order, the model gives other scores. '
            "Choose a model whose layers follow each other, such as simple-cnn, or another algorithm.",
        ),
        (
            "pfnm",
            "digits-cnn",
            'pfnm matches linear layers, and "backbone.model.layer1.0" is a convolution. '
            "Use fedma, which matches both, or choose a model of linear layers.",
        ),
    ],
)
def test_models_are_refused_before_the_run_is_made(algorithm, model, message, tmp_path):
    spec = Spec(model=ModelSpec(model), training=replace(SPEC, algorithm=algorithm))
    with pytest.raises(SpecError) as error:
        list(start(spec, tmp_path / "run"))
    assert str(error.value) == message
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", RULES)
def test_options_that_cannot_be(name):
    with pytest.raises(SpecError, match=r"^iterations is 0; give at least 1\.$"):
        find_algorithm(f"{name},iterations=0")
