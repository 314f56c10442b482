"""Algorithms with models of one's own against plain implementations: float64, three clients, some a round, 1e-9."""

from dataclasses import replace

import pytest
import torch

from ccvr.algorithms.clusters import Ifca
from ccvr.algorithms.messages import LocalMetrics, LocalResult
from ccvr.algorithms.spec import TrainingSpec
from ccvr.algorithms.table import find_algorithm
from ccvr.core.errors import SpecError, TrainingError
from ccvr.training.client_state import ClientStates
from ccvr.training.rounds import draw_cohorts, federate, first_state, sent_state
from ccvr.training.trainer import OneByOne, scratch_of
from tests.algorithms import plain
from tests.algorithms.against_plain import NAMES, SEED, epochs_of, named
from tests.algorithms.small import norm_model, small_model

BASE = TrainingSpec(
    rounds=4, local_epochs=3, batch_size=4, lr=0.05, momentum=0.9, weight_decay=1e-3, client_fraction=0.6
)
HEAD, BODY = ("W2", "b2"), ("W1", "b1")


def batches_of(clients, spec):
    """All batches of a client's round in one list."""
    epochs = epochs_of(clients, spec)
    return lambda client, number: [batch for each in epochs(client, number) for batch in each]


def loss_of(w, x, y):
    return plain.cross_entropy(plain.logits(w, plain.features(w, x), clsnorm=False), y)


def gradient(w, x, y):
    w = {name: value.detach().clone().requires_grad_() for name, value in w.items()}
    return dict(zip(w, torch.autograd.grad(loss_of(w, x, y), list(w.values())), strict=True))


def moved(w, direction, step):
    return {name: w[name] + step * direction[name] for name in w}


def descend(w, batches, spec, gradient=gradient, trained=lambda step: HEAD + BODY):
    """SGD with momentum and weight decay; only the tensors that ``trained`` names change."""
    w = {name: value.clone() for name, value in w.items()}
    velocity = {name: torch.zeros_like(value) for name, value in w.items()}
    for step, (x, y) in enumerate(batches):
        found = gradient(w, x, y)
        for name in trained(step):
            velocity[name] = spec.momentum * velocity[name] + found[name] + spec.weight_decay * w[name]
            w[name] = w[name] - spec.lr * velocity[name]
    return w


def mean_of(models, sizes, names):
    total = sum(sizes[k] for k in models)
    return {name: sum(sizes[k] / total * models[k][name] for k in models) for name in names}


def with_private(start, clients, spec, private, train):
    """Yield the shared weights after each round, and all clients' private ones."""
    sizes, batches = [len(client.indices) for client in clients], batches_of(clients, spec)
    weights, own = dict(start), {k: {name: start[name] for name in private} for k in range(len(clients))}
    for number, cohort in enumerate(draw_cohorts(len(clients), spec, seed=SEED), 1):
        models = {k: train({**weights, **own[k]}, batches(k, number), k) for k in cohort}
        own |= {k: {name: model[name] for name in private} for k, model in models.items()}
        weights |= mean_of(models, sizes, [name for name in weights if name not in private])
        yield weights.copy(), {k: dict(each) for k, each in own.items()}


def started():
    return named({name: value.detach().clone() for name, value in small_model().named_parameters()})


