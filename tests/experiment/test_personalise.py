"""Clients of a finished run make models of their own."""

import json
import re
import shutil
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn

from ccvr.calibration.methods import parse_calibration
from ccvr.core.errors import CalibrationError, RunError, SpecError, TrainingError, UnknownName
from ccvr.core.results import personal_rows
from ccvr.core.run import RunFolder
from ccvr.data.spec import DataSpec
from ccvr.experiment.engine import LocalEngine
from ccvr.experiment.events import ClientScored, Finished, Noted
from ccvr.experiment.finished_run import open_finished_run
from ccvr.experiment.load import load
from ccvr.experiment.personalisations import PERSONALISATIONS, Prior, parse_personalisations
from ccvr.experiment.personalise import personalise_run
from ccvr.experiment.pipeline import calibrate_again, run
from ccvr.models.split import SplitModel
from ccvr.training.client_state import ClientStates
from ccvr.training.personalisation import Finetune, Personalisation
from tests.end_to_end.tiny import TINY

FEDAVG = replace(
    TINY,
    data=DataSpec(shared=0.05),
    training=replace(TINY.training, algorithm="fedavg", rounds=2),
    calibration=replace(
        TINY.calibration, methods=("lda", "lda,priors=counts,label=counted", "ridge", "oracle,epochs=1")
    ),
)
ME = __name__


@pytest.fixture(scope="module")
def fedavg(tmp_path_factory):
    path = tmp_path_factory.mktemp("fedavg") / "run"
    run(FEDAVG, path)
    return path


@pytest.fixture(scope="module")
def fedper(tmp_path_factory):
    path = tmp_path_factory.mktemp("fedper") / "run"
    training = replace(FEDAVG.training, algorithm="fedper", client_fraction=1.0)
    run(replace(FEDAVG, training=training, data=DataSpec()), path)
    return path


@pytest.fixture
def own(fedavg, tmp_path):
    return RunFolder(shutil.copytree(fedavg, tmp_path / "own"))


@pytest.fixture
def private(fedper, tmp_path):
    return RunFolder(shutil.copytree(fedper, tmp_path / "private"))


def personalise(folder, *methods, **options):
    return list(personalise_run(folder, parse_personalisations(methods), **options))


def mixed(hits, labels, mix):
    """Accuracy of single test samples under a label mix, sample by sample."""
    weight = torch.from_numpy(mix / np.maximum(np.bincount(labels, minlength=len(mix)), 1))[labels]
    return 100 * (weight @ hits.double() / weight.sum()).item()


def assert_scores(row, found):
    assert row["clients"] == pytest.approx(found, abs=1e-4)
    expected = {"mean": np.mean(found), "worst": min(found), "p10": np.percentile(found, 10)}
    assert row["accuracy"] == pytest.approx(expected, abs=1e-4)


PRIORS = {
    "lda": lambda opened: np.ones(10),
    "counted": lambda opened: opened.setup.label_counts.sum(0),
    "oracle": lambda opened: opened.setup.label_counts.sum(0),
    "uncalibrated": lambda opened: sum(
        np.bincount(opened.setup.dataset.train.labels[shard], minlength=10) for shard in opened.setup.trained_on
    ),
}


@pytest.mark.parametrize("head", PRIORS)
def test_prior_adds_the_logarithms_to_the_scores_of_the_head(head, own):
    *_, finished = personalise(own, "prior,smoothing=2", head=head)
    row = finished.results["personal"]["prior"]
    assert (row["method"], row["options"], row["head"]) == ("prior", {"smoothing": 2.0}, head)
    opened = open_finished_run(own)
    test, counts = opened.setup.dataset.test, opened.setup.label_counts
    pi = PRIORS[head](opened) / PRIORS[head](opened).sum()
    scores = load(own.path, head=head)(test.inputs).detach().double().numpy()
    found = []
    for n in counts:
        mix = (n + 2 * 10 * pi) / (n.sum() + 2 * 10)
        hits = torch.from_numpy((scores + np.log(mix) - np.log(pi)).argmax(1) == test.labels.numpy())
        found.append(mixed(hits, test.labels, n))
    assert_scores(row, found)
    assert row["accuracy"]["mean"] > finished.results["client_accuracy"][head]["mean"]
    assert own.read_results() == finished.results


