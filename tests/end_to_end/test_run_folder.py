"""What a run leaves behind, and that it can be used."""

import json
import re
import subprocess
import sys
import tomllib
from dataclasses import replace

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import ccvr
from ccvr.calibration.methods import parse_calibration
from ccvr.core.errors import ModelError, RunError, SpecError, TrainingError
from ccvr.core.run import RunFolder
from ccvr.data.batches import in_order
from ccvr.data.catalogue import load as load_data
from ccvr.experiment.events import Finished, Noted
from ccvr.experiment.pipeline import calibrate_again, resume, run, start
from ccvr.experiment.spec import CheckpointSpec, from_toml, to_toml
from ccvr.models.scoring import score
from ccvr.models.tensor_file import tensors_from_bytes, tensors_to_bytes
from ccvr.statistics.moments import ClassStatistics
from ccvr.training.checkpoint import read_checkpoint
from tests.end_to_end.tiny import TINY

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
    assert sorted(file.stem for file in (path / "statistics").iterdir()) == ["full", "full_tukey-0.5"]
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


def test_only_the_client_states_that_a_checkpoint_names_stay(finished):
    folder = RunFolder(finished[0])
    pairs = {pair for path in folder.checkpoints() for pair in read_checkpoint(path).client_rounds.items()}
    named = {f"client-{client}-round-{number}.safetensors" for client, number in pairs}
    assert len({number for _, number in pairs}) > 1
    assert {path.name for path in folder.client_states.iterdir()} == named


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


