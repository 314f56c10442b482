"""Samples that every client trains on beside its own (data.shared), and what a run says about them."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.numpy import load

from ccvr.algorithms.spec import TrainingSpec
from ccvr.calibration.spec import CalibrationSpec
from ccvr.core.errors import PartitionError, RunError, SpecError
from ccvr.core.results import shared_line
from ccvr.core.run import RunFolder
from ccvr.data.spec import DataSpec, PartitionSpec
from ccvr.experiment.cost import estimate
from ccvr.experiment.engine import LocalEngine
from ccvr.experiment.events import Noted
from ccvr.experiment.pipeline import resume, run, start
from ccvr.experiment.setup import prepare
from ccvr.experiment.spec import Spec, to_toml
from ccvr.statistics.request import Request
from ccvr.training.checkpoint import read_checkpoint
from ccvr.training.client_state import ClientStates

SHARED = DataSpec(validation=0.15, unlabelled="0.1", shared=0.05)
SPEC = Spec(
    workers=1,
    threads=1,
    data=SHARED,
    partition=PartitionSpec(num_clients=4, alpha=0.5),
    training=TrainingSpec(rounds=2, local_epochs=1, step="torch"),
    calibration=CalibrationSpec(methods=("lda", "oracle,epochs=1")),
)
TOTAL = 1442
REST = TOTAL - int(0.1 * TOTAL)
NUMBER = int(0.05 * REST)
LINE = (
    f"raw data moved: every client trained on {NUMBER} shared samples beside its own "
    f"({4 * NUMBER * (64 + 8):,} bytes to all clients); statistics are of their own samples alone"
)


@pytest.fixture(scope="module")
def setup():
    return prepare(SPEC)


def aside(setup):
    """The samples that are the server's: no client owns them, and none shares them."""
    owned = np.concatenate([*setup.kept.shards, *setup.held_out.shards, setup.shared])
    assert len(np.unique(owned)) == len(owned), "each sample is own, held out or shared, and that once"
    return np.setdiff1d(np.arange(len(setup.dataset.train)), owned)


def test_shared_samples_are_nobody_s_own_and_none_of_the_unlabelled(setup):
    assert len(setup.shared) == NUMBER
    rest = aside(setup)
    assert len(rest) == TOTAL - REST
    assert torch.equal(setup.unlabelled, setup.dataset.train.inputs[rest])
    without = prepare(replace(SPEC, data=replace(SHARED, shared=0.0)))
    assert torch.equal(setup.unlabelled, without.unlabelled), "sharing does not change what is the server's"


def test_each_class_gives_its_share(setup):
    labels = setup.dataset.train.labels.numpy()
    found = np.bincount(labels[setup.shared], minlength=10) / np.bincount(labels)
    assert np.abs(found - NUMBER / TOTAL).max() < 0.01


def test_every_client_trains_on_them_once_beside_its_own(setup):
    for client, own in zip(LocalEngine(setup).clients(), setup.kept.shards, strict=True):
        assert np.array_equal(client.indices, np.union1d(own, setup.shared))
        assert len(client.indices) == len(own) + NUMBER


def test_without_sharing_nothing_changes():
    setup = prepare(replace(SPEC, data=replace(SHARED, shared=0.0)))
    assert all(a is b for a, b in zip(setup.trained_on, setup.kept.shards, strict=True))
    assert "shared" not in load(setup.partition_bytes())


def test_who_shares_depends_on_the_partition_s_seed_alone(setup):
    assert np.array_equal(prepare(replace(SPEC, seed=7)).shared, setup.shared)
    assert not np.array_equal(prepare(replace(SPEC, partition=replace(SPEC.partition, seed=7))).shared, setup.shared)


def test_training_reads_them_and_statistics_oracles_and_scores_do_not(setup, tmp_path):
    images = setup.dataset.train.inputs.clone()
    images[setup.shared] = 255 - images[setup.shared]
    poisoned = replace(setup, dataset=replace(setup.dataset, train=replace(setup.dataset.train, inputs=images)))
    model, found = setup.fresh_model(), []
    for each in (setup, poisoned):
        engine = LocalEngine(each)
        *_, state = engine.rounds(each.fresh_model(), states=ClientStates(tmp_path), resume=None)
        scores = [counts["head"] for counts in engine.score(model, {"head": model.head})]
        found.append((state, list(engine.statistics(model, Request())), engine.features(model), scores))
    (state, statistics, features, scores), (other, other_statistics, other_features, other_scores) = found
    assert not torch.equal(state.parameters["head.weight"], other.parameters["head.weight"])
    assert all(torch.equal(a.second, b.second) for a, b in zip(statistics, other_statistics, strict=True))
    assert np.array_equal(np.stack([client.count.numpy() for client in statistics]), setup.label_counts)
    assert torch.equal(features[0], other_features[0])
    assert len(features[1]) == setup.label_counts.sum()
    assert [each.loss for each in scores] == [each.loss for each in other_scores]