STARTS = []


@dataclass(frozen=True)
class Told(Personalisation):
    """Remembers what it was told."""

    def personalise(self, start):
        STARTS.append(start)
        return start.model


def test_what_a_method_is_told(own):
    """Accuracies on digits, where all classes are nearly as frequent, would not show a wrong prior."""
    opened = open_finished_run(own)
    setup, told = opened.setup, {}
    for head in [*PRIORS, "ridge"]:
        STARTS.clear()
        personalise(own, f"{ME}:Told,label=told-{head}", head=head)
        for client, start in enumerate(STARTS):
            assert (start.client.id, start.round, start.seed, start.spec) == (client, 3, FEDAVG.seed, FEDAVG.training)
            assert np.array_equal(start.client.indices, setup.kept.shards[client]), "without what all share"
            assert np.array_equal(start.label_counts, setup.label_counts[client])
        (told[head],) = {None if start.prior is None else tuple(start.prior.tolist()) for start in STARTS}
    assert told == {**{head: tuple(prior(opened)) for head, prior in PRIORS.items()}, "ridge": None}
    assert len(set(told.values())) == 4, "the trained head saw shared samples once for each client"


@pytest.mark.parametrize("epochs", [1, 2])
def test_finetune_is_one_more_round_of_each_client_on_its_own_samples(epochs, own, monkeypatch):
    """On a run by FedAvg, against what an analysis trains; and the global model, which is not asked, stays."""
    opened = open_finished_run(own)
    before = own.model.read_bytes(), own.checkpoint(2).read_bytes()
    *_, finished = personalise(own, f"finetune,epochs={epochs}")
    row = finished.results["personal"]["finetune"]
    assert (row["options"], row["head"]) == ({"epochs": epochs, "scope": "all"}, "uncalibrated")
    spec = replace(FEDAVG, training=replace(FEDAVG.training, local_epochs=epochs))
    engine = LocalEngine(replace(opened.setup, spec=spec, shared=np.empty(0, np.int64)))
    test, model, found = opened.setup.dataset.test, opened.setup.fresh_model().eval(), []
    states = ClientStates(own.client_states)
    for client, tensors in enumerate(engine.local_models(opened.state, range(4), states=states)):
        model.load_state_dict(tensors)
        with torch.no_grad():
            hits = model(test.inputs).argmax(1) == test.labels
        found.append(mixed(hits, test.labels, opened.setup.label_counts[client]))
    assert_scores(row, found)
    assert before == (own.model.read_bytes(), own.checkpoint(2).read_bytes())


def test_events_and_provenance(own):
    events = personalise(own, "prior")
    assert [event for event in events if isinstance(event, ClientScored)] == [
        ClientScored("prior", done, 4) for done in (1, 2, 3, 4)
    ]
    assert re.fullmatch(r"prior: each client's own model under its label mix: mean .*, \d+\.\d s", events[-2].text)
    assert isinstance(events[-1], Finished)
    (noted,) = json.loads(own.provenance.read_text())["personalised"]
    assert noted["seed"] == FEDAVG.seed


def test_what_is_finished_is_kept_and_the_same_command_goes_on(own, tmp_path):
    whole = RunFolder(shutil.copytree(own.path, tmp_path / "whole"))
    texts = ("finetune,epochs=1", "finetune,epochs=1,scope=head,label=head", "prior")
    *_, expected = personalise(whole, *texts)
    events = personalise_run(own, parse_personalisations(texts))
    for event in events:
        if isinstance(event, ClientScored) and event.label == "head":
            break
    events.close()  # as a kill in the midst of the second method
    assert list(own.read_results()["personal"]) == ["finetune"]
    again = personalise(own, *texts)
    notes = [event.text for event in again if isinstance(event, Noted)]
    assert notes[0] == "finetune is there already, made in the same way"
    assert {event.label for event in again if isinstance(event, ClientScored)} == {"head", "prior"}
    assert again[-1] == expected
    assert own.results.read_bytes() == whole.results.read_bytes()
    stamp = own.results.stat().st_mtime_ns
    *_, unchanged = personalise(own, *texts)
    assert (unchanged, own.results.stat().st_mtime_ns) == (expected, stamp)