def full_bytes(counts, d):
    """Count, label and mean of each class that a client has, and a trapezoid of n - 1 rows, at most d."""
    rows = (counts - 1).clamp(min=0, max=d)
    return int((counts > 0).sum()) * (16 + 8 * d) + 4 * int((rows * d - rows * (rows - 1) // 2).sum())


def test_bytes_are_what_the_clients_would_send(finished):
    path, results = finished
    counts, d = load_file(path / "partition.safetensors")["label_counts"], 64
    assert results["calibrations"]["ccvr"]["bytes"] == full_bytes(counts, d)
    assert results["calibrations"]["oracle"]["bytes"] == int(counts.sum()) * (4 * d + 8)


def test_statistics_count_every_training_image(finished):
    path, _ = finished
    merged = ClassStatistics.from_bytes((path / "statistics" / "full.safetensors").read_bytes())
    counts = load_file(path / "partition.safetensors")["label_counts"]
    assert torch.equal(merged.count, counts.sum(0))
    assert merged.source.model == ccvr.load(path).digest()


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
    more = [parse_calibration(f"ccvr,num_virtual={number},seed=7,label=m{number}") for number in (5, 20)]
    *_, last = calibrate_again(RunFolder(copy), more, chosen="m20")
    assert list(last.results["accuracy"]) == [*LABELS, "m5", "m20"]
    assert last.results["deployed"] == "m20"
    assert last.results["calibrations"]["m5"]["seed"] == 7
    counts = score(ccvr.load(copy), in_order(load_data("digits").test), 10)
    assert round(counts.accuracy, 4) == last.results["accuracy"]["m20"]
    noted = [event.text for event in calibrate_again(RunFolder(copy), more) if isinstance(event, Noted)]
    assert noted == [f"{label} is there already, made in the same way" for label in ("m5", "m20")]
    others = [parse_calibration("ccvr,num_virtual=6,seed=7,label=m5"), parse_calibration("lda,label=m5")]
    others += [parse_calibration("ccvr,num_virtual=5,seed=8,label=m5")]
    for other in others:
        with pytest.raises(RunError, match='has "m5" already, made in another way'):
            list(calibrate_again(RunFolder(copy), [other]))
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


def test_a_lost_last_checkpoint_is_not_replaced_by_an_older_one(copy):
    RunFolder(copy).checkpoint(4).unlink()
    before = (copy / "model.safetensors").read_bytes()
    with pytest.raises(RunError, match=r"has lost the checkpoint of its last round, 4\."):
        list(calibrate_again(RunFolder(copy), [parse_calibration("ccvr,label=new")]))
    assert (copy / "model.safetensors").read_bytes() == before


def test_what_is_deployed_stays_deployed(copy):
    *_, last = calibrate_again(RunFolder(copy), [], chosen="t1")
    more = [parse_calibration("ccvr,num_virtual=5,label=more")]
    *_, last = calibrate_again(RunFolder(copy), more)
    assert last.results["deployed"] == "t1"
    assert str(ccvr.load(copy).head.transform) == "tukey:0.5"


def test_other_seeds_draw_other_features(copy):
    rows = [parse_calibration(f"ccvr,num_virtual=5,seed={seed},label=s{seed}") for seed in (1, 2)]
    list(calibrate_again(RunFolder(copy), rows))
    first, second = (ccvr.load(copy, head=label).head.weight for label in ("s1", "s2"))
    assert not torch.equal(first, second)


def test_damaged_statistics_are_collected_again(copy):
    path = copy / "statistics" / "full.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    list(calibrate_again(RunFolder(copy), [parse_calibration("ccvr,num_virtual=5,label=new")]))
    assert path.read_bytes() == whole


def test_a_deleted_model_is_made_again(copy, finished):
    (copy / "model.safetensors").unlink()
    list(resume(RunFolder(copy)))
    assert (copy / "model.safetensors").read_bytes() == (finished[0] / "model.safetensors").read_bytes()


@pytest.mark.parametrize("change", [("num_clients = 4", "num_clients = 3"), ("alpha = 0.5", "alpha = 0.6")])
def test_a_resumed_run_keeps_its_owners(copy, change):
    (copy / "results.json").unlink()
    text = (copy / "spec.toml").read_text()
    assert change[0] in text
    (copy / "spec.toml").write_text(text.replace(*change))
    with pytest.raises(
        RunError, match="was drawn from other samples, or for other owners, than spec and data give now"
    ):
        list(resume(RunFolder(copy)))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (('algorithm = "moon"', 'algorithm = "fedavgm"'), "training.algorithm"),
        (("clsnorm = false", "clsnorm = true"), "training.clsnorm"),
        (("rounds = 4", "rounds = 3"), "training.rounds"),
        (("lr = 0.01", "lr = 0.02"), "training.lr"),
        (("seed = 0\ndevice", "seed = 1\ndevice"), "seed"),
    ],
)
def test_a_resumed_run_keeps_its_settings(copy, change, field):
    (copy / "results.json").unlink()
    text = (copy / "spec.toml").read_text()
    assert change[0] in text
    (copy / "spec.toml").write_text(text.replace(*change, 1))
    with pytest.raises(RunError, match=rf"was trained with {field} = .*; the spec now says .* Undo that change"):
        list(resume(RunFolder(copy)))


def test_calibration_and_the_place_of_the_data_may_change_before_a_resume(copy):
    (copy / "results.json").unlink()
    spec = replace(TINY, calibration=replace(TINY.calibration, methods=("ccvr,num_virtual=50,label=other",)))
    (copy / "spec.toml").write_text(to_toml(replace(spec, data=replace(spec.data, root=copy))))
    *_, last = resume(RunFolder(copy))
    assert last.results["accuracy"].keys() == {"uncalibrated", "other"}


def test_a_stopped_calibration_keeps_what_it_finished(copy):
    rows = [parse_calibration(f"ccvr,num_virtual=5,seed={seed},label=s{seed}") for seed in (1, 2)]
    events = calibrate_again(RunFolder(copy), rows)
    next(events)
    events.close()
    results = json.loads((copy / "results.json").read_text())
    assert "s1" in results["accuracy"]
    assert "s2" not in results["accuracy"]
    assert len(json.loads((copy / "provenance.json").read_text())["calibrated"]) == 1


def test_a_missing_client_state_is_one_error(copy):
    (copy / "results.json").unlink()
    RunFolder(copy).checkpoint(4).unlink()
    for path in (copy / "memories").iterdir():
        path.unlink()
    with pytest.raises(RunError, match=r"the client state .* cannot be read"):
        list(resume(RunFolder(copy)))


