"""feddf against a plain implementation of the paper's formula: float64, three clients of which two take part, 1e-9."""

import gc
import math
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from ccvr.algorithms.algorithm import ServerContext
from ccvr.algorithms.distillation import CHECK_EVERY, FedDF, ScoreSum
from ccvr.algorithms.messages import GlobalState
from ccvr.algorithms.spec import TrainingSpec
from ccvr.algorithms.table import algorithm_of, find_algorithm
from ccvr.core.errors import SpecError
from ccvr.core.seeds import stream
from ccvr.models.preprocess import Normalize
from ccvr.models.split import split_model
from ccvr.models.state import Scratch, buffers_of, parameters_of
from ccvr.training.client_state import ClientStates
from ccvr.training.local import train_client
from ccvr.training.rounds import ServerPart, federate
from tests.algorithms import plain
from tests.algorithms.against_plain import SEED, require_equal
from tests.algorithms.small import NUM_CLASSES, small_model

SPEC = TrainingSpec(
    rounds=3, local_epochs=2, batch_size=4, lr=0.3, momentum=0.9, weight_decay=1e-3, client_fraction=0.6
)
LONG, SHORT = "feddf,steps=45,lr=0.002,batch_size=16", "feddf,steps=400,lr=0.01,batch_size=8,patience=20"
BETAS, EPSILON = (0.9, 0.999), 1e-8


def pictures(number):
    return torch.from_numpy(np.random.default_rng(9).integers(0, 256, (number, 1, 2, 3), dtype=np.uint8))


def probabilities(w, x):
    scores = plain.logits(w, plain.features(w, x), clsnorm=False)
    return scores.exp() / scores.exp().sum(1, keepdim=True)


def plain_kl(targets, w, x):
    return (targets * (targets / probabilities(w, x)).log()).sum(1).mean()


def plain_feddf(teachers, mean, x, options, rng):
    """The weights after a round of the server, and how many steps it took."""
    scores = sum(plain.logits(w, plain.features(w, x), clsnorm=False) for w in teachers) / len(teachers)
    targets = scores.exp() / scores.exp().sum(1, keepdim=True)
    order = rng.permutation(len(x))
    held_out, seen = order[: math.ceil(len(x) / 10)], order[math.ceil(len(x) / 10) :]
    w = {name: value.clone() for name, value in mean.items()}
    m, v = ({name: torch.zeros_like(value) for name, value in mean.items()} for _ in range(2))
    lowest, best, best_step = plain_kl(targets[held_out], w, x[held_out]).item(), dict(w), 0
    for step in range(1, options.steps + 1):
        rows = seen[rng.integers(0, len(seen), options.batch_size)]
        leaves = {name: value.clone().requires_grad_() for name, value in w.items()}
        plain_kl(targets[rows], leaves, x[rows]).backward()
        lr = options.lr / 2 * (1 + math.cos(math.pi * (step - 1) / options.steps))
        for name, leaf in leaves.items():
            m[name] = BETAS[0] * m[name] + (1 - BETAS[0]) * leaf.grad
            v[name] = BETAS[1] * v[name] + (1 - BETAS[1]) * leaf.grad**2
            unbiased = m[name] / (1 - BETAS[0] ** step), v[name] / (1 - BETAS[1] ** step)
            w[name] = w[name] - lr * unbiased[0] / (unbiased[1].sqrt() + EPSILON)
        if step % CHECK_EVERY == 0 or step == options.steps:
            found = plain_kl(targets[held_out], w, x[held_out]).item()
            if found < lowest:
                lowest, best, best_step = found, dict(w), step
            elif step - best_step >= options.patience:
                break
    return best, step


class PlainFedDF(plain.Rule):
    def __init__(self, x, options):
        self.x, self.options, self.taken = x, options, []

    def merge(self, weights, trained, sizes):
        assert len(trained) == 2
        mean, rng = super().merge(weights, trained, sizes), stream(SEED, "server", round=len(self.taken) + 1)
        made, steps = plain_feddf(list(trained.values()), mean, self.x, self.options, rng)
        assert (made["W1"] - mean["W1"]).abs().max() > 1e-2, "distillation is seen"
        self.taken.append(steps)
        return made


@pytest.mark.parametrize(("algorithm", "stops_early"), [(LONG, False), (SHORT, True)])
def test_equals_the_plain_implementation(algorithm, stops_early, clients, tmp_path):
    pixels, options = pictures(60), find_algorithm(algorithm)
    rule = PlainFedDF(small_model().normalize(pixels).flatten(1), options)
    require_equal(replace(SPEC, algorithm=algorithm), clients, tmp_path, rule, unlabelled=pixels)
    assert all(steps < options.steps for steps in rule.taken) is stops_early


