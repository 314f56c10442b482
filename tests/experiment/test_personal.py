"""Each client's own model, and samples that the server has without labels."""

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from ccvr.algorithms.algorithm import Algorithm
from ccvr.algorithms.messages import ModelState
from ccvr.core.errors import SpecError, TrainingError
from ccvr.core.run import RunFolder
from ccvr.data.samples import Dataset, Samples
from ccvr.data.spec import DataSpec, PartitionSpec
from ccvr.experiment.cost import estimate
from ccvr.experiment.events import Noted
from ccvr.experiment.pipeline import run, start
from ccvr.experiment.setup import prepare
from ccvr.experiment.train import newest_state
from ccvr.inspection.analyze import analyze
from ccvr.training.client_state import ClientStates
from tests.end_to_end.tiny import TINY


@dataclass(frozen=True)
class OwnHead(Algorithm):
    """Each client keeps a head."""

    def is_private(self, name):
        return name.startswith("head.")


TRAINING = replace(TINY.training, algorithm=f"{__name__}:OwnHead")
SPEC = replace(TINY, training=TRAINING, calibration=replace(TINY.calibration, methods=("lda",)))


def test_personal_accuracy_is_that_of_the_global_body_under_each_client_s_head(tmp_path):
    results = run(SPEC, tmp_path / "run")
    setup, states = prepare(SPEC), ClientStates(RunFolder(tmp_path / "run").client_states)
    state = newest_state(RunFolder(tmp_path / "run"), SPEC)
    model, found = setup.fresh_model().eval(), []
    assert set(state.client_rounds) == set(range(4)), "with three of four clients a round, all have trained"
    test = setup.dataset.test
    for client, mix in enumerate(setup.label_counts):
        kept = states.read(client, state.client_rounds[client])
        private = {name.removeprefix("private/"): tensor for name, tensor in kept.items()}
        assert set(private) == {"head.weight", "head.bias"}
        model.load_state_dict({**state.parameters, **state.buffers, **private})
        with torch.no_grad():
            hits = (model(test.inputs).argmax(1) == test.labels).double()
        weight = torch.from_numpy(mix / np.bincount(test.labels, minlength=10))[test.labels]
        found.append(100 * (weight @ hits / weight.sum()).item())
    expected = {"mean": np.mean(found), "worst": min(found), "p10": np.percentile(found, 10)}
    row = results["personal"]["trained"]
    assert (row["method"], row["options"], row["head"]) == (SPEC.training.algorithm, {}, "uncalibrated")
    assert row["clients"] == pytest.approx(found, abs=1e-4)
    assert row["accuracy"] == pytest.approx(expected, abs=1e-4)
    assert row["accuracy"]["mean"] > results["client_accuracy"]["uncalibrated"]["mean"]
    assert json.loads((tmp_path / "run" / "results.json").read_text()) == results


def test_own_models_need_no_held_out_samples(tmp_path):
    events = list(start(replace(SPEC, data=DataSpec()), tmp_path / "run"))
    notes = [event.text for event in events if isinstance(event, Noted)]
    assert any("has those of the start" in note for note in notes)
    assert "trained" in events[-1].results["personal"]


@pytest.mark.parametrize(("fraction", "took_part"), [(0.25, "1 of 4 clients took part"), (1.0, "")])
def test_who_never_took_part_is_said(fraction, took_part, tmp_path):
    training = replace(TRAINING, client_fraction=fraction, rounds=1)
    events = list(start(replace(SPEC, training=training), tmp_path / "run"))
    notes = [event.text for event in events if isinstance(event, Noted) and "took part" in event.text]
    assert [note.partition(" in training;")[0] for note in notes] == ([took_part] if took_part else [])
    assert all(note.endswith("are as they were built, and their own models count all the same") for note in notes)


@pytest.mark.parametrize("algorithm", ["fedavg", "ifca", "per-fedavg"])
def test_who_has_a_model_of_its_own(algorithm, tmp_path):
    events = list(start(replace(SPEC, training=replace(TRAINING, algorithm=algorithm)), tmp_path / "run"))
    notes = [event.text for event in events if isinstance(event, Noted)]
    assert ("personal" in events[-1].results) == (algorithm != "fedavg")
    sizes = [each.get("cluster_sizes") for each in RunFolder(tmp_path / "run").read_rounds()]
    assert all(sum(each) == 3 for each in sizes) if algorithm == "ifca" else set(sizes) == {None}
    assert any("cluster_sizes after the last round" in note for note in notes) == (algorithm == "ifca")


@dataclass(frozen=True)
class AllOwn(Algorithm):
    def is_private(self, name):
        return True


@dataclass(frozen=True)
class ModelAlone(Algorithm):
    def aggregate(self, before, results, state, server):
        return server.average(results)


@dataclass(frozen=True)
class Forgets(Algorithm):
    def aggregate(self, before, results, state, server):
        made = server.average(results)
        return ModelState({n: w for n, w in made.parameters.items() if n.startswith("head.")}, made.buffers), state


@dataclass(frozen=True)
class Builds(Algorithm):
    """Remembers what a model that the server builds is like, before and after the results."""

    def is_private(self, name):
        return name.startswith("head.")

    def aggregate(self, before, results, state, server):
        first = server.build().head.weight.detach().clone()
        made = server.average(results)
        return made, {
            **state,
            f"{server.round}-before": first,
            f"{server.round}-after": server.build().head.weight.data,
        }