@pytest.mark.parametrize("file", ["model", "heads/t1"])
def test_a_damaged_model_or_head_is_one_error(copy, file):
    path = copy / f"{file}.safetensors"
    format = "ccvr-model/2" if file == "model" else "ccvr-head/2"
    path.write_bytes(tensors_to_bytes({"x": torch.zeros(2)}, format=format))
    with pytest.raises(RunError, match="is damaged"):
        ccvr.load(copy, head=None if file == "model" else "t1")


def test_overwriting_spares_what_is_no_part_of_a_run(copy):
    (copy / "thesis.tex").write_text("precious")
    with pytest.raises(RunError, match=r'holds "thesis\.tex", which is not part of a run'):
        list(start(TINY, copy, overwrite=True))
    assert (copy / "results.json").is_file()


def test_scores_every_so_many_rounds_and_at_the_end(tmp_path):
    run(replace(TINY, training=replace(TINY.training, rounds=3, evaluate_every=2)), tmp_path / "run")
    scored = [record["accuracy"] is not None for record in RunFolder(tmp_path / "run").read_rounds()]
    assert scored == [False, True, True]


def test_validation_accuracy_is_the_held_out_parts(finished):
    path, results = finished
    saved = load_file(path / "partition.safetensors")
    held = saved["held_out"].nonzero().squeeze(1).numpy()
    counts = score(ccvr.load(path), in_order(load_data("digits").train, held), 10)
    assert round(counts.accuracy, 4) == results["validation_accuracy"]["ccvr"]


TIED = """
from torch import nn
class Tied(nn.Module):
    def __init__(self, image_shape, num_classes):
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.second = self.first
        self.third = nn.Linear(64, 64)
        self.third.weight = self.first.weight
        self.out = nn.Linear(64, num_classes)
        self.aside = nn.Linear(64, 7)
    def forward(self, x):
        return self.out(self.third(self.second(self.first(x.flatten(1)).relu()).relu()))
"""


def test_a_model_with_shared_weights_and_a_named_head(tmp_path, monkeypatch):
    (tmp_path / "tied_model.py").write_text(TIED)
    monkeypatch.syspath_prepend(tmp_path)
    spec = replace(TINY, model=replace(TINY.model, name="tied_model:Tied", head="out"))
    results = run(spec, tmp_path / "run")
    model = ccvr.load(tmp_path / "run", trust=True)
    assert round(score(model, in_order(load_data("digits").test), 10).accuracy, 4) == results["accuracy"]["ccvr"]
    header, _ = tensors_from_bytes((tmp_path / "run" / "model.safetensors").read_bytes(), format="ccvr-model/2")
    assert header["head_path"] == "out"


@pytest.mark.parametrize("lr", [1e30, 1e38])
def test_a_global_model_that_diverged_is_one_error(tmp_path, lr):
    training = replace(TINY.training, algorithm="fedavg", lr=lr, batch_size=5000, momentum=0.0)
    with pytest.raises(TrainingError, match="diverged"):
        run(replace(TINY, training=training), tmp_path / "run")


PAST_THE_LAST = ("ridge,taps=auto,label=ridge-taps", "lda,taps=layer1+layer2", "kernel,num_features=150", "ncm")


def test_heads_that_read_several_layers_are_kept_loaded_and_deployed(copy):
    calibrations = [parse_calibration(text) for text in PAST_THE_LAST]
    *_, last = calibrate_again(RunFolder(copy), calibrations, chosen="kernel")
    test = load_data("digits").test
    for label in ("ridge-taps", "lda", "kernel", "ncm", "uncalibrated"):
        counts = score(ccvr.load(copy, head=label), in_order(test), 10)
        assert round(counts.accuracy, 4) == last.results["accuracy"][label], label
    deployed = ccvr.load(copy)
    assert torch.equal(deployed.eval()(test.inputs[:9]), ccvr.load(copy, head="kernel")(test.inputs[:9]))
    assert deployed.head.weight.shape == (10, 150)
    assert last.results["calibrations"]["kernel"]["bytes"] < last.results["calibrations"]["ccvr"]["bytes"] * 20
    names = sorted(file.stem.partition("_")[0] for file in (copy / "statistics").iterdir())
    assert names == ["diagonal", "full", "full", "kernel", "means", "pooled", "pooled"]