def deep_model(seed=0):
    """Batch normalisation and dropout: in training mode it computes something else."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = [nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, NUM_CLASSES)]
    example = torch.zeros(2, 1, 2, 3, dtype=torch.uint8)
    return split_model(nn.Sequential(nn.Flatten(), *layers), Normalize([0.4], [0.3]), example)


def results_of(clients, model):
    sent = GlobalState(parameters_of(model), buffers_of(model), {})
    for client in clients:
        spec = replace(SPEC, algorithm="fedavg")
        yield train_client(Scratch(deep_model()), sent, client, {}, algorithm_of(spec), spec, round=1, seed=0).copied()


def server_of(unlabelled, buffers="average"):
    return ServerContext(1, np.random.default_rng(3), deep_model, buffers, unlabelled)


@pytest.mark.parametrize("policy", ["average", "largest"])
def test_all_models_are_in_eval_mode_and_buffers_are_those_of_the_average(policy, clients):
    results, pixels = list(results_of(clients, deep_model())), pictures(300)
    server = server_of(pixels, policy)
    before = GlobalState(parameters_of(deep_model()), buffers_of(deep_model()), {})
    made, _ = FedDF(steps=20).aggregate(before, results, {}, server)
    mean = server.average(results)
    assert made.buffers.keys() == mean.buffers.keys()
    assert all(torch.equal(made.buffers[name], mean.buffers[name]) for name in mean.buffers)
    assert not torch.equal(made.parameters["head.weight"], mean.parameters["head.weight"])
    scores, expected = ScoreSum(pixels, deep_model().eval()), []
    for result in scores.adding(results):
        teacher = deep_model().eval()
        teacher.load_state_dict({**result.parameters, **result.buffers})
        expected.append(teacher(pixels).detach().double())
    torch.testing.assert_close(scores.targets(), torch.stack(expected).mean(0).softmax(1).float())


def test_models_are_heard_one_at_a_time(clients):
    """Neither models nor scores of single clients are kept."""
    alive = []

    def results():
        for result in results_of([*clients, *clients], deep_model()):
            gc.collect()
            assert sum(each() is not None for each in alive) <= 1, "the one before may still be folded"
            alive.append(weakref.ref(result))
            yield result

    before = GlobalState(parameters_of(deep_model()), buffers_of(deep_model()), {})
    FedDF(steps=1).aggregate(before, results(), {}, server_of(pictures(20)))
    assert len(alive) == 6


def test_what_does_not_help_on_held_out_samples_is_not_kept(clients):
    results = list(results_of(clients, deep_model()))
    server = server_of(pictures(40))
    before = GlobalState(parameters_of(deep_model()), buffers_of(deep_model()), {})
    made, _ = FedDF(lr=1e6, steps=30).aggregate(before, results, {}, server)
    mean = server.average(results)
    assert all(torch.equal(made.parameters[name], tensor) for name, tensor in mean.parameters.items())


def test_a_single_teacher_is_a_fixed_point(clients, tmp_path):
    """The average is the teacher itself: nothing is left to learn."""
    found = {}
    for algorithm in ("fedavg", "feddf"):
        spec, given = replace(SPEC, algorithm=algorithm, client_fraction=1.0), ClientStates(tmp_path / algorithm)
        found[algorithm] = list(
            federate(small_model(), clients[:1], spec, seed=0, states=given, server=ServerPart(pictures(60)))
        )
    for ours, theirs in zip(*found.values(), strict=True):
        assert all(torch.equal(ours.parameters[name], tensor) for name, tensor in theirs.parameters.items())


def test_the_student_comes_closer_to_its_teachers(clients):
    """On samples that it has not seen."""
    results, fresh = list(results_of(clients, deep_model())), pictures(600)[300:]
    server = server_of(pictures(600)[:300])
    before = GlobalState(parameters_of(deep_model()), buffers_of(deep_model()), {})
    made, _ = FedDF(steps=300).aggregate(before, results, {}, server)
    scores = ScoreSum(fresh, deep_model().eval())
    mean, targets = server.average(scores.adding(results)), scores.targets()
    distances = []
    for tensors in (mean.tensors, made.tensors):
        student = deep_model().eval()
        student.load_state_dict(tensors)
        said = student(fresh).softmax(1)
        distances.append((targets * (targets / said).log()).sum(1).mean().item())
    assert distances[1] < 0.5 * distances[0]


@pytest.mark.parametrize("pixels", [None, pictures(1)])
def test_too_few_samples(pixels, clients, tmp_path):
    spec = replace(SPEC, algorithm="feddf", client_fraction=1.0)
    with pytest.raises(SpecError) as refused:
        next(federate(small_model(), clients, spec, seed=0, states=ClientStates(tmp_path), server=ServerPart(pixels)))
    number = 0 if pixels is None else 1
    assert str(refused.value) == (
        f"feddf learns from unlabelled samples and holds some out; it needs at least 2, and there are {number}. "
        "Set data.unlabelled, for example 0.1."
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("feddf,steps=0", "feddf: steps is 0; give at least 1."),
        ("feddf,batch_size=-3", "feddf: batch_size is -3; give at least 1."),
        ("feddf,patience=0", "feddf: patience is 0; give at least 1."),
        ("feddf,lr=0", "feddf: lr is 0.0; give a number above 0."),
    ],
)
def test_options_that_cannot_be(text, message):
    with pytest.raises(SpecError) as error:
        find_algorithm(text)
    assert str(error.value) == message


def test_no_server_optimiser_on_top():
    with pytest.raises(SpecError, match='"feddf" has a rule of its own for the server'):
        algorithm_of(TrainingSpec(algorithm="feddf", server="fedavgm"))
