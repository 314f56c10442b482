"""A record says what its run says: tables and figures come out the same."""

import json
from dataclasses import replace

import numpy as np
import pytest

from ccvr.core.errors import RunError
from ccvr.report.figure_set import draw
from ccvr.report.groups import group
from ccvr.report.runs import RunFiles
from ccvr.reproduction.records import read_record, record_bytes
from tests.report.conftest import results, spec


@pytest.fixture
def both(make_run, tmp_path):
    """A run, and what its record gives back."""
    files = RunFiles.read(make_run())
    path = tmp_path / "record.json"
    path.write_bytes(record_bytes(files, scale="3 × 2"))
    return files, read_record(path)


def test_numbers_come_back(both):
    run, back = both
    for name in ("name", "spec", "results", "accuracy", "settings", "deployed"):
        assert getattr(back, name) == getattr(run, name), name
    assert np.array_equal(back.label_counts, run.label_counts)
    assert [(each["round"], each["accuracy"]) for each in back.rounds] == [(1, 20.0), (2, 40.0), (3, 60.0)]
    assert ["clients" in each for each in back.rounds] == [True, False, True], "heads of the first and last round"
    assert group([back])[0].accuracy("ccvr") == group([run])[0].accuracy("ccvr")


def test_small_analyses_come_back_to_four_digits(both):
    run, back = both
    assert set(back.analyses) == {"cka", "norms", "separability"}
    for name, (arrays, about) in back.analyses.items():
        assert about == run.analyses[name][1]
        for key, array in arrays.items():
            np.testing.assert_allclose(array, run.analyses[name][0][key], rtol=0, atol=5.1e-5)


def test_figures_come_from_a_record_as_from_its_run(both):
    run, back = both
    whole = {each.row.id: [panel.alt for panel in each.panels] for each in draw([run])}
    again = {each.row.id: [panel.alt for panel in each.panels] for each in draw([back])}
    assert set(whole) - set(again) == {"confusion", "tsne", "inversion"}, "whose arrays are not small"
    fewer = {"loss", "time", "client-norms", "cka", "cka-pairs"}
    """Clients of the middle rounds are left out, and what the run was compared with."""
    assert {name: alts for name, alts in again.items() if name not in fewer} == {
        name: alts for name, alts in whole.items() if name in set(again) - fewer
    }
    assert again["client-norms"][:3] == whole["client-norms"][:3], "first and last round"


def test_what_is_not_finite_comes_back_as_such(make_run, tmp_path):
    run = RunFiles.read(make_run())
    arrays = {"cka": np.array([[[1.0, np.nan], [np.inf, 1.0]]])}
    about = {"layers": ["head"], "clients": [0, 1], "mean": [float("nan")]}
    run = replace(run, analyses={"cka": (arrays, about)})
    (tmp_path / "x.json").write_bytes(record_bytes(run, scale="s"))
    back, kept = read_record(tmp_path / "x.json").analyses["cka"]
    assert np.isnan(back["cka"]).tolist() == [[[False, True], [True, False]]]
    assert np.isnan(kept["mean"]).tolist() == [True]


def test_no_path_or_command_of_the_machine_is_recorded(make_run):
    made = spec()
    made["data"]["root"] = "/home/somebody/data"
    text = record_bytes(RunFiles.read(make_run(made=made)), scale="s").decode()
    assert "somebody" not in text
    assert "a folder" not in text, "the command"
    assert json.loads(text)["provenance"] == {"commit": "abc", "versions": {"torch": "2"}, "calibrated": []}


def test_commits_of_later_calibrations_are_recorded_once_each(make_run):
    later = [{"commit": "b", "command": ["x"]}, {"commit": "b"}, {"commit": "c"}]
    run = RunFiles.read(make_run())
    text = record_bytes(replace(run, provenance={"commit": "a", "calibrated": later}), scale="s")
    assert json.loads(text)["provenance"] == {"commit": "a", "calibrated": ["b", "c"]}


def test_the_same_run_gives_the_same_bytes(both):
    run, _ = both
    assert record_bytes(run, scale="s") == record_bytes(run, scale="s")


@pytest.mark.parametrize(
    "damage",
    [
        lambda parts: parts.pop("results"),
        lambda parts: parts.update(format="ccvr-record/9"),
        lambda parts: parts["results"]["accuracy"].pop("uncalibrated"),
        lambda parts: parts["results"].update(accuracy=[1, 2]),
        lambda parts: parts.update(analyses=3),
        lambda parts: parts.update(rounds=None),
        lambda parts: parts.update(rounds=["one"]),
        lambda parts: parts["rounds"][0].pop("round"),
        lambda parts: parts["rounds"][0].update(accuracy="much"),
        lambda parts: parts["rounds"][0].update(round="1"),
        lambda parts: parts["results"]["calibrations"].update(ccvr="done"),
        lambda parts: parts["results"]["calibrations"].update(ccvr={}),
    ],
)
def test_a_damaged_record_is_one_clear_line(both, tmp_path, damage):
    path = tmp_path / "record.json"
    parts = json.loads(path.read_text())
    damage(parts)
    path.write_text(json.dumps(parts))
    with pytest.raises(
        RunError,
        match=r"record\.json is (not a record of a run \(.*\)|damaged: .*)\. Record the run again, or update ccvr\.",
    ):
        read_record(path)


@pytest.mark.parametrize("text", ["", "[]", "null", "{", '{"format": {}}'])
def test_what_is_no_record(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(RunError, match="is not a record of a run"):
        read_record(tmp_path / "x.json")


def test_results_that_lack_a_heads_scores(make_run, tmp_path):
    said = results()
    path = tmp_path / "x.json"
    path.write_bytes(record_bytes(RunFiles.read(make_run(said=said)), scale="s"))
    parts = json.loads(path.read_text())
    parts["results"]["per_class_recall"]["ccvr"] = [1.0]
    path.write_text(json.dumps(parts))
    with pytest.raises(RunError, match=r"per_class_recall\['ccvr'\] has 1 values for 3 classes"):
        read_record(path)
