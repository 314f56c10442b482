"""What a run would cost, counted by hand."""

from dataclasses import replace

import numpy as np
import pytest
from torch import nn

from ccvr.algorithms.spec import TrainingSpec
from ccvr.calibration.spec import CalibrationSpec
from ccvr.core.errors import SpecError
from ccvr.core.run import RunFolder
from ccvr.data.catalogue import extent
from ccvr.data.spec import DataSpec, PartitionSpec
from ccvr.experiment.cost import Rates, estimate
from ccvr.experiment.pipeline import run
from ccvr.experiment.spec import Spec
from ccvr.models.build import ModelSpec
from ccvr.models.split import SplitModel
from ccvr.statistics.kinds import KINDS
from ccvr.statistics.wire import most_bytes, payload_bytes
from tests.end_to_end.tiny import TINY

DIGITS = extent("digits").train
PARAMETERS, NORMALISATION = 16 * 9 + 16 + 32 * 16 * 9 + 32 + 512 * 64 + 64 + 64 * 10 + 10, 2
SPEC = Spec(
    partition=PartitionSpec(num_clients=10), training=TrainingSpec(rounds=3, local_epochs=2, client_fraction=0.4)
)


FULL = 10 * (16 + 8 * 64) + round(4 * (DIGITS * 64 - DIGITS * (DIGITS / 100 - 1) / 2)) // 10
"""Of a client with an equal part of all classes: as many rows as samples, of which there are fewer than features."""
FIRST, SECOND = payload_bytes("diagonal", [99] * 10, 64), payload_bytes("kernel", [99] * 10, 50)
"""The two exchanges of a kernel: random features are its own, what standardises the layers is not."""


def test_samples_and_traffic():
    cost = estimate(SPEC)
    assert cost.samples == pytest.approx(DIGITS * 0.4 * 2 * 3, abs=6)
    assert cost.model_bytes == 4 * (PARAMETERS + NORMALISATION)
    assert cost.traffic_bytes == 2 * cost.model_bytes * 4 * 3, "down and up, four clients, three rounds"
    assert cost.seconds > 0


@pytest.mark.parametrize(
    ("algorithm", "down", "up"),
    [
        ("scaffold", 4 * PARAMETERS, 4 * PARAMETERS),
        ("fednova", 0, 16),
        ("feddyn", 0, 0),
        ("fedsam", 0, 0),
        ("fedadam", 0, 0),
    ],
)
def test_what_passes_beside_the_model_is_traffic(algorithm, down, up):
    cost = estimate(replace(SPEC, training=replace(SPEC.training, algorithm=algorithm)))
    assert cost.traffic_bytes == (2 * cost.model_bytes + down + up) * 4 * 3


def test_what_is_timed_takes_both_gradients_of_a_step(monkeypatch):
    """So the estimate knows of algorithms that take more than one, without being told."""
    passes, features = {}, SplitModel.features
    for algorithm in ("fedavg", "fedsam"):
        passes[algorithm] = 0

        def counted(self, inputs, algorithm=algorithm):
            passes[algorithm] += self.training
            return features(self, inputs)

        monkeypatch.setattr(SplitModel, "features", counted)
        estimate(replace(SPEC, training=replace(SPEC.training, algorithm=algorithm)))
    assert passes["fedsam"] == 2 * passes["fedavg"] > 0


@pytest.mark.parametrize(("one", "other", "same"), [("fedavg", "fedadam", True), ("fedavg", "fedsam", False)])
def test_times_are_shared_between_algorithms_whose_clients_do_the_same(one, other, same):
    rates = Rates()
    for algorithm in (one, other):
        rates.seconds(replace(SPEC, training=replace(SPEC.training, algorithm=algorithm)))
    assert (len(rates.measured) == 1) is same