def assert_equal(found, expected, tolerance=1e-9):
    assert found.keys() == expected.keys()
    for name in found:
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("text", "private", "head_epochs"),
    [("fedper", HEAD, None), ("lg-fedavg", BODY, None), ("fedrep", HEAD, 2), ("fedrep,head_epochs=1", HEAD, 1)],
)
def test_private_parts(text, private, head_epochs, clients, tmp_path):
    spec, files = replace(BASE, algorithm=text), ClientStates(tmp_path)

    def train(w, batches, client):
        in_head = 0 if head_epochs is None else head_epochs * len(batches) // spec.local_epochs
        both = HEAD + BODY
        parts = (lambda step: both) if head_epochs is None else (lambda step: HEAD if step < in_head else BODY)
        return descend(w, batches, spec, trained=parts)

    expected = list(with_private(started(), clients, spec, private, train))
    found = list(federate(small_model(), clients, spec, seed=SEED, states=files))
    assert len(found) == len(expected) == 4
    for state, (weights, _) in zip(found, expected, strict=True):
        assert_equal(named(state.parameters), weights)
    last, own = found[-1], expected[-1][1]
    for client, number in last.client_rounds.items():
        kept = {name.removeprefix("private/"): tensor for name, tensor in files.read(client, number).items()}
        assert_equal(named(kept), own[client])
        assert_equal(own_model(last, clients[client], spec, files), {**expected[-1][0], **own[client]})


def own_model(state, client, spec, files):
    """The weights of a client's own model after a state."""
    model = small_model()
    sent = sent_state(state, spec, model)
    trainer = OneByOne(scratch_of(model, spec), spec, SEED, files)
    found = trainer.own_model(client, sent, state.client_rounds.get(client.id), round=state.round + 1)
    tensors = {name: tensor.clone() for name, tensor in found.state_dict().items() if name in NAMES}
    return named(tensors)


def halves(x, y):
    half = len(y) // 2
    return ((x[:half], y[:half]), (x[half:], y[half:])) if half > 1 else ((x, y), (x, y))


def meta_gradient(alpha, delta):
    def found(w, x, y):
        first, second = halves(x, y)
        v = gradient(moved(w, gradient(w, *first), -alpha), *second)
        if not delta:
            return v
        h = delta / sum(each.pow(2).sum() for each in v.values()).sqrt()
        up, down = gradient(moved(w, v, h), *first), gradient(moved(w, v, -h), *first)
        return {name: v[name] - alpha * (up[name] - down[name]) / (2 * h) for name in w}

    return found


@pytest.mark.parametrize(
    ("text", "delta"), [("per-fedavg,alpha=0.1", 0), ("per-fedavg,alpha=0.1,hessian=true,delta=0.02", 0.02)]
)
def test_per_fedavg(text, delta, clients, tmp_path):
    spec, files = replace(BASE, algorithm=text), ClientStates(tmp_path)
    expected = with_private(
        started(), clients, spec, (), lambda w, batches, k: descend(w, batches, spec, meta_gradient(0.1, delta))
    )
    states = list(federate(small_model(), clients, spec, seed=SEED, states=files))
    weights = {}
    for state, (weights, _) in zip(states, expected, strict=True):
        assert_equal(named(state.parameters), weights)
    for client in clients:  # the client's own model is one step on all its samples
        x, y = everything(client)
        own = own_model(states[-1], client, spec, files)
        assert_equal(own, moved(weights, gradient(weights, x, y), -0.1))


def everything(client):
    samples, model = client.data.samples, small_model()
    return model.normalize(samples.inputs[client.indices]).flatten(1), samples.labels[client.indices]


def test_the_difference_is_the_hessian_term(clients):
    """Against the gradient of f(w − alpha ∇f(w; D1); D2) itself, by automatic differentiation."""
    x, y = everything(clients[2])
    w = {name: value.requires_grad_() for name, value in started().items()}
    first, second = halves(x, y)
    inner = torch.autograd.grad(loss_of(w, *first), list(w.values()), create_graph=True)
    ahead = {name: value - 0.1 * each for (name, value), each in zip(w.items(), inner, strict=True)}
    exact = dict(zip(w, torch.autograd.grad(loss_of(ahead, *second), list(w.values())), strict=True))
    first_order, found = meta_gradient(0.1, 0)(w, x, y), meta_gradient(0.1, 1e-4)(w, x, y)
    assert max((first_order[name] - exact[name]).abs().max() for name in w) > 1e-3
    assert_equal(found, exact, 1e-8)


