"""Between rounds: re-estimated moments of normalisation, and calibrated heads that training goes on from."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from ccvr.algorithms.algorithm import Algorithm
from ccvr.calibration.calibrator import Calibrator
from ccvr.calibration.spec import CalibrationSpec
from ccvr.core.errors import CalibrationError, RunError, SpecError, TrainingError
from ccvr.core.run import RunFolder
from ccvr.core.seeds import stream
from ccvr.data.batches import TrainingSamples, epoch
from ccvr.experiment.cost import estimate
from ccvr.experiment.events import RoundDone
from ccvr.experiment.load import read_head
from ccvr.experiment.pipeline import resume, run, start
from ccvr.experiment.revise import at_scale_of
from ccvr.experiment.run_or_resume import run_or_resume
from ccvr.experiment.setup import prepare
from ccvr.experiment.spec import CheckpointSpec
from ccvr.models.build import ModelSpec
from ccvr.models.heads import LinearHead
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
    """After two rounds the head is the one that a run of two rounds ends with, at the trained one's scale.

    The third round starts from it.
    """
    two = replace(SPEC, training=replace(SPEC.training, rounds=2))
    results = run(two, tmp_path / "two")
    run(every(2), tmp_path / "every")
    run(SPEC, tmp_path / "never")
    state, before = state_of(tmp_path / "every", 2), state_of(tmp_path / "two", 2)
    lda = read_head(RunFolder(tmp_path / "two").head("lda"))
    trained = before.parameters["head.weight"]
    scale = trained.norm() / lda.weight.norm()
    assert scale < 0.5, "closed forms have a scale of their own"
    torch.testing.assert_close(state.parameters["head.weight"], scale * lda.weight)
    torch.testing.assert_close(state.parameters["head.bias"], scale * lda.bias)
    assert state.parameters["head.weight"].norm().item() == pytest.approx(trained.norm().item(), rel=1e-6)
    sent, inputs = state.load_into(prepare(two).fresh_model()).eval(), prepare(two).dataset.test.inputs
    assert torch.equal(sent(inputs).argmax(1), sent.with_head(lda)(inputs).argmax(1))
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
    list(resume(RunFolder(tmp_path / "parts", trust=True)))
    whole = state_of(tmp_path / "whole", 3)
    for name in ("two", "parts"):
        other = state_of(tmp_path / name, 3)
        assert same(whole.parameters, other.parameters)
        assert same(whole.buffers, other.buffers)


@pytest.mark.parametrize("between", ["lda", "ncm"])
def test_training_goes_on_from_heads_of_any_scale(between, tmp_path):
    model = ModelSpec(name="digits-cnn")
    spec = replace(every(2, between=between), model=model, training=replace(SPEC.training, rounds=6, local_epochs=3))
    results = run(spec, tmp_path / "run")
    assert results["accuracy"]["uncalibrated"] > 75, "chance is 10"
    norms = [state_of(tmp_path / "run", round).parameters["head.weight"].norm().item() for round in range(1, 7)]
    assert max(norms) < 2 * min(norms)


def test_the_scale_of_a_head():
    trained, rng = torch.full((2, 2), 3.0), torch.Generator().manual_seed(0)
    head = {"weight": 1e6 * torch.randn(2, 2, generator=rng), "bias": torch.tensor([1e5, 0.0])}
    found = at_scale_of(trained, head)
    assert found["weight"].norm().item() == pytest.approx(6)
    ratios = torch.cat([head["weight"].flatten() / found["weight"].flatten(), head["bias"][:1] / found["bias"][:1]])
    torch.testing.assert_close(ratios, ratios[:1].expand(5))
    zeros = {"weight": torch.zeros(2, 2), "bias": torch.ones(2)}
    assert at_scale_of(trained, zeros) is zeros
    assert at_scale_of(zeros["weight"], head) is head


@dataclass(frozen=True, kw_only=True)
class Fails(Calibrator):
    """Never finds enough."""

    def fit(self, head, statistics, *, rng):
        raise CalibrationError("there is too little.")


def test_a_calibration_that_fails_is_named(tmp_path):
    text = rf'the calibration after round 2 failed \(calibration.between, "{__name__}:Fails"\): there is too little.'
    with pytest.raises(CalibrationError, match=text):
        run(every(2, between=f"{__name__}:Fails"), tmp_path / "run")


@dataclass(frozen=True)
class Own(Algorithm):
    """Each client keeps some tensors."""

    kept: str = "head."

    def is_private(self, name):
        return name.startswith(self.kept)


@dataclass(frozen=True)
class Named(Algorithm):
    """Each client keeps a tensor that its name does not tell."""

    def private_names(self, model):
        return frozenset(["backbone.model.5.running_mean"])


def without_bias(image_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, num_classes, bias=False))


def by(spec, algorithm, **changes):
    return replace(spec, training=replace(spec.training, algorithm=algorithm, **changes))


AT_END = with_buffers("reestimated-at-end")
PLAIN = replace(SPEC, model=ModelSpec(name="digits-cnn"))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (replace(PLAIN, training=replace(PLAIN.training, buffers="reestimated")), "and the model has none. Leave it"),
        (
            replace(SPEC, training=replace(AT_END.training, algorithm=f"{__name__}:Own,kept=backbone.model.2")),
            'backbone.model.2" its moments stay with the clients',
        ),
        (every(2, between="oracle"), '"oracle" takes raw features. Set calibration.between, for example lda'),
        (every(2, methods=("ccvr,transform=tukey:0.5",)), r'transforms features \("tukey:0.5"\)'),
        (every(2, between="lda,taps=auto"), '"lda,taps=auto" reads several layers'),
        (every(2, between="kernel"), '"kernel" reads several layers'),
        *[
            (by(every(2), name, server=server), f'calibration.every is 2, and with "{name}" some tensors stay with')
            for name in (f"{__name__}:Own", f"{__name__}:Named", "fedper", "lg-fedavg", "fedbn")
            for server in ("", "fedadam")
        ],
        (by(every(2), "fedrep", local_epochs=2), "some tensors stay with the clients. Leave it out"),
        (by(every(2), "fedbabu"), 'with "fedbabu" the head is not trained. Leave it out'),
        (by(every(2), "fedbabu", server="fedavgm"), 'with "fedbabu" the head is not trained. Leave it out'),
        (by(every(2), "ifca"), 'with "ifca" there are several models, not one. Leave it out'),
        (by(with_buffers("reestimated"), "fedbn"), 'with "fedbn" its moments stay with the clients. Leave it out'),
        (by(AT_END, f"{__name__}:Named"), "its moments stay with the clients. Leave it out"),
        (by(AT_END, "ifca"), '"ifca" has several models, not one. Leave it out'),
        (by(SPEC, "fedper", clsprox=0.1), 'training.clsprox is 0.1, and with "fedper" the head stays with the clients'),
        (by(SPEC, "fedrep", clsprox=0.1, local_epochs=2), "there is no global one to stay near. Leave it out"),
        (by(SPEC, "fedbabu", clsprox=0.1), 'with "fedbabu" the head is not trained. Leave it out'),
        (by(SPEC, "ifca,clusters=5"), "ifca: clusters is 5, and there are 4 clients. Give at most 4."),
        (by(SPEC, "ifca,clusters=1000000"), "ifca: clusters is 1000000, and there are 4 clients. Give at most 4."),
        (
            by(every(2), "fedavg", clsnorm=True),
            '"lda" gives a linear head, and the trained one is normed. Set calibration.between, for example ccvr.',
        ),
        (
            replace(every(2), model=ModelSpec(name=f"{__name__}:without_bias")),
            '"lda" gives a head with a bias, and the trained one has none. Set calibration.between, for example ccvr.',
        ),
    ],
)
def test_what_has_no_meaning_is_refused_before_anything_is_made(spec, words, tmp_path):
    with pytest.raises(SpecError, match=words) as refused:
        list(start(spec, tmp_path / "run"))
    assert not (tmp_path / "run").exists()
    with pytest.raises(SpecError) as dry:
        estimate(spec)
    assert str(dry.value) == str(refused.value)


@pytest.mark.parametrize(
    "spec",
    [
        by(every(2, between="ccvr,num_virtual=5,epochs=1"), "fedavg", clsnorm=True),
        by(every(2), "fedavg", clsprox=0.1),
        by(SPEC, "lg-fedavg", clsprox=0.1),
        by(SPEC, "ifca,clusters=4", clsprox=0.1),
        by(AT_END, "fedper"),
        by(AT_END, "fedbabu"),
    ],
)
def test_what_has_a_meaning_is_not_refused(spec, tmp_path):
    assert run(by(spec, spec.training.algorithm, rounds=3), tmp_path / "run")["accuracy"]["uncalibrated"] > 0


@pytest.mark.parametrize(
    ("fields", "words"), [({"every": -1}, "is -1; give 0"), ({"every": 1, "methods": ()}, "no method")]
)
def test_impossible_fields(fields, words):
    with pytest.raises(SpecError, match=words):
        CalibrationSpec(**fields)


@dataclass(frozen=True, kw_only=True)
class Linear(Calibrator):
    """Gives another kind of head than it says."""

    def fit(self, head, statistics, *, rng):
        return LinearHead(head.weight, None)


def test_a_head_of_another_kind_ends_the_run_in_one_line(tmp_path):
    spec = replace(every(1, between=f"{__name__}:Linear"), training=replace(SPEC.training, clsnorm=True))
    with pytest.raises(TrainingError, match="after round 1 is linear, and the trained one normed"):
        list(start(spec, tmp_path / "run"))


def test_a_run_with_other_revisions_is_another_training(tmp_path):
    run(SPEC, tmp_path / "run")
    with pytest.raises(RunError, match=r"holds a run with calibration.every = 0, not 2"):
        list(run_or_resume(every(2), tmp_path / "run"))
    list(run_or_resume(replace(SPEC, calibration=replace(SPEC.calibration, between="ridge")), tmp_path / "run"))
