"""Analyses of a finished run: kept in it, and as they should be."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

from ccvr.analysis.similarity import ssim
from ccvr.core.arrays import arrays_to_bytes, read_arrays
from ccvr.core.errors import CcvrError, RunError
from ccvr.core.run import RunFolder
from ccvr.experiment.finished_run import FinishedRun, open_finished_run
from ccvr.experiment.load import read_head
from ccvr.experiment.pipeline import run
from ccvr.inspection.analyses import ANALYSES
from ccvr.inspection.analyze import Failed, analyze
from ccvr.models.build import ModelSpec
from tests.end_to_end.tiny import TINY

TINY_LABELS = ("ccvr", "t1", "oracle", "oracle-partial")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    results = run(TINY, path)
    return RunFolder(path), results


@pytest.fixture(scope="module")
def found(finished):
    folder, _ = finished
    before = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file() and path.name != ".lock"}
    done = list(analyze(folder, against=folder, points=200))
    after = {path: path.read_bytes() for path in before}
    assert before == after, "an analysis changes nothing of the run"
    assert [each.name for each in done] == [*ANALYSES, "cka-against"]
    return {each.name: read_arrays(folder.analysis(each.name)) for each in done}


def test_confusion_adds_up_to_the_results(finished, found):
    _, results = finished
    arrays, about = found["confusion"]
    for matrix, label in zip(arrays["confusion"], about["heads"], strict=True):
        assert 100 * np.trace(matrix) / matrix.sum() == pytest.approx(results["accuracy"][label], abs=1e-3)
        recall = 100 * matrix.diagonal() / matrix.sum(1)
        assert recall == pytest.approx(results["per_class_recall"][label], abs=1e-3)


def forgetful(image_shape, num_classes):
    """A model whose layers say something else while it trains."""
    layers = [nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 16), nn.ReLU()]
    return nn.Sequential(*layers, nn.Dropout(0.5), nn.Linear(16, num_classes))


def test_confusion_of_heads_that_read_several_layers(tmp_path):
    tapped = replace(TINY.calibration, methods=("ccvr,num_virtual=50", "lda,taps=auto,label=layers"))
    training = replace(TINY.training, algorithm="fedavg", rounds=1)
    folder = RunFolder(tmp_path / "run", trust=True)
    results = run(
        replace(TINY, model=ModelSpec(name=f"{__name__}:forgetful"), training=training, calibration=tapped), folder.path
    )
    list(analyze(folder, ["confusion", "norms"]))
    arrays, about = read_arrays(folder.analysis("confusion"))
    right = [100 * np.trace(matrix) / matrix.sum() for matrix in arrays["confusion"]]
    assert right == pytest.approx([results["accuracy"][label] for label in about["heads"]], abs=1e-3)
    assert read_arrays(folder.analysis("norms"))[1]["heads"] == ["uncalibrated", "ccvr"]


def test_norms_are_those_of_the_heads_rows(finished, found):
    folder, _ = finished
    arrays, about = found["norms"]
    assert about["heads"] == ["uncalibrated", *TINY_LABELS]
    for label, norms in zip(about["heads"], arrays["norms"], strict=True):
        weight = read_head(folder.head(label)).weight.detach().numpy()
        assert norms == pytest.approx(np.sqrt((weight.astype(float) ** 2).sum(1)), rel=1e-6)


def test_clients_lean_round_by_round(finished, found):
    folder, _ = finished
    owned = load_file(folder.partition)["label_counts"]
    arrays, _ = found["norms"]
    assert arrays["rounds"].tolist() == [1, 2, 3, 4]
    for place, record in enumerate(folder.read_rounds()):
        rows = {each["client"]: np.array(each["head_row_norms"]) for each in record["clients"]}
        assert len(rows) == 3, "three of four clients train in a round"
        leans = [np.corrcoef(norms, owned[client])[0, 1] for client, norms in rows.items()]
        assert arrays["lean"][place] == pytest.approx(np.mean(leans))
        assert arrays["spread"][place] == pytest.approx(np.mean([each.std() / each.mean() for each in rows.values()]))


def test_cka_is_one_with_itself_and_the_same_against_itself(found):
    arrays, about = found["cka"]
    cka = arrays["cka"]
    clients = len(about["clients"])
    assert cka.shape == (len(about["layers"]), clients, clients)
    assert cka.diagonal(axis1=1, axis2=2) == pytest.approx(1.0)
    pairs = cka[:, ~np.eye(clients, dtype=bool)]
    assert ((pairs > 0) & (pairs < 0.99999)).all(), "clients train apart"
    assert pairs.mean(1) == pytest.approx(about["mean"])
    assert about["layers"][-1] == "head"
    assert np.array_equal(found["cka-against"][0]["cka"], cka), "the same run, the same numbers"


def test_separability_has_the_gains(finished, found):
    _, results = finished
    arrays, about = found["separability"]
    accuracy = results["accuracy"]
    assert about["gains"] == {k: accuracy[k] - accuracy["uncalibrated"] for k in accuracy if k != "uncalibrated"}
    assert arrays["distances"].shape == (10, 10)
    assert about["mean"] > 0


def predicted(subject: FinishedRun, label: str) -> np.ndarray:
    model = subject.model.with_head(read_head(subject.folder.head(label))).eval()
    with torch.no_grad():
        return model(subject.setup.dataset.test.inputs).argmax(1).numpy()


def test_points_have_truth_and_predictions(finished, found):
    subject = open_finished_run(finished[0])
    arrays, about = found["tsne"]
    samples = arrays["samples"]
    assert about["after"] == "ccvr"
    assert len(set(samples.tolist())) == len(arrays["points"]) == 200
    assert np.array_equal(arrays["truth"], subject.setup.dataset.test.labels.numpy()[samples])
    before, after = (predicted(subject, label)[samples] for label in ("uncalibrated", "ccvr"))
    assert np.array_equal(arrays["before"], before)
    assert np.array_equal(arrays["after"], after)
    assert (before != after).any(), "the one cannot be taken for the other"


def test_points_lie_beside_points_of_their_class(found):
    arrays, _ = found["tsne"]
    distances = np.linalg.norm(arrays["points"][:, None] - arrays["points"], axis=2)
    np.fill_diagonal(distances, np.inf)
    nearest = arrays["truth"][distances.argmin(1)]
    assert np.mean(nearest == arrays["truth"]) > 0.6, "a tenth by chance"


def test_inversions_come_with_their_originals(finished, found):
    subject = open_finished_run(finished[0])
    arrays, about = found["inversion"]
    assert about["numbers"][:2] == [1, 3]
    owned = subject.setup.kept.shards[about["client"]]
    train = subject.setup.dataset.train
    theirs = {image.numpy().tobytes() for image in train.inputs[owned[train.labels.numpy()[owned] == about["class"]]]}
    for n in about["numbers"]:
        assert all(len(arrays[f"{kind}_{n}"]) == 16 for kind in ("similarity", "chance", "error", "weight"))
        originals, pictures = (torch.from_numpy(arrays[f"{kind}_{n}"]) for kind in ("originals", "reconstructions"))
        assert {image.numpy().tobytes() for image in originals} <= theirs
        assert arrays[f"similarity_{n}"][: len(pictures)] == pytest.approx(ssim(pictures, originals).numpy())


def test_inversions_have_the_features_of_their_originals(finished, found):
    model = open_finished_run(finished[0]).model.eval()
    arrays, _ = found["inversion"]
    with torch.no_grad():
        wanted, got = (model.features(torch.from_numpy(arrays[f"{k}_1"])) for k in ("originals", "reconstructions"))
    left = ((got - wanted).square().sum(1) / wanted.square().sum(1)).numpy()
    assert arrays["error_1"][: len(left)] == pytest.approx(left, abs=1e-3), "but for the rounding of pixels"
    assert left.max() < 0.01
    mixed = ((got.roll(1, 0) - wanted).square().sum(1) / wanted.square().sum(1)).numpy()
    assert mixed.min() > 0.05, "others are far"
    assert arrays["similarity_1"].mean() > arrays["chance_1"].mean() + 0.05


@pytest.mark.parametrize("algorithm", ["moon", "fedavgm"])
def test_local_models_leave_the_run_alone(tmp_path, algorithm):
    spec = replace(TINY, training=replace(TINY.training, algorithm=algorithm))
    folder = RunFolder(tmp_path / "run")
    run(spec, folder.path)
    before = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file() and path.name != ".lock"}
    (done,) = analyze(folder, ["cka"])
    assert "mean CKA" in done.headline
    assert all(path.read_bytes() == content for path, content in before.items())


def test_an_unfinished_run_is_one_error(tmp_path, finished):
    folder, _ = finished
    other = tmp_path / "run"
    other.mkdir()
    (other / "spec.toml").write_bytes(folder.spec.read_bytes())
    with pytest.raises(RunError, match="ccvr resume"):
        list(analyze(RunFolder(other)))


def test_a_run_to_compare_with_that_is_damaged_costs_the_comparison_only(tmp_path, finished):
    folder, _ = finished
    other = RunFolder(Path(shutil.copytree(folder.path, tmp_path / "other")))
    shutil.rmtree(other.path / "analysis", ignore_errors=True)
    shutil.rmtree(other.path / "checkpoints")
    norms, beside = analyze(folder, ["norms"], against=other)
    assert "row norms" in norms.headline
    assert isinstance(beside, Failed)
    assert beside.name == "cka-against"
    assert "has lost the checkpoint" in str(beside.error)


def test_an_unknown_analysis_is_told_before_anything_runs(finished):
    with pytest.raises(CcvrError, match="confusion"):
        list(analyze(finished[0], ["confusio"]))


class TestArrays:
    def test_come_back(self, tmp_path):
        arrays = {"x": np.arange(6.0).reshape(2, 3)[:, ::-1], "n": np.array(3)}
        path = tmp_path / "a.safetensors"
        path.write_bytes(arrays_to_bytes(arrays, {"name": 'Ünï "<b>"', "values": [1, None]}))
        read, about = read_arrays(path)
        assert {name: array.tolist() for name, array in read.items()} == {"x": [[2, 1, 0], [5, 4, 3]], "n": 3}
        assert about == {"name": 'Ünï "<b>"', "values": [1, None]}

    @pytest.mark.parametrize("damage", [b"", b"x" * 40, None])
    def test_damaged_are_one_error(self, tmp_path, damage):
        path = tmp_path / "a.safetensors"
        path.write_bytes(arrays_to_bytes({"x": np.ones(9)}, {})[:-3] if damage is None else damage)
        with pytest.raises(RunError, match="cannot be read"):
            read_arrays(path)
