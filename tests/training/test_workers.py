"""Workers give the same bits as one process, and end with one line whatever happens to them."""

import contextlib
import copy
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from ccvr.algorithms.messages import Client, GlobalState
from ccvr.algorithms.spec import TrainingSpec
from ccvr.algorithms.table import ALGORITHMS
from ccvr.core.errors import TrainingError
from ccvr.data.augment import ShiftAndMirror
from ccvr.data.batches import TrainingSamples
from ccvr.data.samples import Samples
from ccvr.models.build import ModelSpec, build_model
from ccvr.models.flat import Flat
from ccvr.models.preprocess import Normalize
from ccvr.models.split import split_model
from ccvr.models.state import Scratch, buffers_of, parameters_of
from ccvr.training import workers as module
from ccvr.training.client_state import ClientStates
from ccvr.training.rounds import ServerPart, federate
from ccvr.training.trainer import OneByOne
from ccvr.training.workers import AT_ONCE, Workers
from tests.algorithms.small import clsprox_for, small_model

SPEC = TrainingSpec(rounds=3, local_epochs=1, batch_size=4, lr=0.05, client_fraction=0.7, clsprox=0.01)


def many_clients(sizes, *, augment=False, side=8):
    rng = np.random.default_rng(0)
    number = sum(sizes)
    pixels = torch.from_numpy(rng.integers(0, 256, (number, 1, side, side), dtype=np.uint8))
    source = Samples(pixels, torch.from_numpy(rng.integers(0, 3, number)))
    images = TrainingSamples.prepare(source, ShiftAndMirror() if augment else None)
    shards = np.split(rng.permutation(number), np.cumsum(sizes)[:-1])
    return [Client(k, images, np.sort(shard)) for k, shard in enumerate(shards)]


def pictures(side=8):
    """What the server has without labels, for algorithms that need it."""
    return torch.from_numpy(np.random.default_rng(1).integers(0, 256, (12, 1, side, side), dtype=np.uint8))


class Awkward(nn.Module):
    """Batch normalisation and dropout, and a mind of its own about some batches."""

    def __init__(self, *, raises=False, sleeps=0.0, grows=False, fills=False, weight=0):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.BatchNorm1d(5), nn.Dropout(0.4))
        self.head = nn.Linear(5, 3)
        self.raises, self.sleeps, self.grows = raises, sleeps, grows
        self.fills = fills
        self.register_buffer("ballast", torch.zeros(weight))
        self.register_buffer("late", None)
        self.register_buffer("drift", torch.zeros(5), persistent=False)

    def forward(self, x):
        if self.training and self.raises:
            raise ValueError("no mood for this\nand none for that")
        if self.training and self.grows:
            self.body = copy.deepcopy(self.body)
        if self.training and self.fills and len(x) == 3:
            self.late = torch.ones(2)
        if self.training and self.sleeps:
            time.sleep(self.sleeps)
        z = self.body(x)
        if self.training:
            self.drift = 0.9 * self.drift + 0.1 * z.detach().mean(0)
        return self.head(z - self.drift)


def awkward_model(**how):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Awkward(**how)
    return split_model(model, Normalize([0.4], [0.3]), torch.zeros(2, 1, 8, 8, dtype=torch.uint8))


def pool(number, clients, spec, folder, build=awkward_model):
    return Workers(number, clients, build, spec, seed=2, states=ClientStates(folder))


def states(clients, spec, folder, trainer=None):
    given = {"states": ClientStates(folder), "trainer": trainer, "server": ServerPart(pictures())}
    found = federate(awkward_model(), clients, spec, seed=2, **given)
    return [(state.round, state.parameters, state.buffers, state.server, state.client_rounds) for state in found]


def same(left, right):
    if isinstance(left, Mapping):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    return torch.equal(left, right) if isinstance(left, torch.Tensor) else left == right


def files(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())} if folder.is_dir() else {}


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


