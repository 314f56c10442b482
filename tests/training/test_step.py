"""The compiled step trains the model that torch's step trains, in the same bits whoever runs it and however often."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from ccvr.algorithms.messages import Client, GlobalState
from ccvr.algorithms.objectives import LocalObjective
from ccvr.algorithms.spec import TrainingSpec
from ccvr.algorithms.table import ALGORITHMS
from ccvr.core.errors import TrainingError
from ccvr.data.augment import ShiftAndMirror
from ccvr.data.batches import TrainingSamples
from ccvr.data.samples import Samples
from ccvr.data.sources.digits import read_digits
from ccvr.models import compiled
from ccvr.models.build import ModelSpec, build_model
from ccvr.models.preprocess import Normalize
from ccvr.models.state import Scratch
from ccvr.training import trainer as module
from ccvr.training.client_state import ClientStates
from ccvr.training.local import train_client
from ccvr.training.rounds import ServerPart, federate, first_state
from ccvr.training.trainer import OneByOne
from ccvr.training.workers import Workers
from tests.algorithms.small import Using, clsprox_for

SPEC = TrainingSpec(rounds=2, local_epochs=1, batch_size=32, lr=0.01, step="halide")
SUITED = [each for each in ALGORITHMS if each not in ("fedbn", "pfnm")]
"""Algorithms for models with convolutions and without normalisation layers."""
SIZES = (70, 33, 8, 1)
"""Whole batches, a last one that fills no group of lanes, one that fills one, a single image."""

FEW_STEPS = {"feddf": "feddf,steps=5,lr=1e-5"}
"""Adam divides by the size of gradients: after many steps rounding is seen."""


def colours() -> Samples:
    """Images of CIFAR-10's shape that can be learnt: each class has its own picture, under noise."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, sum(SIZES))
    pixels = rng.integers(0, 256, (10, 3, 32, 32))[labels] // 2 + rng.integers(0, 128, (sum(SIZES), 3, 32, 32))
    return Samples(torch.from_numpy(pixels.astype(np.uint8)), torch.from_numpy(labels))


def digits() -> Samples:
    train = read_digits().train
    return Samples(train.inputs[: sum(SIZES)], train.labels[: sum(SIZES)])


DATA = {"simple-cnn": colours, "digits-cnn": digits}


def clients_of(name: str) -> list[Client]:
    source = DATA[name]()
    images = TrainingSamples.prepare(source, ShiftAndMirror() if name == "simple-cnn" else None)
    shards = np.split(np.arange(len(source)), np.cumsum(SIZES)[:-1])
    return [Client(k, images, shard) for k, shard in enumerate(shards)]


def builder(name: str, *, kernels: bool):
    inputs = DATA[name]().first(2)
    before = Normalize([0.5] * inputs.shape[1], [0.25] * inputs.shape[1])
    return partial(build_model, ModelSpec(name), inputs, 10, preprocess=before, kernels=kernels, seed=0)


def states(name, spec, folder, *, kernels=True, trainer=None, resume=None):
    build = builder(name, kernels=kernels)
    given = {"states": ClientStates(folder), "server": ServerPart(DATA[name]().first(40))}
    return list(federate(build(), clients_of(name), spec, seed=3, trainer=trainer, resume=resume, **given))


def tensors(state):
    return state.parameters | state.buffers | {f"server/{name}": t for name, t in state.server.items()}


@pytest.mark.parametrize("algorithm", SUITED)
@pytest.mark.parametrize("name", DATA)
def test_two_rounds_end_where_torch_ends(name, algorithm, tmp_path, monkeypatch):
    spec = replace(SPEC, algorithm=FEW_STEPS.get(algorithm, algorithm), clsprox=clsprox_for(algorithm))
    expected = states(name, replace(spec, step="torch"), tmp_path / "torch", kernels=False)[-1]
    passes, apply = [], compiled.Compiled.apply
    monkeypatch.setattr(compiled.Compiled, "apply", lambda *of: passes.append(1) or apply(*of))
    found = states(name, spec, tmp_path / "halide")[-1]
    assert len(passes) >= 2 * 6, "every step of every client"
    start = states(name, replace(spec, rounds=1, lr=1e-9), tmp_path / "start")[-1]
    for key, tensor in tensors(found).items():
        theirs = tensors(expected)[key]
        assert (tensor - theirs).abs().max() <= 1e-4, key
        if key.endswith("weight"):
            moved = (theirs - tensors(start)[key]).abs().max()
            assert (tensor - theirs).abs().max() <= 0.02 * moved, f"{key} moved by {moved:.2g}: training is seen"


