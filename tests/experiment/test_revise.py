"""Between rounds: re-estimated moments of normalisation, and calibrated heads that training goes on from."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from ccvr.algorithms.algorithm import Algorithm
from ccvr.calibration.spec import CalibrationSpec
from ccvr.core.errors import RunError, SpecError, TrainingError
from ccvr.core.run import RunFolder
from ccvr.core.seeds import stream
from ccvr.data.batches import TrainingSamples, epoch
from ccvr.experiment.events import RoundDone
from ccvr.experiment.load import read_head
from ccvr.experiment.pipeline import resume, run, start
from ccvr.experiment.run_or_resume import run_or_resume
from ccvr.experiment.setup import prepare
from ccvr.experiment.spec import CheckpointSpec
from ccvr.models.build import ModelSpec
from ccvr.models.state import num_bytes
from ccvr.training.checkpoint import read_checkpoint
from tests.end_to_end.tiny import TINY


def normed(image_shape, num_classes):
    """Two layers with batch normalisation."""
    body = nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU()
    return nn.Sequential(*body, nn.Linear(6, num_classes))


SPEC = replace(
    TINY,
    model=ModelSpec(name=f"{__name__}:normed"),
    training=replace(TINY.training, algorithm="fedavg", rounds=3),
    calibration=CalibrationSpec(methods=("lda",)),
    checkpoint=CheckpointSpec(every=1, keep=0),
)


def with_buffers(policy):
    return replace(SPEC, training=replace(SPEC.training, buffers=policy))


def every(number, **changes):
    return replace(SPEC, calibration=replace(SPEC.calibration, every=number, **changes))


def state_of(path, round):
    return read_checkpoint(RunFolder(path).checkpoint(round))


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def plain_moments(spec, state, clients, round):
    """Means and variances of what enters both normalisations, batch by batch in float64 and then all together."""
    setup = prepare(spec)
    names = [f"backbone.model.{layer}.{part}" for layer in (1, 2, 4) for part in ("weight", "bias")]
    w1, b1, g, s, w2, b2 = (state.parameters[name].double() for name in names)
    model = setup.fresh_model()
    first, second = [], []
    for client in clients:
        rng = stream(spec.seed, "moments", client=client, round=round)
        data, own = TrainingSamples(setup.dataset.train), setup.kept.shards[client]
        for batch in epoch(data, own, spec.training.batch_size, rng=rng):
            x = model.inputs(batch.inputs).double()
            first.append(x.flatten(1) @ w1.T + b1)
            centred = first[-1] - first[-1].mean(0)
            normed = centred / (centred.square().mean(0) + 1e-5).sqrt() * g + s
            second.append(normed.relu() @ w2.T + b2)
    both = torch.cat(first), torch.cat(second)
    return [moment for values in both for moment in (values.mean(0), values.var(0))]


def running(state):
    return [state.buffers[f"backbone.model.{layer}.running_{part}"] for layer in (2, 5) for part in ("mean", "var")]


@pytest.mark.parametrize("round", [1, 3])
def test_reestimated_moments_are_those_of_the_round_s_clients_together(round, tmp_path):
    spec = with_buffers("reestimated")
    run(spec, tmp_path / "run")
    state, record = state_of(tmp_path / "run", round), RunFolder(tmp_path / "run").read_rounds()[round - 1]
    clients = [each["client"] for each in record["clients"]]
    assert len(clients) == 3, "three of four"
    for found, expected in zip(running(state), plain_moments(spec, state, clients, round), strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)
    sums = 2 * 8 + (2 * 8 + 2 * 6) * 8  # two counts, two sums of each channel, in float64
    assert record["revision_bytes"] == 3 * (num_bytes(state.model.tensors) + sums)


def test_moments_at_the_end_are_all_clients_and_change_no_weight(tmp_path):
    spec = with_buffers("reestimated-at-end")
    run(spec, tmp_path / "end")
    run(SPEC, tmp_path / "average")
    for round in (1, 2, 3):
        end, average = (state_of(tmp_path / name, round) for name in ("end", "average"))
        assert same(end.parameters, average.parameters)
        assert same(end.buffers, average.buffers) == (round < 3)
    for found, expected in zip(running(end), plain_moments(spec, end, range(4), 3), strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)
    said = [record.get("revision_bytes", 0) for record in RunFolder(tmp_path / "end").read_rounds()]
    assert said[:2] == [0, 0]
    assert said[2] > 0


def test_a_calibrated_head_is_sent_on(tmp_path):
    """After two rounds the head is the one that a run of two rounds ends with; the third round starts from it."""
    two = replace(SPEC, training=replace(SPEC.training, rounds=2))
    results = run(two, tmp_path / "two")
    run(every(2), tmp_path / "every")
    run(SPEC, tmp_path / "never")
    state, before = state_of(tmp_path / "every", 2), state_of(tmp_path / "two", 2)
    lda = read_head(RunFolder(tmp_path / "two").head("lda"))
    assert torch.equal(state.parameters["head.weight"], lda.weight)
    assert torch.equal(state.parameters["head.bias"], lda.bias)
    assert not torch.equal(lda.weight, before.parameters["head.weight"])
    body = [name for name in before.parameters if not name.startswith("head.")]
    assert body
    assert all(torch.equal(state.parameters[name], before.parameters[name]) for name in body)
    rounds = RunFolder(tmp_path / "every").read_rounds()
    assert rounds[1]["accuracy"] == pytest.approx(results["accuracy"]["lda"], abs=1e-3)
    moved = 4 * num_bytes(state.model.tensors) + results["calibrations"]["lda"]["bytes"]
    assert [record.get("revision_bytes", 0) for record in rounds] == [0, moved, 0], "not after the last round"
    last, other = (state_of(tmp_path / name, 3).parameters for name in ("every", "never"))
    assert not any(torch.equal(last[name], other[name]) for name in body if "weight" in name)


@pytest.mark.parametrize(
    "spec",
    [with_buffers("reestimated"), every(1, between="ccvr,num_virtual=20,epochs=1"), every(1, between="lda")],
    ids=["buffers", "ccvr", "lda"],
)
def test_the_bits_are_those_of_any_number_of_workers_and_of_a_resumed_run(spec, tmp_path):
    run(spec, tmp_path / "whole")
    run(replace(spec, workers=2), tmp_path / "two")
    events = start(spec, tmp_path / "parts")
    for event in events:
        if isinstance(event, RoundDone) and event.round == 2:
            events.close()
            break
    list(resume(RunFolder(tmp_path / "parts")))
    whole = state_of(tmp_path / "whole", 3)
    for name in ("two", "parts"):
        other = state_of(tmp_path / name, 3)
        assert same(whole.parameters, other.parameters)
        assert same(whole.buffers, other.buffers)


@dataclass(frozen=True)
class Own(Algorithm):
    """Each client keeps some tensors."""

    kept: str = "head."

    def is_private(self, name):
        return name.startswith(self.kept)


AT_END = with_buffers("reestimated-at-end")
PLAIN = replace(SPEC, model=ModelSpec(name="digits-cnn"))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (replace(PLAIN, training=replace(PLAIN.training, buffers="reestimated")), "and the model has none. Leave it"),
        (
            replace(SPEC, training=replace(AT_END.training, algorithm=f"{__name__}:Own,kept=backbone.model.2")),
            "and its moments stay with the clients",
        ),
        (every(2, between="oracle"), '"oracle" takes raw features. Set calibration.between, for example lda'),
        (every(2, methods=("ccvr,transform=tukey:0.5",)), r'transforms features \("tukey:0.5"\)'),
        (every(2, between="lda,taps=auto"), '"lda,taps=auto" reads several layers'),
        (every(2, between="kernel"), '"kernel" reads several layers'),
        (replace(every(2), training=replace(SPEC.training, algorithm=f"{__name__}:Own")), "the head stays with the"),
    ],
)
def test_what_has_no_meaning_is_refused_before_anything_is_made(spec, words, tmp_path):
    with pytest.raises(SpecError, match=words):
        list(start(spec, tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("fields", "words"), [({"every": -1}, "is -1; give 0"), ({"every": 1, "methods": ()}, "no method")]
)
def test_impossible_fields(fields, words):
    with pytest.raises(SpecError, match=words):
        CalibrationSpec(**fields)


def test_a_head_of_another_kind_ends_the_run_in_one_line(tmp_path):
    spec = replace(every(1), training=replace(SPEC.training, clsnorm=True))
    with pytest.raises(TrainingError, match="after round 1 is linear, and the trained one normed"):
        list(start(spec, tmp_path / "run"))


def test_a_run_with_other_revisions_is_another_training(tmp_path):
    run(SPEC, tmp_path / "run")
    with pytest.raises(RunError, match=r"holds a run with calibration.every = 0, not 2"):
        list(run_or_resume(every(2), tmp_path / "run"))
    list(run_or_resume(replace(SPEC, calibration=replace(SPEC.calibration, between="ridge")), tmp_path / "run"))