def test_clients_weigh_by_what_they_train_on(setup, tmp_path):
    *_, state = LocalEngine(setup).rounds(setup.fresh_model(), states=ClientStates(tmp_path), resume=None)
    assert {each.client: each.num_examples for each in state.clients} == {
        number: len(own) + NUMBER for number, own in enumerate(setup.kept.shards)
    }


def test_algorithms_count_the_labels_that_a_client_trains_on(setup, tmp_path):
    spec = replace(SPEC, training=replace(SPEC.training, algorithm="fedir"))
    *_, state = LocalEngine(replace(setup, spec=spec)).rounds(
        setup.fresh_model(), states=ClientStates(tmp_path), resume=None
    )
    labels = setup.dataset.train.labels.numpy()
    shared = np.bincount(labels[setup.shared], minlength=10)
    assert np.array_equal(state.server["counts"].numpy(), setup.label_counts.sum(0) + 4 * shared)


def test_the_saved_partition_names_them(setup):
    saved = load(setup.partition_bytes())
    assert np.array_equal(np.flatnonzero(saved["shared"]), setup.shared)
    assert (saved["owner"][setup.shared] == -1).all()
    assert np.array_equal(saved["label_counts"], setup.label_counts)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("shared") / "run"
    return path, list(start(SPEC, path))


def test_the_run_and_its_results_say_that_raw_data_moved(whole):
    path, events = whole
    assert [event.text for event in events if isinstance(event, Noted)] == [LINE]
    results = RunFolder(path).read_results()
    assert results["shared"] == {"samples": NUMBER, "bytes": 4 * NUMBER * (64 + 8)}
    assert shared_line(results) == LINE


def test_a_run_without_says_nothing(tmp_path):
    results = run(replace(SPEC, data=DataSpec()), tmp_path / "run")
    assert "shared" not in results
    assert shared_line(results) == ""


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_that_was_stopped_ends_in_the_same_bits_with_any_number_of_workers(workers, whole, tmp_path):
    path, _ = whole
    events = start(replace(SPEC, workers=workers), tmp_path / "run")
    for event in events:
        if getattr(event, "round", 0) == 1:
            break
    events.close()
    folder = RunFolder(tmp_path / "run")
    assert folder.checkpoints()
    assert not folder.results.is_file()
    list(resume(folder))
    ours, theirs = (read_checkpoint(each.checkpoint(2)) for each in (folder, RunFolder(path)))
    assert all(torch.equal(ours.parameters[name], tensor) for name, tensor in theirs.parameters.items())
    assert folder.model.read_bytes() == RunFolder(path).model.read_bytes()
    assert json.loads(folder.results.read_text())["shared"] == json.loads(RunFolder(path).results.read_text())["shared"]


def test_it_cannot_change_in_the_middle_of_a_run(tmp_path):
    events = start(SPEC, tmp_path / "run")
    for event in events:
        if getattr(event, "round", 0) == 1:
            break
    events.close()
    folder = RunFolder(tmp_path / "run")
    folder.spec.write_text(to_toml(replace(SPEC, data=replace(SHARED, shared=0.1))))
    with pytest.raises(RunError, match="was drawn from other samples, or for other owners"):
        list(resume(folder))


@pytest.mark.parametrize("fraction", [-0.1, 1.0, 2.0, float("nan"), float("inf")])
def test_what_is_no_fraction(fraction):
    with pytest.raises(SpecError) as error:
        DataSpec(shared=fraction)
    assert str(error.value) == f"data.shared is {fraction}; give a fraction from 0 to below 1."


def test_too_small_a_fraction():
    with pytest.raises(SpecError, match=r"^data.shared is 0.0001, which is none of 1298 samples. Give more.$"):
        prepare(replace(SPEC, data=replace(SHARED, shared=0.0001)))


def test_too_large_a_fraction_leaves_clients_too_little():
    with pytest.raises(PartitionError, match="4 clients of at least 10 samples need 40; there are 13"):
        prepare(replace(SPEC, data=replace(SHARED, shared=0.99)))


def test_the_cost_counts_them(setup):
    cost, without = (estimate(replace(SPEC, data=data)) for data in (SHARED, replace(SHARED, shared=0.0)))
    assert cost.samples == pytest.approx(2 * sum(map(len, setup.trained_on)), abs=8)
    assert cost.shared_bytes == setup.shared_bytes == 4 * NUMBER * (64 + 8)
    assert f"raw data: {cost.shared_bytes / 1000:.3g} kB of shared samples to all clients" in cost.describe()
    assert "raw data" not in without.describe()
