"""Recording loses nothing, and files about one training are read as one."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ccvr.core.results import personal_rows
from ccvr.core.run import RunFolder
from ccvr.reproduction.cells import CELLS
from ccvr.reproduction.merge_records import same_training, united
from ccvr.reproduction.record import record
from ccvr.reproduction.records import read_record
from ccvr.reproduction.run_index import RunIndex, Trained
from tests.reproduction.made import trained, trainings

CELL = "cifar10-a0.1-fedavg"
POOR = {"uncalibrated": 50.0, "ccvr": 56.0}
RICH = {"uncalibrated": 50.0, "ccvr": 55.0, "lda": 57.0, "ccvr-m50": 54.0}
NORMS = ({"norms": np.array([[1.0, 2.0]])}, {"heads": ["ccvr"]})
OTHER = ({"norms": np.array([[3.0, 4.0]])}, {"heads": ["ccvr"]})
CKA = ({"cka": np.ones((1, 2, 2))}, {"layers": ["head"], "clients": [0, 1], "mean": [1.0]})


def made(accuracies, *, analyses=None, path="run", commit="aaa", **more):
    found = trained(CELL, accuracies, **more)
    about = {"commit": commit, "calibrated": []}
    files = replace(found.files, analyses=analyses or {}, folder=RunFolder(Path(path)), provenance=about)
    return Trained(found.spec, files)


def recorded(results, *runs):
    return list(record(trainings(*runs), results, (), None))


def only(results):
    (path,) = results.rglob("*.json")
    return read_record(path)


def test_a_poor_run_takes_nothing_from_a_rich_record(tmp_path):
    recorded(tmp_path, made(RICH, analyses={"norms": NORMS, "cka": CKA}, commit="old"))
    (written,) = recorded(tmp_path, made(POOR, analyses={"norms": OTHER}, commit="new"))
    assert (written.replaced, written.lost) == (False, ())
    back = only(tmp_path)
    assert back.accuracy == {"uncalibrated": 50.0, "ccvr": 56.0, "lda": 57.0, "ccvr-m50": 54.0}, "the run's own win"
    for part in ("per_class_recall", "client_accuracy"):
        assert set(back.results[part]) == set(RICH)
    assert set(back.results["calibrations"]) == set(RICH) - {"uncalibrated"}
    assert {name: arrays[name].tolist() for name, (arrays, _) in back.analyses.items()} == {
        "norms": [[3.0, 4.0]],
        "cka": [[[1.0, 1.0], [1.0, 1.0]]],
    }
    assert back.provenance["commit"] == "new"
    assert back.provenance["calibrated"] == [{"commit": "old"}], "where the others come from"


def test_a_run_that_lost_its_rounds_and_owners_takes_none_from_the_record(tmp_path):
    whole = made(POOR)
    counts = np.array([[1, 2], [3, 4]] * 5)
    recorded(tmp_path, replace(whole, files=replace(whole.files, label_counts=counts)))
    before = only(tmp_path)
    recorded(tmp_path, replace(whole, files=replace(whole.files, rounds=[], label_counts=None)))
    assert only(tmp_path).rounds == before.rounds != []
    assert only(tmp_path).label_counts.tolist() == counts.tolist()


def test_recording_again_changes_no_byte(tmp_path):
    recorded(tmp_path, made(RICH, analyses={"cka": CKA}, commit="old"))
    recorded(tmp_path, made(POOR))
    (path,) = tmp_path.rglob("*.json")
    before = path.read_bytes()
    recorded(tmp_path, made(POOR))
    assert path.read_bytes() == before


def test_another_training_takes_the_records_place_and_what_is_lost_is_named(tmp_path):
    recorded(tmp_path, made(RICH, analyses={"cka": CKA}))
    (written,) = recorded(tmp_path, made({"uncalibrated": 51.0, "ccvr": 56.0}))
    assert (written.replaced, written.lost) == (True, ("lda", "ccvr-m50", "cka"))
    assert only(tmp_path).accuracy == {"uncalibrated": 51.0, "ccvr": 56.0}


def test_a_head_of_the_same_name_that_is_another_stays_too(tmp_path):
    other = made(RICH)
    other.files.results["calibrations"]["lda"]["shrinkage"] = "another"
    recorded(tmp_path, other)
    recorded(tmp_path, made({**POOR, "lda": 60.0}))
    assert only(tmp_path).accuracy == {**POOR, "lda": 60.0, "lda-2": 57.0, "ccvr-m50": 54.0}


OLD_OPTIONS = {"matched": None, "taps": None, "bandwidth": 0.5, "per_class": 100}
"""In rows of before methods had options of their own: those of other methods, and None for the method's default."""