def slow(value):
    return pytest.param(value, marks=pytest.mark.slow)


@pytest.mark.parametrize("algorithm", ["moon", *(slow(each) for each in SUITED if each != "moon")])
@pytest.mark.parametrize("name", ["simple-cnn", slow("digits-cnn")])
def test_the_same_bits_with_workers_and_after_a_resume(name, algorithm, tmp_path):
    spec = replace(SPEC, algorithm=FEW_STEPS.get(algorithm, algorithm), clsprox=clsprox_for(algorithm), clsnorm=True)
    alone = states(name, spec, tmp_path / "0")
    files = ClientStates(tmp_path / "2")
    with Workers(2, clients_of(name), builder(name, kernels=True), spec, seed=3, states=files) as workers:
        found = states(name, spec, tmp_path / "2", trainer=workers)
    assert all(same(a, b) for a, b in zip(found, alone, strict=True))
    resumed = states(name, spec, tmp_path / "0", resume=alone[0])
    assert same(resumed[-1], alone[-1])


def test_the_same_bits_with_small_clients_that_go_together(tmp_path):
    source = digits()
    images = TrainingSamples.prepare(source, None)
    clients = [Client(k, images, shard) for k, shard in enumerate(np.array_split(np.arange(len(source)), 40))]
    build = builder("digits-cnn", kernels=True)
    alone = list(federate(build(), clients, SPEC, seed=3, states=ClientStates(tmp_path)))
    with Workers(2, clients, build, SPEC, seed=3, states=ClientStates(tmp_path)) as workers:
        assert workers._at_once > 1
        together = list(federate(build(), clients, SPEC, seed=3, states=ClientStates(tmp_path), trainer=workers))
    assert all(same(a, b) for a, b in zip(together, alone, strict=True))


def same(left, right) -> bool:
    mine, theirs = tensors(left), tensors(right)
    return mine.keys() == theirs.keys() and all(torch.equal(mine[key], theirs[key]) for key in mine)


def test_users_objectives_see_the_images_that_the_model_saw(tmp_path):
    """uint8 [B, C, H, W], though the model reads them from the lanes."""
    seen = []

    class Looking(LocalObjective):
        def loss(self, step):
            seen.append((step.samples.dtype, tuple(step.samples.shape), len(step.labels)))
            again = self.context.model.features(step.samples)
            assert torch.allclose(again, step.features, atol=1e-5)
            return 0.0

    client, model = clients_of("simple-cnn")[0], builder("simple-cnn", kernels=True)()
    state = first_state(model, 4, SPEC)
    sent = GlobalState(state.parameters, state.buffers, {})
    train_client(Scratch(model), sent, client, {}, Using(Looking), SPEC, round=1, seed=0)
    assert seen == [(torch.uint8, (n, 3, 32, 32), n) for n in (32, 32, 6)]


def test_a_machine_without_the_extra_does_not_train_by_another_step(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "is_installed", lambda: False)
    with pytest.raises(TrainingError) as refused:
        OneByOne(Scratch(builder("digits-cnn", kernels=False)()), SPEC, 0, ClientStates(tmp_path))
    assert str(refused.value) == (
        'training.step is "halide", and the extra "fast" is not installed here: pip install "ccvr[fast]".'
    )
    OneByOne(Scratch(builder("digits-cnn", kernels=False)()), replace(SPEC, step="torch"), 0, ClientStates(tmp_path))