@pytest.mark.parametrize(
    ("cores", "workers", "at_once"), [(8, None, 4), (8, 2, 2), (3, None, 3), (2, 16, 2), (8, 1, 1)]
)
def test_workers_share_the_time_as_far_as_there_are_cores_and_clients(monkeypatch, cores, workers, at_once):
    monkeypatch.setattr("ccvr.experiment.spec.cores", lambda: cores)
    monkeypatch.setattr("ccvr.experiment.cost.cores", lambda: cores)
    monkeypatch.setattr("ccvr.experiment.cost._seconds_per_sample", lambda *_: 1.0)
    cost = estimate(replace(SPEC, workers=workers))
    assert cost.seconds == cost.samples / at_once, "four clients train in a round"


def test_what_is_held_out_is_not_trained_on():
    whole, part = (estimate(replace(SPEC, data=DataSpec(validation=v))).samples for v in (0.0, 0.25))
    assert part == pytest.approx(0.75 * whole, abs=6)


@pytest.mark.parametrize(
    ("methods", "a_client"),
    [
        (("ccvr",), FULL),
        (("ccvr", "ccvr-converged"), FULL),
        (("lda",), 10 * (16 + 8 * 64) + 4 * 64 * 65 // 2),
        (("oracle",), 0),
        (("ncm",), 10 * (16 + 8 * 64)),
        (("lda,transform=tukey", "ridge,transform=tukey"), 10 * (16 + 8 * 64) + 4 * 64 * 65 // 2),
        (("lda", "lda,transform=tukey,label=t"), 2 * (10 * (16 + 8 * 64) + 4 * 64 * 65 // 2)),
        (("kernel,taps=,num_features=50",), FIRST + SECOND),
        (("kernel,taps=,num_features=50", "kernel,taps=,num_features=50,bandwidth=2,label=b"), FIRST + 2 * SECOND),
    ],
)
def test_statistics_that_two_methods_share_are_sent_once(methods, a_client):
    spec = replace(SPEC, calibration=replace(SPEC.calibration, methods=methods))
    if methods == ("oracle",):
        spec = replace(spec, calibration=replace(spec.calibration, deploy="uncalibrated"))
    assert estimate(spec).statistics_bytes == pytest.approx(10 * a_client, abs=40)


@pytest.mark.parametrize("kind", KINDS)
def test_no_split_sends_more_than_the_forecast(kind):
    rng = np.random.default_rng(0)
    for alpha in (0.01, 0.1, 1, 100):
        for samples in (5, 100, 3000):
            counts = rng.multinomial(samples, rng.dirichlet([alpha] * 20)).reshape(4, 5)
            sent = sum(payload_bytes(kind, client, 16) for client in counts)
            assert sent <= most_bytes(kind, samples, 4, 5, 16)


def normed(image_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, num_classes))


@pytest.mark.parametrize(
    ("buffers", "every", "between"),
    [
        ("reestimated", 0, ""),
        ("reestimated-at-end", 0, ""),
        ("average", 2, "lda"),
        ("average", 3, "ccvr,num_virtual=2,epochs=1"),
        ("reestimated", 1, "lda"),
    ],
)
def test_what_revisions_move_is_what_a_run_moves(buffers, every, between, tmp_path):
    """Where all clients have all classes; otherwise it is a bound."""
    spec = replace(
        TINY,
        model=ModelSpec(name=f"{__name__}:normed"),
        partition=replace(TINY.partition, kind="iid"),
        training=replace(TINY.training, algorithm="fedavg", rounds=6, buffers=buffers),
        calibration=CalibrationSpec(methods=("ncm",), every=every, between=between),
    )
    cost = estimate(spec)
    run(spec, tmp_path / "run")
    moved = [record.get("revision_bytes", 0) for record in RunFolder(tmp_path / "run").read_rounds()]
    assert cost.revision_bytes == sum(moved) > 0
    assert "; revisions between them at most " in cost.describe()


def test_without_revisions_nothing_is_said_of_them():
    cost = estimate(SPEC)
    assert cost.revision_bytes == 0
    assert "revisions" not in cost.describe()


def test_a_name_that_a_run_refuses():
    with pytest.raises(SpecError, match=r"learns from unlabelled samples, and there are none"):
        estimate(replace(SPEC, training=replace(SPEC.training, algorithm="feddf")))
