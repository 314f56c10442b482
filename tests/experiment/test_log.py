"""What a run tells TensorBoard, read back with TensorBoard's own reader."""

import itertools
import sys
from dataclasses import replace

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ccvr.calibration.methods import parse_calibration
from ccvr.core.errors import SpecError
from ccvr.core.run import RunFolder
from ccvr.experiment.events import RoundDone
from ccvr.experiment.pipeline import calibrate_again, resume, run, start
from ccvr.experiment.spec import LogSpec, Spec, training_settings
from tests.end_to_end.tiny import TINY

LOGGED = replace(TINY, log=LogSpec(tensorboard=True))
ALL = {"scalars": 0, "images": 0}


def read(folder):
    found = EventAccumulator(str(folder.tensorboard), size_guidance=ALL)
    found.Reload()
    return found


def points(found, tag):
    return [(each.step, each.value) for each in found.Scalars(tag)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = RunFolder(tmp_path_factory.mktemp("runs") / "run")
    return folder, run(LOGGED, folder.path)


def test_scalars_are_those_of_the_rounds(finished):
    folder, _ = finished
    found, records = read(folder), folder.read_rounds()
    for tag, key in {"accuracy/test": "accuracy", "loss/test": "loss", "time/seconds": "seconds"}.items():
        expected = [(record["round"], pytest.approx(record[key])) for record in records]
        assert points(found, tag) == expected
    for (step, value), record in zip(points(found, "loss/clients"), records, strict=True):
        parts = [(each["examples"], each["loss"]) for each in record["clients"]]
        assert value == pytest.approx(sum(n * loss for n, loss in parts) / sum(n for n, _ in parts))
        assert step == record["round"]


def test_every_head_has_its_accuracy(finished):
    folder, results = finished
    found = read(folder)
    for label, accuracy in results["accuracy"].items():
        assert points(found, f"heads/{label}") == [(4, pytest.approx(accuracy, abs=1e-4))]


def test_label_distribution_and_figures_are_pictures(finished):
    folder, _ = finished
    found = read(folder)
    (labels,) = found.Images("label distribution")
    assert (labels.step, labels.encoded_image_string[:4]) == (0, b"\x89PNG")
    assert labels.width > 300
    tags = found.Tags()["images"]
    assert {"Training/accuracy", "Calibration/heads", "Calibration/recall", "The clients/labels"} <= set(tags)
    assert all(found.Images(tag)[0].step == 4 for tag in tags if tag != "label distribution")


def test_a_resumed_run_has_each_round_once(tmp_path, finished):
    events = start(LOGGED, tmp_path / "run")
    rounds = (event.round for event in events if isinstance(event, RoundDone))
    assert list(itertools.islice(rounds, 3)) == [1, 2, 3]  # checkpoints are there after rounds 2 and 4
    events.close()
    folder = RunFolder(tmp_path / "run")
    assert [step for step, _ in points(read(folder), "accuracy/test")] == [1, 2, 3]
    list(resume(folder))
    whole, _ = finished
    assert points(read(folder), "accuracy/test") == points(read(whole), "accuracy/test")


def test_later_calibrations_are_logged_too(finished):
    folder, _ = finished
    late = parse_calibration("ccvr,label=late,num_virtual=5")
    scored, done = calibrate_again(folder, [late])
    assert points(read(folder), "heads/late") == [(4, pytest.approx(done.results["accuracy"][scored.label], abs=1e-4))]


def test_nothing_is_logged_unasked(tmp_path):
    run(replace(TINY, training=replace(TINY.training, rounds=1)), tmp_path / "run")
    assert not RunFolder(tmp_path / "run").tensorboard.exists()


def test_it_is_no_setting_of_the_training():
    assert training_settings(LOGGED) == training_settings(TINY)


def test_a_missing_tensorboard_is_told_before_anything_is_made(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("tensorboard", "torch.utils.tensorboard"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # as if it were not installed
    with pytest.raises(SpecError, match=r'not installed\. Run: pip install "ccvr\[tensorboard\]"'):
        next(start(Spec(log=LogSpec(tensorboard=True)), tmp_path / "run"))
    assert list(tmp_path.iterdir()) == []