REMEMBERING = {"moon", "scaffold", "feddyn", "fedper", "lg-fedavg", "fedbn", "fedrep"}
"""Algorithms whose clients keep a state, or tensors of the model."""


@pytest.mark.parametrize("algorithm", ["moon", *(slow(each) for each in ALGORITHMS if each != "moon")])
def test_the_same_bits_with_one_and_three_workers(algorithm, tmp_path):
    """MOON's clients remember: no algorithm does more in a worker."""
    spec = replace(SPEC, algorithm=algorithm, clsprox=clsprox_for(algorithm))
    clients = many_clients((9, 30, 9, 17, 4), augment=True)
    alone = states(clients, spec, tmp_path / "0")
    for number in (1, 3):
        with pool(number, clients, spec, tmp_path / str(number)) as workers:
            assert same(states(clients, spec, tmp_path / str(number), workers), alone), number
        assert files(tmp_path / str(number)) == files(tmp_path / "0"), "what clients remember, too"
    assert bool(files(tmp_path / "0")) is (algorithm in REMEMBERING)


def test_results_come_in_the_cohort_s_order_and_few_wait(tmp_path, monkeypatch):
    """The first client is the slowest by far; others finish early and wait, but no more than there is room for."""
    clients = many_clients((900, *[4] * 50))
    early, collect = [], Workers._collect
    spec = replace(SPEC, client_fraction=1.0, rounds=1)

    def noted(self):
        found = collect(self)
        early.extend(found)
        return found

    monkeypatch.setattr(Workers, "_collect", noted)
    with pool(2, clients, spec, tmp_path, partial(awkward_model, sleeps=0.02)) as workers:
        results = workers.train(clients, first_sent(), {}, round=1)
        assert next(results).client == 0
        assert early[-1] == 0, "which took 225 times as long as any other"
        assert early[:-1] == list(range(1, 2 * 2 * AT_ONCE)), "with the one that they wait for: 2 × workers × AT_ONCE"
        assert [result.client for result in results] == list(range(1, 51))


NETWORKS = {"fedbn": "mobilenet-v2", "fedavgm": "mobilenet-v2", "pfnm": "linear"}
"""By algorithm; the first asks for normalisation layers, the last one takes no convolutions."""
SHORT = {"feddf": "feddf,steps=20"}


@pytest.mark.parametrize(
    ("algorithm", "name"),
    [*((each, NETWORKS.get(each, "simple-cnn")) for each in ALGORITHMS), slow("fedavg", "mobilenet-v2")],
)
def test_the_same_bits_on_the_paper_s_networks(algorithm, name, tmp_path):
    """Channels last, and in training computed otherwise than in evaluation."""
    spec, clients = (
        replace(SPEC, algorithm=SHORT.get(algorithm, algorithm), rounds=2, clsprox=clsprox_for(algorithm)),
        many_clients((9, 30, 17), side=32),
    )
    images = clients[0].data.samples.first(2)
    build = partial(build_model, ModelSpec(name), images, 3, preprocess=Normalize([0.4], [0.3]), seed=0)
    runs = []
    for trainer in (nullcontext(), pool(2, clients, spec, tmp_path / "2", build)):
        folder = ClientStates(tmp_path / str(2 * len(runs)))
        with trainer as workers:
            given = {"states": folder, "trainer": workers, "server": ServerPart(pictures(32))}
            found = list(federate(build(), clients, spec, seed=2, **given))
        runs.append([(state.parameters, state.buffers, state.server, state.client_rounds) for state in found])
        assert all(t.is_contiguous() for state in found for t in state.parameters.values())
    assert same(*runs)
    assert files(tmp_path / "0") == files(tmp_path / "2")


