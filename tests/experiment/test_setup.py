import multiprocessing
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.numpy import load

from ccvr.algorithms.spec import TrainingSpec
from ccvr.core.errors import SpecError
from ccvr.data.spec import DataSpec, PartitionSpec
from ccvr.experiment.engine import LocalEngine
from ccvr.experiment.setup import prepare
from ccvr.experiment.spec import Spec
from ccvr.statistics.request import Request
from ccvr.training.client_state import ClientStates

TINY = Spec(
    workers=1, training=TrainingSpec(rounds=1, local_epochs=1), partition=PartitionSpec(num_clients=4, alpha=0.5)
)


def test_the_seed_changes_weights_but_not_owners():
    first, second = (prepare(replace(TINY, seed=seed)) for seed in (1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first.kept.shards, second.kept.shards, strict=True))
    assert first.fresh_model().digest() != second.fresh_model().digest()


def test_the_partitions_seed_changes_owners_but_not_weights():
    first, second = (prepare(replace(TINY, partition=replace(TINY.partition, seed=seed))) for seed in (1, 2))
    assert not all(np.array_equal(a, b) for a, b in zip(first.kept.shards, second.kept.shards, strict=True))
    assert first.fresh_model().digest() == second.fresh_model().digest()


def test_the_held_out_part_enters_neither_training_nor_statistics(tmp_path):
    setup = prepare(replace(TINY, data=DataSpec(validation=0.15)))
    held = np.concatenate(setup.held_out.shards)
    kept = np.concatenate(setup.kept.shards)
    assert not np.intersect1d(held, kept).size
    assert len(held) + len(kept) == len(setup.dataset.train)
    assert 0.1 < len(held) / len(setup.dataset.train) < 0.15
    # Poison the held-out images: were one of them read, training or statistics would change.
    poisoned_images = setup.dataset.train.inputs.clone()
    poisoned_images[held] = 255 - poisoned_images[held]
    poisoned = replace(setup.dataset, train=replace(setup.dataset.train, inputs=poisoned_images))
    model = setup.fresh_model()
    outcomes = []
    for dataset in (setup.dataset, poisoned):
        engine = LocalEngine(replace(setup, dataset=dataset))
        (state,) = engine.rounds(
            replace(setup, dataset=dataset).fresh_model(), states=ClientStates(tmp_path), resume=None
        )
        statistics = list(engine.statistics(model, Request()))
        outcomes.append((state, statistics, [counts["head"] for counts in engine.score(model, {"head": model.head})]))
    (state, statistics, scores), (other_state, other_statistics, other_scores) = outcomes
    assert all(torch.equal(state.parameters[name], other_state.parameters[name]) for name in state.parameters)
    assert all(torch.equal(a.second, b.second) for a, b in zip(statistics, other_statistics, strict=True))
    counts = np.stack([client.count.numpy() for client in statistics])
    assert np.array_equal(counts, setup.label_counts)
    assert sum(int(score.total.sum()) for score in scores) == len(held)
    assert any(a.loss != b.loss for a, b in zip(scores, other_scores, strict=True))


def test_the_saved_partition_says_who_owns_what():
    setup = prepare(replace(TINY, data=DataSpec(validation=0.15)))
    saved = load(setup.partition_bytes())
    labels = setup.dataset.train.labels.numpy()
    for client, (kept, held) in enumerate(zip(setup.kept.shards, setup.held_out.shards, strict=True)):
        assert np.array_equal(np.flatnonzero(saved["owner"] == client), np.sort(np.concatenate([kept, held])))
        assert saved["held_out"][held].all()
        assert not saved["held_out"][kept].any()
        assert np.array_equal(saved["label_counts"][client], np.bincount(labels[kept], minlength=10))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_a_device_that_is_not_there():
    with pytest.raises(SpecError, match=r'device is "cuda", but torch finds no CUDA device\. Use --device cpu\.'):
        prepare(replace(TINY, device="cuda"))


def test_the_oracle_sees_every_training_image_and_no_other():
    setup = prepare(replace(TINY, data=DataSpec(validation=0.15)))
    _, labels = LocalEngine(setup).features(setup.fresh_model())
    assert np.array_equal(np.bincount(labels, minlength=10), setup.label_counts.sum(0))


def test_normalisation_comes_from_the_training_images(tmp_path):
    setup = prepare(TINY)
    model = setup.fresh_model()
    kept = setup.dataset.train.inputs[torch.from_numpy(np.concatenate(setup.kept.shards))]
    normal = model.normalize(kept)
    assert abs(normal.mean().item()) < 1e-5
    assert abs(normal.std().item() - 1) < 1e-4


@pytest.mark.parametrize("augment", [True, False])
def test_augmentation_is_what_the_spec_says(augment, tmp_path):
    finals = []
    for chosen in (augment, None):
        setup = prepare(replace(TINY, data=DataSpec(augment=chosen)))
        engine = LocalEngine(replace(setup, dataset=replace(setup.dataset, augment=augment)))
        (state,) = engine.rounds(setup.fresh_model(), states=ClientStates(tmp_path), resume=None)
        finals.append(state.parameters["head.weight"])
    assert torch.equal(*finals)
    other = prepare(replace(TINY, data=DataSpec(augment=not augment)))
    (state,) = LocalEngine(other).rounds(other.fresh_model(), states=ClientStates(tmp_path), resume=None)
    assert not torch.equal(state.parameters["head.weight"], finals[0])


def test_processes_for_a_round(monkeypatch):
    monkeypatch.setattr("ccvr.experiment.spec.cores", lambda: 3)
    assert [Spec().processes(cohort) for cohort in (1, 2, 100)] == [1, 2, 3]
    assert Spec(workers=5).processes(100) == 5
    assert Spec(device="cuda", workers=5).processes(100) == 1
    monkeypatch.setattr(multiprocessing.current_process(), "_config", {"daemon": True})
    assert Spec(workers=5).processes(100) == 1, "daemons may not have children"
