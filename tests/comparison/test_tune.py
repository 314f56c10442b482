"""Hyperparameters are chosen on what was held out, and trained again with all of it."""

import json
from dataclasses import replace

import pytest

from ccvr.comparison.tune import Candidate, Failed, Trying, Tuned, best, folder_name, grid, tune
from ccvr.core.errors import SpecError, TrainingError
from ccvr.core.run import RunFolder
from ccvr.experiment.events import RoundDone
from ccvr.experiment.spec import read_spec
from tests.reproduction.digits import PLAIN

SPEC = replace(PLAIN.spec, training=replace(PLAIN.spec.training, rounds=2, local_epochs=1))


def candidate(value, validation, test=50.0):
    return Candidate({"training.lr": value}, f"lr={value}", validation, test)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    out = tmp_path_factory.mktemp("tuning") / "digits"
    spec, candidates = grid(SPEC, {"training.lr": ["0.0001", "0.05", "1e30"], "seed": ["3"]})
    return out, list(tune(spec, candidates, out))


def test_the_best_on_the_held_out_part_is_trained_again_with_all(tuned):
    out, steps = tuned
    found = steps[-1]
    assert isinstance(found, Tuned)
    scores = {each.values["training.lr"]: each.validation_accuracy for each in found.candidates}
    assert scores[0.05] > scores[0.0001] + 20
    assert found.chosen.values == {"training.lr": 0.05}
    again = read_spec(RunFolder(found.retrained).spec)
    assert (again.training.lr, again.data.validation, again.seed) == (0.05, 0.0, 3)
    assert set(found.results["accuracy"]) == {"uncalibrated", "ccvr", "oracle"}
    for each in found.candidates[:2]:
        folder = RunFolder(out / "candidates" / each.run)
        spec = read_spec(folder.spec)
        assert (spec.data.validation, spec.training.lr, spec.seed) == (0.15, each.values["training.lr"], 3)
        assert folder.read_results()["validation_accuracy"] == {"uncalibrated": each.validation_accuracy}


def test_a_candidate_that_diverges_is_no_candidate(tuned):
    _, steps = tuned
    (failed,) = [step for step in steps if isinstance(step, Failed)]
    assert failed.what == "training.lr 1e+30"
    assert steps[-1].candidates[2].validation_accuracy is None


def test_both_accuracies_are_recorded(tuned):
    out, steps = tuned
    kept = json.loads((out / "tuning.json").read_text())
    assert kept["chosen"] == {"training.lr": 0.05}
    assert [each["validation_accuracy"] for each in kept["candidates"]] == [
        each.validation_accuracy for each in steps[-1].candidates
    ]
    assert kept["retrained"]["accuracy"] == steps[-1].results["accuracy"]
    assert kept["given"]["training"]["rounds"] == 2


def test_what_is_trained_is_not_trained_again(tuned):
    out, steps = tuned
    spec, candidates = grid(SPEC, {"training.lr": ["0.0001", "0.05"], "seed": ["3"]})
    again = list(tune(spec, candidates, out))
    assert not any(isinstance(step, RoundDone) for step in again)
    assert again[-1].chosen == steps[-1].chosen
    assert [step.total for step in again if isinstance(step, Trying)] == [2, 2, 1]


def test_the_test_set_has_no_say():
    assert best([candidate(1, 60.0, test=99.0), candidate(2, 61.0, test=1.0)]).values == {"training.lr": 2}
    assert best([candidate(1, 60.0), candidate(2, 60.0)]).values == {"training.lr": 1}, "of equals the first"
    assert best([candidate(1, None), candidate(2, 0.0)]).values == {"training.lr": 2}
    with pytest.raises(TrainingError, match="no candidate could be trained"):
        best([candidate(1, None)])


def test_every_combination_is_a_candidate():
    spec, candidates = grid(
        SPEC, {"training.lr": ["0.1", "1"], "data.augment": ["true", "false"], "training.rounds": ["7"]}
    )
    assert spec.training.rounds == 7
    assert candidates == [
        {"training.lr": 0.1, "data.augment": True},
        {"training.lr": 0.1, "data.augment": False},
        {"training.lr": 1.0, "data.augment": True},
        {"training.lr": 1.0, "data.augment": False},
    ]


def test_an_unknown_field_suggests_another():
    with pytest.raises(
        SpecError, match=r'^no field "training\.lrr"\. Did you mean "training\.lr"\? Known: calibration\.'
    ):
        grid(SPEC, {"training.lrr": ["1", "2"]})
    with pytest.raises(SpecError, match=r'^"training" is a section\. Give one of its fields: training\.algorithm, '):
        grid(SPEC, {"training": ["1", "2"]})


@pytest.mark.parametrize("algorithm", ["fedavg,mu=0.1", "fedavgm,mu=0.1", "fedprox,temperature=1", "moon,momentum=0.1"])
def test_an_option_that_an_algorithm_does_not_have_is_found_before_any_training(algorithm):
    name, _, option = algorithm.partition(",")
    with pytest.raises(SpecError, match=rf'^{name} has no option "{option.partition("=")[0]}"\.'):
        grid(SPEC, {"training.algorithm": ["fedavg", algorithm]})


def test_algorithms_and_their_options_are_chosen_together():
    texts = ["fedavg", "fedprox,mu=0.1", "fedprox,mu=0.2", "fedavgm", "moon,temperature=1"]
    spec, candidates = grid(SPEC, {"training.algorithm": texts, "training.lr": ["0.1"]})
    assert spec.training.lr == 0.1
    assert [each["training.algorithm"] for each in candidates] == texts
    assert len({folder_name(each) for each in candidates}) == len(texts)