@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_server_builds_is_the_model_at_the_start(workers, tmp_path):
    training = replace(TRAINING, algorithm=f"{__name__}:Builds", rounds=2)
    spec = replace(SPEC, training=training, workers=workers)
    run(spec, tmp_path / "run")
    state, head = newest_state(RunFolder(tmp_path / "run"), spec), prepare(spec).fresh_model().head.weight
    assert len(state.server) == 4
    assert all(torch.equal(tensor, head) for tensor in state.server.values())


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("AllOwn", SpecError, "keeps every parameter with its clients"),
        ("Forgets", TrainingError, "gave backbone.* as None; sent was .*Return the tensors that were sent"),
        ("ModelAlone", TrainingError, "gave a ModelState; return a ModelState and a dict of tensors"),
    ],
)
def test_algorithms_that_cannot_be(name, error, message, tmp_path):
    spec = replace(SPEC, training=replace(TRAINING, algorithm=f"{__name__}:{name}"))
    with pytest.raises(error, match=message):
        run(spec, tmp_path / "run")


def test_the_cost_counts_what_is_sent():
    private, public = (
        estimate(replace(SPEC, training=replace(TRAINING, algorithm=each))) for each in (TRAINING.algorithm, "fedavg")
    )
    head = 4 * 10 * (64 + 1)
    assert public.traffic_bytes - private.traffic_bytes == 2 * head * 3 * TRAINING.rounds


def test_norms_of_heads_that_stay_with_clients_are_left_out(tmp_path):
    run(SPEC, tmp_path / "run")
    (done,) = analyze(RunFolder(tmp_path / "run", trust=True), ["norms"])
    assert done.headline.startswith("spread of row norms: uncalibrated")


def test_local_models_of_an_analysis_have_the_tensors_that_stayed_with_their_clients(tmp_path):
    run(SPEC, tmp_path / "run")
    (done,) = analyze(RunFolder(tmp_path / "run", trust=True), ["cka"])
    assert "mean CKA" in done.headline


class TestUnlabelled:
    def test_a_fraction_is_nobody_s(self):
        spec = replace(TINY, data=DataSpec(validation=0.1, unlabelled="0.2"))
        setup, without = prepare(spec), prepare(replace(spec, data=DataSpec(validation=0.1)))
        owned = np.concatenate([*setup.kept.shards, *setup.held_out.shards])
        total = len(setup.dataset.train)
        assert len(np.unique(owned)) == len(owned) == total - int(0.2 * total)
        aside = np.setdiff1d(np.arange(total), owned)
        assert torch.equal(setup.unlabelled, setup.dataset.train.inputs[aside])
        labels = setup.dataset.train.labels[aside].bincount() / setup.dataset.train.labels.bincount()
        assert (labels - 0.2).abs().max() < 0.01, "each class gives its share"
        assert without.unlabelled is None
        assert torch.equal(prepare(spec).unlabelled, setup.unlabelled)

    def test_a_folder_is_found_from_elsewhere(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        anchored = DataSpec(name="folder:a", unlabelled="folder:b").anchored()
        assert (anchored.name, anchored.unlabelled) == (f"folder:{tmp_path}/a", f"folder:{tmp_path}/b")

    def test_another_data_set(self):
        setup = prepare(replace(TINY, data=DataSpec(unlabelled=f"{__name__}:grey")))
        assert torch.equal(setup.unlabelled, grey(None).train.inputs)
        assert sum(map(len, setup.kept.shards)) == len(setup.dataset.train)

    def test_the_data_set_of_the_run_is_refused(self):
        with pytest.raises(SpecError, match=r'data.unlabelled is "digits", whose samples train and validate.'):
            prepare(replace(TINY, data=DataSpec(unlabelled="digits")))

    def test_one_of_another_shape(self):
        with pytest.raises(SpecError) as refused:
            prepare(replace(TINY, data=DataSpec(unlabelled=f"{__name__}:vectors")))
        assert str(refused.value) == (
            f'data.unlabelled is "{__name__}:vectors", whose samples are float32 [1, 5]; those of "digits" are '
            "uint8 [1, 1, 8, 8]. Choose a data set of the same shape."
        )

    @pytest.mark.parametrize("given", ["1", "-0.1", "nan", "inf", "1e9"])
    def test_what_is_no_fraction(self, given):
        with pytest.raises(SpecError, match=r"data.unlabelled is .*; give a fraction below 1, or a data set's name."):
            DataSpec(unlabelled=given)

    def test_none_is_left_out(self):
        with pytest.raises(SpecError, match=r"data.unlabelled is 0.0; leave it out for none."):
            DataSpec(unlabelled="0.0")

    def test_too_small_a_fraction(self):
        with pytest.raises(SpecError, match="which is none of 1442 samples"):
            prepare(replace(TINY, data=DataSpec(unlabelled="0.0001"), partition=PartitionSpec(num_clients=2)))


def vectors(root):
    part = Samples(torch.zeros(4, 5), torch.tensor([0, 1, 0, 1]))
    return Dataset(part, part, ("a", "b"))


def grey(root):
    part = Samples(torch.full((4, 1, 8, 8), 7, dtype=torch.uint8), torch.tensor([0, 1, 0, 1]))
    return Dataset(part, part, ("a", "b"))