def test_a_head_that_an_older_version_recorded_is_the_same(tmp_path):
    older = made(RICH)
    for row in older.files.results["calibrations"].values():
        row.update({name: value for name, value in OLD_OPTIONS.items() if name not in row or value is None})
    recorded(tmp_path, older)
    recorded(tmp_path, made(RICH))
    assert only(tmp_path).accuracy == RICH


def test_a_head_that_an_older_version_recorded_with_another_option_is_another(tmp_path):
    """None was the method's default; what somebody gave is what it says."""
    older = made(RICH)
    older.files.results["calibrations"]["lda"]["taps"] = "auto"
    older.files.results["calibrations"]["ccvr"]["matched"] = True
    recorded(tmp_path, older)
    newer = made(RICH)
    newer.files.results["calibrations"]["lda"]["taps"] = None
    recorded(tmp_path, newer)
    assert only(tmp_path).accuracy == {**RICH, "lda-2": 57.0, "ccvr-2": 55.0}


@pytest.mark.parametrize("order", [1, -1])
def test_what_is_shown_is_united_whichever_is_richer(order):
    cell = CELLS[CELL]
    found = trainings(*[made(POOR, path="a"), made(RICH, path="b")][::order])
    assert found.unusable == []
    (one,) = found.seeds(cell, found.scales(cell)[0]).values()
    assert one.accuracy("ccvr", cell) == (56.0 if order == 1 else 55.0), "the first one's own"
    assert (one.accuracy("lda", cell), one.accuracy("ccvr-m50", cell)) == (57.0, 54.0)


def test_trainings_that_came_out_differently_are_never_mixed():
    found = trainings(made(POOR, path="a"), made({"uncalibrated": 49.0, "lda": 60.0}, path="b"))
    (one,) = found
    assert one.files.accuracy == POOR
    assert found.unusable == ["b is another training of the spec of a, which counts."]


def test_of_two_runs_of_a_cell_the_table_and_the_record_take_the_same(tmp_path):
    runs = made({"uncalibrated": 93.24}, path="a/run"), made({"uncalibrated": 11.11}, path="b/run")
    (written,) = recorded(tmp_path, *runs)
    assert only(tmp_path).accuracy["uncalibrated"] == 93.24
    assert written.path == tmp_path / "quick" / f"{CELL}-s0.json"


def test_one_round_that_differs_makes_another_training():
    one, other = made(POOR).files, made(POOR).files
    assert same_training(one, other)
    rounds = [{**one.rounds[0], "accuracy": 50.01}]
    assert not same_training(one, replace(other, rounds=rounds))
    few = [{"round": 1, "accuracy": None}]
    assert same_training(one, replace(other, rounds=few)), "what was not scored says nothing"
    assert same_training(one, replace(other, rounds=[{"round": 1, "accuracy": 50.0 + 1e-9}])), "to a record's digits"


def test_records_are_as_good_as_runs_to_be_united(tmp_path):
    recorded(tmp_path, made(RICH, analyses={"cka": CKA}))
    both = RunIndex([made(POOR), *RunIndex.read(None, tmp_path)])
    (one,) = both
    assert set(one.files.accuracy) == set(RICH)
    assert set(one.files.analyses) == {"cka"}