def test_ifca(clients, tmp_path):
    spec, files = replace(BASE, algorithm="ifca,clusters=3", client_fraction=1.0), ClientStates(tmp_path)
    model = small_model()
    begin = first_state(model, len(clients), spec)
    assert_differ(begin)
    models = [started(), *(named_of(begin.server, k) for k in (1, 2))]
    sizes, batches = [len(client.indices) for client in clients], batches_of(clients, spec)
    seen = set()
    for number, state in enumerate(federate(model, clients, spec, seed=SEED, states=files), 1):
        chosen = {k: min(range(3), key=lambda m: float(loss_of(models[m], *everything(clients[k])))) for k in range(3)}
        trained = {k: descend(models[m], batches(k, number), spec) for k, m in chosen.items()}
        groups = [{k: trained[k] for k in trained if chosen[k] == m} for m in range(3)]
        new = [mean_of(group, sizes, NAMES.values()) if group else models[m] for m, group in enumerate(groups)]
        order = sorted(range(3), key=lambda m: -len(groups[m]))
        models = [new[m] for m in order]
        assert_equal(named(state.parameters), models[0])
        for k in (1, 2):
            assert_equal(named_of(state.server, k), models[k])
        counted = [len(groups[m]) for m in order]
        assert Ifca(clusters=3).report(state.server) == {"cluster_sizes": counted}
        seen.add(tuple(counted))
        for client in clients:
            best = min(models, key=lambda m: float(loss_of(m, *everything(client))))
            assert_equal(own_model(state, client, spec, files), best)
    assert seen != {(3, 0, 0)}, "clients choose different models"


def named_of(server, number):
    return {NAMES[name]: server[f"{number}/{name}"] for name in NAMES}


def assert_differ(state):
    """The models at the start are different orders of the same numbers."""
    first, second = state.parameters["head.weight"], state.server["1/head.weight"]
    assert not torch.equal(first, second)
    assert torch.equal(first.flatten().sort().values, second.flatten().sort().values)


def test_fedbn_keeps_normalisation_and_averages_the_rest(clients, tmp_path):
    spec, files = replace(BASE, algorithm="fedbn", client_fraction=1.0, rounds=3), ClientStates(tmp_path)
    start = {name: tensor.clone() for name, tensor in norm_model().double().state_dict().items()}
    layer = [name for name in start if name.startswith("backbone.model.2.")]
    assert len(layer) == 5, "weight, bias, mean, variance, number of batches"
    *_, last = federate(norm_model().double(), clients, spec, seed=SEED, states=files)
    owned = [{n.removeprefix("private/"): t for n, t in files.read(k, 3).items()} for k in range(3)]
    assert all(set(each) == set(layer) for each in owned)
    for name in layer:
        assert torch.equal({**last.parameters, **last.buffers}[name], start[name]), "the global model's are the first"
        assert not torch.equal(owned[0][name], owned[1][name])
    assert not torch.equal(last.parameters["head.weight"], start["head.weight"])


BN = {"weight": "g", "bias": "o", "running_mean": "mean", "running_var": "var"}
"""Tensors of batch normalisation, and their names in the plain implementation."""


def plain_norm(w, batches, spec):
    """SGD with momentum and weight decay on softmax(W2 (g (z − m) / √(v + 1e-5) + o) + b2), z = W1 x + b1; m and v are
    a batch's mean and variance, and a tenth of them, v without its bias, enters the kept ones after each step.
    """
    w, trained = dict(w), ("W1", "b1", "g", "o", "W2", "b2")
    velocity = {name: torch.zeros_like(w[name]) for name in trained}
    for x, y in batches:
        leaves = {name: w[name].detach().requires_grad_() for name in trained}
        z = x @ leaves["W1"].T + leaves["b1"]
        m, v = z.mean(0), ((z - z.mean(0)) ** 2).mean(0)
        scores = (leaves["g"] * (z - m) / (v + 1e-5).sqrt() + leaves["o"]) @ leaves["W2"].T + leaves["b2"]
        found = torch.autograd.grad(plain.cross_entropy(scores, y), list(leaves.values()))
        for name, gradient in zip(trained, found, strict=True):
            velocity[name] = spec.momentum * velocity[name] + gradient + spec.weight_decay * w[name]
            w[name] = w[name] - spec.lr * velocity[name]
        unbiased = v.detach() * len(y) / (len(y) - 1)
        w |= {"mean": 0.9 * w["mean"] + 0.1 * m.detach(), "var": 0.9 * w["var"] + 0.1 * unbiased}
    return w