def test_a_label_that_is_taken(own):
    personalise(own, "prior")
    before = own.results.read_bytes()
    for texts, options in [(["finetune", "prior,smoothing=3"], {}), (["prior"], {"head": "uncalibrated"})]:
        with pytest.raises(RunError, match=r'has "prior" already, made in another way. Use --overwrite, or --method'):
            personalise(own, *texts, **options)
    assert own.results.read_bytes() == before, "before anything is done"
    *_, finished = personalise(own, "prior,smoothing=3", overwrite=True)
    assert finished.results["personal"]["prior"]["options"] == {"smoothing": 3.0}


def test_own_models_of_a_head_that_is_fitted_again_are_dropped(own):
    personalise(own, "prior", "prior,label=ours")
    personalise(own, "prior,label=counted", head="counted")
    events = list(calibrate_again(own, [parse_calibration("lda,shrinkage=oas")], overwrite=True))
    text = 'prior, ours of the earlier head "lda" is dropped; `ccvr personalise` makes it again'
    assert text in [event.text for event in events if isinstance(event, Noted)]
    assert list(own.read_results()["personal"]) == ["counted"]


class TestOwnModelsOfTheAlgorithm:
    def test_finetune_goes_on_from_them(self, private):
        """Each client's head is its own: the global one is that of the start."""
        before = private.read_results()["personal"]["trained"]
        *_, finished = personalise(private, f"{ME}:Unchanged", "finetune,epochs=1")
        rows = finished.results["personal"]
        assert list(rows) == ["trained", "Unchanged", "finetune"]
        assert (rows["Unchanged"]["clients"], rows["Unchanged"]["accuracy"]) == (before["clients"], before["accuracy"])
        assert rows["finetune"]["clients"] != before["clients"]
        assert rows["trained"] == before

    def test_a_calibrated_head_stands_on_the_global_backbone(self, private):
        *_, finished = personalise(private, f"{ME}:Unchanged", head="lda")
        assert finished.results["personal"]["Unchanged"]["accuracy"] == finished.results["client_accuracy"]["lda"]

    def test_prior_of_a_head_that_is_the_client_s_own(self, private):
        words = 'start from the head "uncalibrated" of each client\'s own model: its scores are not log-probabilities'
        with pytest.raises(CalibrationError, match=f"{words} .* Start from a calibrated head, .* with --head"):
            personalise(private, "prior", head="uncalibrated")

    @pytest.mark.parametrize("algorithm", ["lg-fedavg", "ifca", "per-fedavg"])
    def test_prior_of_a_model_that_is_the_client_s_own(self, algorithm, tmp_path):
        """The global head is averaged, but not what stands below it, or a client takes one step more."""
        training = replace(FEDAVG.training, algorithm=algorithm, rounds=1)
        calibration = replace(FEDAVG.calibration, methods=("lda",))
        run(replace(FEDAVG, training=training, calibration=calibration), tmp_path / "run")
        folder = RunFolder(tmp_path / "run")
        with pytest.raises(CalibrationError, match=r"of each client's own model: .* Start from a calibrated head"):
            personalise(folder, "prior", head="uncalibrated")
        assert list(folder.read_results()["personal"]) == ["trained"]
        *_, finished = personalise(folder, "prior")
        assert finished.results["personal"]["prior"]["head"] == "lda"

    def test_scores_of_old_versions_are_kept(self, private):
        results = private.read_results()
        old = results.pop("personal")["trained"]["accuracy"]
        private.write_results({**results, "personal_accuracy": old})
        *_, finished = personalise(private, "prior")
        assert "personal_accuracy" not in finished.results
        assert list(finished.results["personal"]) == ["trained", "prior"]
        assert personal_rows(finished.results)["trained"]["accuracy"] == old

    def test_on_flower_they_stayed_with_the_clients(self, private):
        private.spec.write_text(private.spec.read_text().replace('engine = "local"', 'engine = "flower"'))
        before = private.results.read_bytes()
        with pytest.raises(RunError, match=r"ran on Flower: what its clients kept .* Start from a calibrated head"):
            personalise(private, "finetune")
        assert private.results.read_bytes() == before
        personalise(private, "prior")

    def test_a_run_on_flower_without_them(self, own):
        own.spec.write_text(own.spec.read_text().replace('engine = "local"', 'engine = "flower"'))
        *_, finished = personalise(own, "finetune,epochs=1")
        assert list(finished.results["personal"]) == ["finetune"]