def test_select_deploys_what_wins_on_the_held_out_parts(tmp_path):
    methods = ("ccvr,num_virtual=50", "ccvr,lr=1,num_virtual=1,label=few", "oracle,epochs=1")
    results = run(
        replace(TINY, calibration=replace(TINY.calibration, methods=methods, deploy="select")), tmp_path / "run"
    )
    recall, error = results["selection"]["recall"], results["selection"]["standard_error"]
    assert recall.keys() == {"uncalibrated", "ccvr", "few"}, "an oracle is no candidate"
    best = max(recall, key=recall.get)
    assert recall[best] - recall["uncalibrated"] > max(error[best], error["uncalibrated"]), "the case is a clear one"
    assert results["deployed"] == best
    list(calibrate_again(RunFolder(tmp_path / "run"), [], chosen="uncalibrated"))
    *_, last = calibrate_again(RunFolder(tmp_path / "run"), [], chosen="select")
    assert last.results["deployed"] == best


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (('algorithm = "moon"', 'algorithm = "moon,mu=5"'), "training.algorithm = 'moon'"),
        (('algorithm = "moon"', 'algorithm = "moon"\nmu = 5.0'), "training.algorithm = 'moon'"),  # as it was written
        (("[data]", "[data]\naugment = true"), "data.augment = None"),
    ],
)
def test_a_field_that_was_left_to_its_default_may_not_get_a_value_before_a_resume(copy, change, field):
    (copy / "results.json").unlink()
    text = (copy / "spec.toml").read_text()
    assert change[0] in text
    (copy / "spec.toml").write_text(text.replace(*change, 1))
    with pytest.raises(RunError, match=f"was trained with {re.escape(field)}; the spec now says"):
        list(resume(RunFolder(copy)))


@pytest.mark.parametrize("change", ['algorithm = "moon,temperature=0.5,mu=1"', 'algorithm = "moon"\nmu = 1.0'])
def test_an_algorithm_that_is_written_in_another_way_is_the_same(copy, finished, change):
    (copy / "results.json").unlink()
    text = (copy / "spec.toml").read_text()
    assert 'algorithm = "moon"' in text
    (copy / "spec.toml").write_text(text.replace('algorithm = "moon"', change, 1))
    *_, last = resume(RunFolder(copy))
    assert last.results["accuracy"] == finished[1]["accuracy"]


@pytest.fixture
def own_images(tmp_path, monkeypatch):
    """A run on a folder of pictures that can be changed."""
    monkeypatch.chdir(tmp_path)
    for part, number in (("train", 12), ("test", 4)):
        for shade, name in enumerate(("cat", "dog", "eel")):
            (tmp_path / "pics" / part / name).mkdir(parents=True)
            for picture in range(number):
                pixels = torch.full((16, 16, 3), 80 * shade + picture, dtype=torch.uint8).numpy()
                Image.fromarray(pixels).save(tmp_path / "pics" / part / name / f"{picture}.png")
    spec = replace(
        TINY,
        data=replace(TINY.data, name="folder:pics"),
        partition=replace(TINY.partition, kind="iid", min_size=1),
        training=replace(TINY.training, rounds=1),
        calibration=replace(TINY.calibration, methods=("ccvr,num_virtual=5",)),
    )
    run(spec, tmp_path / "run")
    return tmp_path


