"""One pass over the images for all that read the same layers, and the bits of a pass of one's own."""

from dataclasses import replace

import pytest
import torch

from ccvr.core.run import RunFolder
from ccvr.data.batches import in_order
from ccvr.experiment import feature_store
from ccvr.experiment.engine import LocalEngine
from ccvr.experiment.feature_store import FeatureStore
from ccvr.experiment.finished_run import open_finished_run
from ccvr.experiment.load import read_head
from ccvr.experiment.pipeline import run
from ccvr.experiment.setup import prepare
from ccvr.experiment.train import score_on_test
from ccvr.statistics.collect import collect, read_features
from ccvr.statistics.request import Request
from tests.end_to_end.tiny import TINY


@pytest.fixture(scope="module")
def setup():
    return prepare(replace(TINY, workers=1))


@pytest.fixture
def model(setup):
    return setup.fresh_model()


@pytest.fixture
def store(setup):
    return FeatureStore(setup.dataset.train, setup.kept.shards)


@pytest.fixture
def seen(model):
    """How many images the model has seen."""
    numbers = []
    model.backbone.register_forward_hook(lambda module, inputs, output: numbers.append(len(output)))
    return lambda: sum(numbers)


def taken(store, model, taps=()):
    return [list(features) for features in store.read(model, taps)]


TAPS = ("backbone.model.layer1",)


def same(left, right):
    return all(
        torch.equal(z, other) and torch.equal(y, labels)
        for mine, theirs in zip(left, right, strict=True)
        for (z, y), (other, labels) in zip(mine, theirs, strict=True)
    )


@pytest.mark.parametrize("taps", [(), TAPS])
def test_the_second_time_nothing_is_computed_and_the_bits_are_those_of_a_pass(taps, setup, model, store, seen):
    first = taken(store, model, taps)
    assert seen() == sum(map(len, setup.kept.shards))
    assert same(taken(store, model, taps), first)
    assert seen() == sum(map(len, setup.kept.shards))
    for shard, part in zip(setup.kept.shards, first, strict=True):
        assert same([part], [list(read_features(model, in_order(setup.dataset.train, shard), "head", taps))])


def test_other_layers_and_other_weights_are_read(setup, model, store, seen):
    number = sum(map(len, setup.kept.shards))
    before = taken(store, model)
    assert not same(taken(store, model, TAPS), before)
    assert seen() == 2 * number
    with torch.no_grad():
        next(model.backbone.parameters()).mul_(1.5)
    assert not same(taken(store, model), before)
    assert seen() == 3 * number


def test_what_was_left_half_way_is_no_pass(setup, model, store, seen):
    number = sum(map(len, setup.kept.shards))
    list(next(store.read(model, ())))  # of the first client alone
    for client, features in enumerate(store.read(model, ())):
        if client:  # of all but the first
            list(features)
    before = seen()
    whole = taken(store, model)
    assert seen() == before + number
    assert sum(len(y) for part in whole for _, y in part) == number


def test_a_model_that_is_trained_meanwhile_is_not_remembered(setup, model, store, seen):
    for features in store.read(model, ()):
        list(features)
        with torch.no_grad():
            next(model.backbone.parameters()).mul_(1.5)
    before = seen()
    taken(store, model)
    assert seen() == before + sum(map(len, setup.kept.shards))


def test_what_is_too_large_is_read_again(setup, model, store, seen, monkeypatch):
    number = sum(map(len, setup.kept.shards))
    width = model.head.weight.shape[1]
    monkeypatch.setattr(feature_store, "MAX_BYTES", number * width * 4 - 1)
    first = taken(store, model)
    assert same(taken(store, model), first)
    assert seen() == 2 * number
    monkeypatch.setattr(feature_store, "MAX_BYTES", number * width * 4)
    for _ in range(2):
        taken(store, model)
    assert seen() == 3 * number


@pytest.mark.parametrize(
    "asked", [Request(), Request("pooled", "tukey:0.5", min_count=3), Request("means", taps="auto")]
)
def test_an_engine_s_statistics_are_those_that_each_client_would_send(asked, setup, model, seen):
    engine = LocalEngine(setup)
    engine.features(model)
    list(engine.statistics(model, asked))
    before = seen()
    list(engine.statistics(model, asked))
    assert seen() - before < 5, "one image, to find the layers"
    for shard, found in zip(setup.kept.shards, engine.statistics(model, asked), strict=True):
        own = collect(
            model,
            in_order(setup.dataset.train, shard),
            num_classes=setup.dataset.num_classes,
            head="head",
            kind=asked.kind,
            transform=asked.transform,
            taps=asked.taps,
            min_count=asked.min_count,
        )
        assert found.to_bytes(dtype=torch.float64) == own.to_bytes(dtype=torch.float64)


def test_heads_score_on_kept_features_what_their_models_score_on_the_images(tmp_path, monkeypatch):
    passes = []

    def noted(model, batches, head, taps):
        passes.append(taps)
        return read_features(model, batches, head, taps)

    monkeypatch.setattr(feature_store, "read_features", noted)
    methods = ("lda", "ccvr,num_virtual=50", "oracle", "lda,taps=auto,label=deep", "kernel")
    spec = replace(TINY, calibration=replace(TINY.calibration, methods=methods))
    accuracy = run(spec, tmp_path / "run")["accuracy"]
    assert len(passes) == 2 * (4 + 1), "four clients and the test set, the head's layer and all"
    opened = open_finished_run(RunFolder(tmp_path / "run"))
    for label in ("uncalibrated", "lda", "ccvr", "oracle", "deep", "kernel"):
        fitted = opened.model.with_head(read_head(opened.folder.head(label)))
        assert accuracy[label] == pytest.approx(score_on_test(fitted, opened.setup).accuracy, abs=1e-4), label