@dataclass(frozen=True)
class Unchanged(Personalisation):
    """The model that a client starts from. It breaks what it was given: no other client may see that."""

    from_trained = True

    def personalise(self, start):
        assert start.model.training
        assert all(parameter.requires_grad and parameter.any() for parameter in start.model.parameters())
        model = SplitModel(start.model.normalize, start.model.backbone, start.model.head)
        kept = nn.Sequential(model).requires_grad_(False)
        start.model.head = None
        return kept


@dataclass(frozen=True)
class FewScores(Personalisation):
    def personalise(self, start):
        return nn.Sequential(start.model, nn.Linear(10, 3))


@dataclass(frozen=True)
class NoScores(Personalisation):
    def personalise(self, start):
        return NoTensor(start.model)


class NoTensor(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return [self.model(x)]


def test_models_of_a_user_s_own_that_give_no_scores(own):
    with pytest.raises(
        TrainingError, match=r"gives scores of shape \[1, 3\] for one sample; it must give scores \[1, 10\]"
    ):
        personalise(own, f"{ME}:FewScores")
    with pytest.raises(TrainingError, match=r"gives a list for one sample; it must give scores \[1, 10\]"):
        personalise(own, f"{ME}:NoScores")
    assert "personal" not in own.read_results()


@pytest.mark.parametrize(
    ("texts", "head", "error", "message"),
    [
        (["prior"], "ccvr", RunError, r'has no head "ccvr". It has: uncalibrated, lda, counted, ridge, oracle.'),
        (
            ["finetune", "prior,label=mix"],
            "ridge",
            CalibrationError,
            'mix cannot start from the head "ridge": its scores are not log-probabilities under label frequencies',
        ),
    ],
)
def test_heads_that_cannot_be_started_from(texts, head, error, message, own):
    before = own.results.read_bytes(), own.provenance.read_bytes()
    with pytest.raises(error, match=message):
        personalise(own, *texts, head=head)
    assert before == (own.results.read_bytes(), own.provenance.read_bytes())


@pytest.mark.parametrize(
    ("texts", "error", "message"),
    [
        (["priors"], UnknownName, 'no personalisation "priors". Did you mean "prior"? Known: finetune, prior.'),
        (["prior", "prior"], SpecError, 'two personalisations are labelled "prior". Give each its own with label=….'),
        (["prior,smoothing=0"], SpecError, "prior: smoothing is 0.0; give a number above 0."),
        (["prior,smoothing=nan"], SpecError, "prior: smoothing is nan; give a number above 0."),
        (["finetune,epochs=1.5"], SpecError, 'finetune: epochs is "1.5"; give a whole number.'),
        (["finetune,scope=body"], SpecError, "finetune: scope is 'body'; give one of all, head."),
        (["finetune,rate=1"], SpecError, 'finetune has no option "rate". Known: epochs, label, lr, scope.'),
        (
            ["prior,label=trained"],
            SpecError,
            'personalisation label "trained" is not usable; use at most 100 letters, digits and . _ + -, not a dot '
            "first, not trained.",
        ),
        (
            [f"{ME}:NoTensor"],
            SpecError,
            f'personalisation "{ME}:NoTensor" is not a dataclass derived from Personalisation. Write it so '
            "(docs/extending.md).",
        ),
    ],
)
def test_methods_that_cannot_be(texts, error, message):
    with pytest.raises(error) as refused:
        parse_personalisations(texts)
    assert str(refused.value) == message


@dataclass(frozen=True)
class Listed(Unchanged):
    """An option that JSON has in another form."""

    sizes: tuple[int, ...] = (1, 2)


def test_options_that_json_has_in_another_form_are_known_again(own):
    personalise(own, f"{ME}:Listed")
    assert own.read_results()["personal"]["Listed"]["options"] == {"sizes": [1, 2]}
    assert personalise(own, f"{ME}:Listed")[0] == Noted("Listed is there already, made in the same way")


def test_the_table():
    assert dict(PERSONALISATIONS) == {"finetune": Finetune, "prior": Prior}
    (found,) = parse_personalisations([f"{ME}:Unchanged,label=same"])
    assert (found.label, found.method, found.options) == ("same", Unchanged(), {})
