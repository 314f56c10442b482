"""What a run leaves behind, and that it can be used."""

import json
import subprocess
import sys
import tomllib
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from tests.end_to_end.tiny import TINY

import ccvr
from ccvr.calibration.spec import Calibration, CalibrationOptions
from ccvr.core.errors import RunError, SpecError
from ccvr.core.run import RunFolder
from ccvr.data.batches import in_order
from ccvr.data.catalogue import load as load_data
from ccvr.experiment.events import Finished
from ccvr.experiment.pipeline import calibrate_again, resume, run, start
from ccvr.experiment.spec import from_toml
from ccvr.models.scoring import score
from ccvr.statistics.wire import from_bytes
from ccvr.training.checkpoint import read_checkpoint

LABELS = ["uncalibrated", "ccvr", "t1", "oracle", "oracle-partial"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    return path, run(TINY, path)


@pytest.fixture
def copy(finished, tmp_path):
    """The finished run, to be changed."""
    for path in finished[0].rglob("*"):
        if path.is_file():
            target = tmp_path / "run" / path.relative_to(finished[0])
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    return tmp_path / "run"


def test_the_files(finished):
    path, results = finished
    assert from_toml((path / "spec.toml").read_text()) == TINY
    assert tomllib.loads((path / "spec.toml").read_text())["training"]["algorithm"] == "moon"
    provenance = json.loads((path / "provenance.json").read_text())
    assert provenance["seed"] == 0
    assert provenance["versions"]["torch"] == torch.__version__
    assert provenance["hardware"]["cores"] >= 1
    assert json.loads((path / "results.json").read_text()) == results
    assert sorted(file.stem for file in (path / "heads").iterdir()) == sorted(LABELS)
    assert sorted(file.stem for file in (path / "statistics").iterdir()) == ["none", "tukey-0.5"]
    assert [file.name for file in RunFolder(path).checkpoints()] == [
        "round-000002.safetensors",
        "round-000004.safetensors",
    ]


def test_rounds(finished):
    records = RunFolder(finished[0]).read_rounds()
    assert [record["round"] for record in records] == [1, 2, 3, 4]
    for record in records:
        assert 0 <= record["accuracy"] <= 100
        assert record["loss"] > 0
        assert len(record["clients"]) == 3
        for client in record["clients"]:
            assert client["examples"] > 0
            assert client["steps"] > 0
            assert len(client["head_row_norms"]) == 10
            assert client["bytes_up"] > 100_000
            assert client["bytes_down"] > 100_000
            assert client["seconds"] > 0


def test_only_the_memories_that_a_checkpoint_names_stay(finished):
    folder = RunFolder(finished[0])
    pairs = {pair for path in folder.checkpoints() for pair in read_checkpoint(path).memories.items()}
    named = {f"client-{client}-round-{number}.safetensors" for client, number in pairs}
    assert len({number for _, number in pairs}) > 1
    assert {path.name for path in folder.memories.iterdir()} == named


def test_results(finished):
    _, results = finished
    assert list(results["accuracy"]) == LABELS
    assert list(results["per_class_recall"]) == LABELS
    assert list(results["client_accuracy"]) == LABELS
    assert list(results["validation_accuracy"]) == LABELS
    assert list(results["calibrations"]) == LABELS[1:]
    assert results["deployed"] == "ccvr"
    assert results["client_accuracy"]["ccvr"].keys() == {"mean", "worst", "p10"}
    ours = results["calibrations"]["t1"]
    assert (ours["method"], ours["transform"], ours["num_virtual"], ours["seed"]) == ("ccvr", "tukey", 50, 0)
    assert ours["seconds"] > 0


def test_bytes_are_what_the_clients_would_send(finished):
    path, results = finished
    counts = load_file(path / "partition.safetensors")["label_counts"]
    classes, d = int((counts > 0).sum()), 64
    assert results["calibrations"]["ccvr"]["bytes"] == classes * (16 + 8 * d + 4 * d * (d + 1) // 2)
    assert results["calibrations"]["oracle"]["bytes"] == int(counts.sum()) * (4 * d + 8)


def test_statistics_count_every_training_image(finished):
    path, _ = finished
    merged = from_bytes((path / "statistics" / "none.safetensors").read_bytes())
    counts = load_file(path / "partition.safetensors")["label_counts"]
    assert torch.equal(merged.count, counts.sum(0))
    assert merged.digest == ccvr.load(path).digest()


@pytest.mark.parametrize("label", [None, *LABELS])
def test_a_loaded_model_scores_what_the_results_say(finished, label):
    path, results = finished
    model = ccvr.load(path, head=label)
    assert not model.training
    counts = score(model, in_order(load_data("digits").test), 10)
    assert round(counts.accuracy, 4) == results["accuracy"][label or "ccvr"]
    assert model.class_names == tuple("0123456789")


def test_a_head_that_is_not_there(finished):
    with pytest.raises(
        RunError, match=r'has no head "cvcr"\. It has: ccvr, oracle, oracle-partial, t1, uncalibrated\.'
    ):
        ccvr.load(finished[0], head="cvcr")


def test_a_finished_run_is_shown_again_and_not_run_again(finished):
    path, results = finished
    before = (path / "rounds.jsonl").read_bytes()
    assert list(resume(RunFolder(path))) == [Finished(results)]
    assert (path / "rounds.jsonl").read_bytes() == before


def test_an_existing_run_is_not_overwritten_unless_asked(copy):
    before = (copy / "results.json").read_bytes()
    with pytest.raises(RunError, match=r"holds a run already\. Continue it with `ccvr resume"):
        list(start(TINY, copy))
    assert (copy / "results.json").read_bytes() == before


def test_more_calibrations_of_a_finished_run(copy):
    more = [Calibration("ccvr", f"m{number}", CalibrationOptions(num_virtual=number, seed=7)) for number in (5, 20)]
    *_, last = calibrate_again(RunFolder(copy), more, chosen="m20")
    assert list(last.results["accuracy"]) == [*LABELS, "m5", "m20"]
    assert last.results["deployed"] == "m20"
    assert last.results["calibrations"]["m5"]["seed"] == 7
    counts = score(ccvr.load(copy), in_order(load_data("digits").test), 10)
    assert round(counts.accuracy, 4) == last.results["accuracy"]["m20"]
    with pytest.raises(RunError, match='has "m5" already'):
        list(calibrate_again(RunFolder(copy), more))
    *_, again = calibrate_again(RunFolder(copy), more, overwrite=True)
    assert again.results["accuracy"] == last.results["accuracy"]


@pytest.mark.parametrize("label", ["oracle", "nothing"])
def test_what_cannot_be_deployed(copy, label):
    with pytest.raises(SpecError, match="Choose one of"):
        list(calibrate_again(RunFolder(copy), [], chosen=label))


def test_nothing_is_left_behind_by_a_spec_that_cannot_run(tmp_path):
    bad = replace(TINY, calibration=replace(TINY.calibration, methods=("oracle",)))
    with pytest.raises(SpecError, match='deploy is "oracle", which needs every client'):
        list(start(bad, tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_importing_the_package_loads_nothing_heavy():
    code = "import sys, ccvr; dir(ccvr); print([m for m in ('torch', 'numpy', 'rich') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_start_that_was_killed_before_it_wrote_its_spec_can_be_repeated(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".spec.toml.part").write_text("seed = ")
    short = replace(TINY, training=replace(TINY.training, rounds=1))
    assert "ccvr" in run(short, tmp_path / "run")["accuracy"]


def test_provenance_tells_every_start(finished, copy):
    first = json.loads((copy / "provenance.json").read_text())
    assert first["resumed"] == []
    (copy / "results.json").unlink()
    *_, last = resume(RunFolder(copy))
    again = json.loads((copy / "provenance.json").read_text())
    assert {key: again[key] for key in first if key != "resumed"} == {k: v for k, v in first.items() if k != "resumed"}
    assert len(again["resumed"]) == 1
    assert last.results["accuracy"] == finished[1]["accuracy"]