def conv_model(kernel):
    """Channels last, with weights that torch takes for contiguous in either order: one channel, or one pixel."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        body = [nn.Conv2d(1, 16, kernel), nn.ReLU(), nn.Conv2d(16, 16, kernel, groups=16), nn.ReLU()]
        model = nn.Sequential(*body, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 3))
    channels_last = model.to(memory_format=torch.channels_last)
    return split_model(channels_last, Normalize([0.4], [0.3]), torch.zeros(2, 1, 8, 8, dtype=torch.uint8))


@pytest.mark.parametrize("kernel", [3, 1])
def test_the_same_bits_in_whatever_order_weights_lie(kernel, tmp_path):
    clients, build = many_clients((9, 30, 17)), partial(conv_model, kernel)
    alone = list(federate(build(), clients, SPEC, seed=2, states=ClientStates(tmp_path)))
    with pool(2, clients, SPEC, tmp_path, build) as workers:
        found = list(federate(build(), clients, SPEC, seed=2, states=ClientStates(tmp_path), trainer=workers))
    assert same([state.parameters for state in found], [state.parameters for state in alone])


def first_sent():
    model = awkward_model()
    return GlobalState(parameters_of(model), buffers_of(model), {})


def test_results_that_nobody_asked_for_are_not_taken_for_the_next_round_s(tmp_path):
    clients, spec = many_clients((30, 9, 9, 17, 4)), replace(SPEC, client_fraction=1.0)
    with pool(2, clients, spec, tmp_path) as workers:
        next(workers.train(clients, first_sent(), {}, round=1))  # a quorum of one
        second = list(workers.train(clients, first_sent(), {}, round=2))
        fresh = list(workers.train(clients, first_sent(), {}, round=2))
    assert [result.client for result in second] == [client.id for client in clients]
    assert same([result.parameters for result in second], [result.parameters for result in fresh])


def test_with_many_clients_workers_are_ahead_and_nothing_else_changes(tmp_path, monkeypatch):
    """Two rounds of a cohort in no order; its first client is the slowest, so that others finish before it."""
    clients = many_clients((*[4, 7, 5] * 10, 80))
    cohort = [clients[-1], *clients[1:-1:2], *clients[0:-1:2]]
    spec = replace(SPEC, algorithm="moon")
    alone = OneByOne(Scratch(awkward_model()), spec, 2, ClientStates(tmp_path / "0"))
    collect, handed_on, finished, waited, ahead = Workers._collect, [], set(), [], []

    def counted(self):
        ahead.append(max(len(worker.tasks) for worker in self._workers))
        found = collect(self)
        finished.update(found)
        waited.append(len(finished - {len(handed_on)}) - len(handed_on))  # all but the one that they wait for
        return found

    monkeypatch.setattr(Workers, "_collect", counted)
    with pool(2, clients, spec, tmp_path / "2", partial(awkward_model, sleeps=0.01)) as workers:
        sent, client_rounds = first_sent(), {}
        for number in (1, 2):
            expected = list(alone.train(cohort, sent, client_rounds, round=number))
            for result in workers.train(cohort, sent, client_rounds, round=number):
                handed_on.append(result)
                if len(handed_on) % 10 == 5:
                    time.sleep(0.1)  # time for workers to finish all that they have before any of it is taken
            assert [result.client for result in handed_on] == [client.id for client in cohort]
            for ours, theirs in zip(handed_on, expected, strict=True):
                assert isinstance(ours.parameters, Flat)
                assert isinstance(theirs.parameters, Flat), "as in workers"
                for name in ("parameters", "buffers", "payload", "num_examples", "num_steps", "has_state"):
                    assert same(getattr(ours, name), getattr(theirs, name)), (ours.client, name)
                assert ours.metrics.loss == theirs.metrics.loss
            assert max(ahead) == 2
            assert 1 <= max(waited) <= 2 * 2 * AT_ONCE
            client_rounds = {client.id: number for client in cohort}
            sent = GlobalState(expected[-1].parameters, expected[-1].buffers, {})
            for seen in (handed_on, finished, waited, ahead):
                seen.clear()
    assert files(tmp_path / "2") == files(tmp_path / "0")


@pytest.mark.parametrize("done", [1, 2])
def test_a_worker_that_is_killed_with_two_clients_names_the_one_it_trained(done, tmp_path):
    """Clients 5 and 2 are quick. What has been finished is handed on, even when its worker is no more."""
    clients = many_clients([4 if client in (5, 2) else 80 for client in range(12)])
    cohort = [clients[5], clients[2], *(client for client in clients if client.id not in (5, 2))]
    with pool(1, clients, SPEC, tmp_path, partial(awkward_model, sleeps=0.5)) as workers:
        (worker,), workers._at_once = workers._workers, 1
        results = workers.train(cohort, first_sent(), {}, round=3)
        assert next(results).client == 5
        if done == 2:
            assert worker.pipe.poll(30)
        assert [task.client for (task,) in worker.tasks] == [2, 0]
        os.kill(worker.process.pid, signal.SIGKILL)
        if done == 2:
            assert next(results).client == 2
        with pytest.raises(
            TrainingError, match=rf"^the worker that trained client {[2, 0][done - 1]} in round 3 ended"
        ):
            next(results)


def test_a_worker_that_is_killed_with_small_clients_names_them(tmp_path):
    """Those that are a small part of the work go together."""
    clients = many_clients([5, 4, 4, 80, *[70] * 9])
    with pool(1, clients, SPEC, tmp_path, partial(awkward_model, sleeps=0.5)) as workers:
        (worker,) = workers._workers
        threading.Timer(0.3, os.kill, (worker.process.pid, signal.SIGKILL)).start()
        with pytest.raises(TrainingError, match=r"^the worker that trained clients 0, 1 and 2 in round 3 ended"):
            next(workers.train(clients, first_sent(), {}, round=3))


def alive(pids):
    """Those that run; a zombie does not."""
    found = []
    for pid in pids:
        with contextlib.suppress(FileNotFoundError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found.append(pid)
    return found


def test_a_worker_that_is_killed_is_one_line_and_none_is_left(tmp_path):
    clients = many_clients((40, 30, 20))
    spec = replace(SPEC, client_fraction=1.0)
    with pool(2, clients, spec, tmp_path, partial(awkward_model, sleeps=0.5)) as workers:
        pids = [worker.process.pid for worker in workers._workers]
        threading.Timer(1.0, os.kill, (pids[0], signal.SIGKILL)).start()
        with pytest.raises(TrainingError) as ended:
            states(clients, spec, tmp_path, workers)
    assert str(ended.value) == (
        "the worker that trained client 0 in round 1 ended (signal SIGKILL). "
        "Out of memory, perhaps: lower --workers. The run can be resumed."
    )
    assert alive(pids) == []


@pytest.mark.parametrize("number", [0, 2])
def test_an_error_in_a_user_s_model_names_client_round_and_line(number, tmp_path):
    clients, spec = many_clients((40, 30, 20)), replace(SPEC, client_fraction=1.0)
    model = partial(awkward_model, raises=True)
    with (
        pytest.raises(
            TrainingError,
            match=r"^client [01] failed in round 1 "
            r"\(ValueError in .*test_workers\.py:\d+: no mood for this\)\. The run can be resumed\.$",
        ),
        pool(number, clients, spec, tmp_path, model) if number else nullcontext() as workers,
    ):
        list(federate(model(), clients, spec, seed=2, states=ClientStates(tmp_path), trainer=workers))


@pytest.mark.parametrize("number", [0, 2])
def test_a_model_that_puts_other_modules_in_is_not_trained_in_part(number, tmp_path):
    clients, spec = many_clients((40, 30, 20)), replace(SPEC, client_fraction=1.0)
    model = partial(awkward_model, grows=True)
    with (
        pytest.raises(
            TrainingError,
            match=r"^the model has other tensors after client [01] trained in round 1: backbone\.model\.body\.1",
        ),
        pool(number, clients, spec, tmp_path, model) if number else nullcontext() as workers,
    ):
        list(federate(model(), clients, spec, seed=2, states=ClientStates(tmp_path), trainer=workers))


@pytest.mark.parametrize("number", [0, 2])
def test_a_buffer_that_only_some_clients_have_is_one_line(number, tmp_path):
    clients, spec = many_clients((8, 7)), replace(SPEC, client_fraction=1.0)  # batches of 4 and 4, of 4 and 3
    model = partial(awkward_model, fills=True)
    with (
        pytest.raises(
            TrainingError, match=r"^the model has other tensors after client 1 trained in round 1: .*late is"
        ),
        pool(number, clients, spec, tmp_path, model) if number else nullcontext() as workers,
    ):
        list(federate(model(), clients, spec, seed=2, states=ClientStates(tmp_path), trainer=workers))


def test_a_worker_that_does_not_answer_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LIMIT", 1.0)
    clients, spec = many_clients((40, 30)), replace(SPEC, client_fraction=1.0)
    slow = partial(awkward_model, sleeps=30.0)
    with (
        pytest.raises(TrainingError, match=r"^no worker answered for 1 seconds \(client 0 in round 1, client 1 in"),
        pool(2, clients, spec, tmp_path, slow) as workers,
    ):
        states(clients, spec, tmp_path, workers)


def test_a_worker_that_stops_before_it_has_read_the_model_is_given_up(tmp_path, monkeypatch):
    """The model is larger than what a pipe holds."""
    monkeypatch.setattr(module, "LIMIT", 1.0)
    clients = many_clients((40, 30))
    heavy = partial(awkward_model, weight=5_000_000)
    with pool(1, clients, SPEC, tmp_path, heavy) as workers:
        os.kill(workers._workers[0].process.pid, signal.SIGSTOP)
        sent = GlobalState(parameters_of(heavy()), buffers_of(heavy()), {})
        with pytest.raises(TrainingError, match=r"^no worker answered for 1 seconds \(client 0 in round 1\)\."):
            next(workers.train(clients, sent, {}, round=1))


def test_no_room_for_the_images_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.MappedClients, "write", full)
    with pytest.raises(TrainingError) as error:
        pool(2, many_clients((4, 4)), SPEC, tmp_path).__enter__()
    assert str(error.value) == (
        f"no room for the samples in {tmp_path}: [Errno 28] No space left on device. Set TMPDIR."
    )
    assert not list(tmp_path.iterdir()), "nothing is left behind"


def test_a_model_that_cannot_be_built_is_told_at_the_start(tmp_path):
    clients = many_clients((4, 4))
    with pytest.raises(TrainingError, match=r"^the worker that trained nothing yet ended \(exit code 1\)"):
        pool(2, clients, SPEC, tmp_path, partial(small_model, nonsense=True)).__enter__()


PARENT = """
import sys
from functools import partial
from pathlib import Path
from tests.training.test_workers import SPEC, awkward_model, first_sent, many_clients, pool
clients = many_clients((40, 30))
workers = pool(2, clients, SPEC, Path(sys.argv[1]), partial(awkward_model, sleeps=600.0)).__enter__()
print(*[worker.process.pid for worker in workers._workers], flush=True)
next(workers.train(clients[:1], first_sent(), {}, round=1))
"""


def test_workers_end_when_their_parent_is_killed(tmp_path):
    """One at work, one idle."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT, tmp_path], stdout=subprocess.PIPE, text=True)
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(alive(pids)) == 2
    time.sleep(1.0)  # time to begin a client, of which it would have ten minutes
    parent.kill()
    parent.communicate()
    ends = time.monotonic() + 20
    while alive(pids) and time.monotonic() < ends:
        time.sleep(0.1)
    assert alive(pids) == []


SCRIPT = """
import ccvr
from ccvr.calibration.spec import CalibrationSpec
from ccvr.algorithms.spec import TrainingSpec
training, nothing = TrainingSpec(rounds=1, local_epochs=1), CalibrationSpec(methods=())
spec = ccvr.Spec(workers=2, training=training, calibration=nothing)
print(ccvr.run(spec, "run")["accuracy"]["uncalibrated"])
"""


def test_a_script_without_a_main_guard_works(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) > 0