def test_a_damaged_record_is_named_and_written_anew(tmp_path):
    (written,) = recorded(tmp_path, made(POOR))
    written.path.write_text(written.path.read_text()[:200])
    assert len(RunIndex.read(None, tmp_path).unusable) == 1
    recorded(tmp_path, made(POOR))
    assert json.loads(written.path.read_text())["results"]["accuracy"] == POOR


def test_uniting_leaves_both_as_they_are():
    own, other = made(POOR), made(RICH)
    united(own.files, other.files)
    assert own.files.accuracy == POOR
    assert set(own.files.results["calibrations"]) == {"ccvr"}


SCORES = {"mean": 80.0, "worst": 70.0, "p10": 71.0}


def with_own(run, old=None, **rows):
    """The run with models of the clients' own: label → (smoothing, head)."""
    made = {
        label: {"method": "prior", "options": {"smoothing": a}, "head": head, "accuracy": SCORES, "clients": [80.0]}
        for label, (a, head) in rows.items()
    }
    added = {"personal": made} if rows else {}
    results = {**run.files.results, **added, **({"personal_accuracy": old} if old else {})}
    return Trained(run.spec, replace(run.files, results=results))


def own_models(run):
    return {label: (row["options"].get("smoothing"), row["head"]) for label, row in personal_rows(run.results).items()}


def test_models_of_the_clients_own_are_recorded_and_united(tmp_path):
    """Those made in the same way are one; another of the same label gets a number."""
    rows = {"prior": (1.0, "ccvr"), "late": (2.0, "lda"), "same": (3.0, "uncalibrated")}
    recorded(tmp_path, with_own(made(RICH), **rows))
    assert own_models(only(tmp_path)) == rows
    poor = with_own(made(POOR), prior=(5.0, "ccvr"), again=(3.0, "uncalibrated"))
    (written,) = recorded(tmp_path, poor)
    assert (written.replaced, written.lost) == (False, ())
    assert own_models(only(tmp_path)) == {
        "prior": (5.0, "ccvr"),
        "again": (3.0, "uncalibrated"),
        "prior-2": (1.0, "ccvr"),
        "late": (2.0, "lda"),
    }


def test_own_models_follow_their_head_to_its_new_label():
    one, other = made(POOR), made(RICH)
    other.files.results["calibrations"]["ccvr"]["epochs"] = 77
    union = united(one.files, with_own(other, prior=(1.0, "ccvr")).files)
    assert union.accuracy["ccvr-2"] == RICH["ccvr"]
    assert own_models(union) == {"prior": (1.0, "ccvr-2")}


def test_own_models_of_old_records(tmp_path):
    """The scores that old versions wrote are read, are not doubled, and stay as they are where nothing is added."""
    old, none = with_own(made(POOR), old=SCORES), made(POOR)
    recorded(tmp_path, old)
    assert "personal" not in only(tmp_path).results
    recorded(tmp_path, none)
    assert own_models(only(tmp_path)) == {"trained": (None, "uncalibrated")}
    new = with_own(made(POOR), trained=(None, "uncalibrated"))
    assert list(personal_rows(united(new.files, old.files).results)) == ["trained"]
    assert united(none.files, none.files).results == none.files.results


def test_own_models_of_a_training_that_is_replaced_are_named(tmp_path):
    recorded(tmp_path, with_own(made(POOR), prior=(1.0, "ccvr")))
    (written,) = recorded(tmp_path, made({"uncalibrated": 40.0, "ccvr": 41.0}))
    assert (written.replaced, written.lost) == (True, ("prior",))


def test_commits_of_own_models_are_kept(tmp_path):
    run = made(POOR)
    about = {**run.files.provenance, "calibrated": [{"commit": "b"}], "personalised": [{"commit": "c"}]}
    recorded(tmp_path, Trained(run.spec, replace(run.files, provenance=about)))
    assert only(tmp_path).provenance["calibrated"] == [{"commit": "b"}, {"commit": "c"}]