def test_pictures_that_changed_are_noticed(own_images):
    (own_images / "pics" / "train" / "cat").rename(own_images / "pics" / "train" / "zebra")
    (own_images / "pics" / "test" / "cat").rename(own_images / "pics" / "test" / "zebra")
    folder = RunFolder(own_images / "run")
    with pytest.raises(RunError, match="was drawn from other samples"):
        list(calibrate_again(folder, [parse_calibration("ccvr,num_virtual=5,label=new")]))
    folder.results.unlink()
    with pytest.raises(RunError, match="was drawn from other samples"):
        list(resume(folder))


def test_a_run_is_resumed_from_another_folder(own_images, monkeypatch):
    (own_images / "elsewhere").mkdir()
    monkeypatch.chdir(own_images / "elsewhere")
    RunFolder(own_images / "run").results.unlink()
    *_, last = resume(RunFolder(own_images / "run"))
    assert isinstance(last, Finished)


@pytest.mark.parametrize(("keep", "left"), [(1, [4]), (3, [2, 3, 4]), (0, [1, 2, 3, 4])])
def test_as_many_checkpoints_are_kept_as_asked(tmp_path, keep, left):
    run(replace(TINY, checkpoint=CheckpointSpec(every=1, keep=keep)), tmp_path / "run")
    names = [f"round-{number:06d}" for number in left]
    assert [path.stem for path in RunFolder(tmp_path / "run").checkpoints()] == names


def test_bytes_count_the_classes_that_a_client_has(tmp_path):
    spec = replace(
        TINY,
        data=replace(TINY.data, validation=0.0),
        partition=replace(TINY.partition, alpha=0.1, num_clients=3),
        training=replace(TINY.training, rounds=1),
    )
    results = run(spec, tmp_path / "run")
    counts = load_file(tmp_path / "run" / "partition.safetensors")["label_counts"]
    assert (counts == 0).any()
    features = 64
    assert results["calibrations"]["ccvr"]["bytes"] == full_bytes(counts, features)


def test_statistics_of_another_model_are_collected_again(copy):
    path = copy / "statistics" / "full.safetensors"
    whole = path.read_bytes()
    stored = ClassStatistics.from_bytes(whole)
    path.write_bytes(replace(stored, source=replace(stored.source, model="another")).to_bytes(dtype=torch.float64))
    list(calibrate_again(RunFolder(copy), [parse_calibration("ccvr,num_virtual=5,label=new")]))
    assert path.read_bytes() == whole


@pytest.mark.parametrize("content", ["[]", '{"accuracy": {}}', '{"accuracy": 1}', "null"])
def test_results_of_a_wrong_shape_are_one_error(copy, content):
    (copy / "results.json").write_text(content)
    for act in (lambda: list(resume(RunFolder(copy))), lambda: list(calibrate_again(RunFolder(copy), []))):
        with pytest.raises(RunError, match=r"results\.json is damaged: .*\. Delete it"):
            act()


def test_a_damaged_provenance_is_one_error(copy):
    (copy / "provenance.json").write_text("[]")
    with pytest.raises(RunError, match=r"provenance\.json is damaged"):
        list(calibrate_again(RunFolder(copy), [parse_calibration("ncm")]))


def test_classes_that_no_client_gives_are_named(copy):
    counts = load_file(copy / "partition.safetensors")["label_counts"]
    least = int(counts.amax(0).median()) + 1  # about half of the classes are withheld by every client
    row = parse_calibration(f"lda,min_count={least},label=some")
    events = list(calibrate_again(RunFolder(copy), [row]))
    gone = tuple(str(label) for label in range(10) if counts[:, label].max() < least)
    assert 0 < len(gone) < 10
    assert events[0].absent == gone
    assert events[-1].results["calibrations"]["some"]["absent_classes"] == list(gone)
    assert all(events[-1].results["per_class_recall"]["some"][int(name)] == 0 for name in gone)


def test_a_head_that_does_not_fit_is_not_kept(copy):
    row = parse_calibration("lda,taps=normalize,label=outside")
    with pytest.raises(ModelError, match='the tap "normalize" is not a layer of the backbone'):
        list(calibrate_again(RunFolder(copy), [row]))
    assert not (copy / "heads" / "outside.safetensors").exists()