def test_fedbn(clients, tmp_path):
    spec, files, model = replace(BASE, algorithm="fedbn"), ClientStates(tmp_path), norm_model().double()
    names = NAMES | {f"backbone.model.2.{name}": short for name, short in BN.items()}
    start = {names[name]: tensor.clone() for name, tensor in model.state_dict().items() if name in names}
    sizes, batches, private = [len(client.indices) for client in clients], batches_of(clients, spec), tuple(BN.values())
    weights, own = start, {k: {name: start[name] for name in private} for k in range(len(clients))}
    found = list(federate(model, clients, spec, seed=SEED, states=files))
    for number, (cohort, state) in enumerate(zip(draw_cohorts(3, spec, seed=SEED), found, strict=True), 1):
        models = {k: plain_norm({**weights, **own[k]}, batches(k, number), spec) for k in cohort}
        own |= {k: {name: each[name] for name in private} for k, each in models.items()}
        weights = {**weights, **mean_of(models, sizes, NAMES.values())}
        ours = {names[name]: tensor for name, tensor in {**state.parameters, **state.buffers}.items() if name in names}
        assert_equal(ours, weights)
    for client, number in found[-1].client_rounds.items():
        kept = {name.removeprefix("private/"): tensor for name, tensor in files.read(client, number).items()}
        assert_equal({names[name]: tensor for name, tensor in kept.items() if name in names}, own[client])


def test_fedbn_of_one_client_is_fedavg(clients, tmp_path):
    spec, alone = replace(BASE, rounds=3, client_fraction=1.0), [replace(clients[2], id=0)]
    *_, whole = federate(norm_model().double(), alone, spec, seed=SEED, states=ClientStates(tmp_path / "a"))
    files = ClientStates(tmp_path / "b")
    *_, own = federate(norm_model().double(), alone, replace(spec, algorithm="fedbn"), seed=SEED, states=files)
    kept = {name.removeprefix("private/"): tensor for name, tensor in files.read(0, 3).items()}
    assert_equal({**own.parameters, **own.buffers, **kept}, {**whole.parameters, **whole.buffers}, 1e-12)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ifca,clusters=1", "ifca: clusters is 1; give at least 2."),
        ("per-fedavg,alpha=0", "per-fedavg: alpha is 0.0; give a number above 0."),
    ],
)
def test_options_that_cannot_be(text, message):
    with pytest.raises(SpecError) as error:
        find_algorithm(text)
    assert str(error.value) == message


def test_fedrep_needs_epochs_for_both_parts():
    with pytest.raises(SpecError, match="trains the head for 0 of 1 local epochs; head and body need at least one"):
        find_algorithm("fedrep").require(replace(BASE, local_epochs=1))


def test_fedbn_needs_normalisation():
    with pytest.raises(SpecError, match="the model has none"):
        first_state(small_model(), 3, replace(BASE, algorithm="fedbn"))


def test_a_cluster_that_is_not_there():
    result = LocalResult(1, {}, {}, 3, 1, {"cluster": torch.tensor(7)}, {}, LocalMetrics(0, 0, 0, 0, 0))
    with pytest.raises(TrainingError, match="client 1 says that its cluster is 7; there are 2"):
        Ifca()._cluster_of(result)
