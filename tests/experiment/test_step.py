"""Which step a run takes, what it is told about it, and what it keeps of it."""

import tomllib
from dataclasses import replace

import pytest
import torch
from torch import nn

from ccvr.calibration.spec import CalibrationSpec
from ccvr.core.errors import RunError, SpecError
from ccvr.core.run import RunFolder
from ccvr.experiment import step as module
from ccvr.experiment.events import Noted, Started
from ccvr.experiment.finished_run import open_finished_run, spec_of
from ccvr.experiment.pipeline import resume, run, start
from ccvr.experiment.run_or_resume import run_or_resume
from ccvr.experiment.spec import Spec, read_spec, to_toml
from ccvr.experiment.step import LONG, decided, notes
from ccvr.models.blocks import ConvBlock
from ccvr.models.build import ModelSpec, build_model
from ccvr.models.preprocess import Normalize
from ccvr.reproduction.cells import identity
from ccvr.training.checkpoint import checkpoint_bytes, read_checkpoint
from tests.end_to_end.tiny import TINY

SMALL = replace(TINY, calibration=CalibrationSpec(methods=()), training=replace(TINY.training, rounds=2))
EVERY_ROUND = replace(SMALL, checkpoint=replace(SMALL.checkpoint, every=1))
NETWORKS = {"digits-cnn": (1, 8, 8), "simple-cnn": (3, 32, 32), "mobilenet-v2": (3, 32, 32)}


def network(name):
    channels = NETWORKS[name][0]
    images = torch.zeros(2, *NETWORKS[name], dtype=torch.uint8)
    before = Normalize([0.5] * channels, [0.2] * channels)
    return build_model(ModelSpec(name), images, 10, preprocess=before, seed=0)


def with_step(step, spec=SMALL):
    return replace(spec, training=replace(spec.training, step=step))


@pytest.fixture
def without_the_extra(monkeypatch):
    monkeypatch.setattr(module, "is_installed", lambda: False)


@pytest.mark.parametrize(
    ("name", "step"), [("digits-cnn", "halide"), ("simple-cnn", "halide"), ("mobilenet-v2", "torch")]
)
def test_auto_takes_the_kernels_where_they_suit(name, step):
    assert decided(with_step("auto"), network(name)).training.step == step
    assert decided(with_step("torch"), network(name)).training.step == "torch"


def test_auto_is_torch_on_another_device_and_without_the_extra(without_the_extra):
    assert decided(with_step("auto"), network("digits-cnn")).training.step == "torch"
    cuda = replace(with_step("auto"), device="cuda")
    assert decided(cuda, network("digits-cnn")).training.step == "torch"


@pytest.mark.parametrize(
    ("spec", "name", "reason"),
    [
        (
            with_step("halide"),
            "mobilenet-v2",
            "the model has no blocks that kernels run. Use --training.step torch, or build it of ConvBlock.",
        ),
        (replace(with_step("halide"), device="cuda"), "digits-cnn", 'device is "cuda". Use --device cpu.'),
    ],
)
def test_kernels_that_cannot_run_are_refused(spec, name, reason):
    with pytest.raises(SpecError) as refused:
        decided(spec, network(name))
    assert str(refused.value) == f'training.step is "halide", but {reason}'


def test_a_block_that_does_not_suit_is_named():
    model = network("digits-cnn")
    model.backbone.model.layer2[0] = nn.Conv2d(16, 32, 4)
    with pytest.raises(SpecError, match=r'kernels do not take the block "backbone\.model\.layer2" as it is'):
        decided(with_step("halide"), model)
    assert decided(with_step("auto"), model).training.step == "torch"


def test_a_halide_that_does_not_load_is_found_before_anything_is_trained(monkeypatch):
    def broken():
        raise ImportError("libz.so: version GLIBC_9 not found\nand so on")

    monkeypatch.setattr(module, "this_machine", broken)
    assert decided(with_step("auto"), network("digits-cnn")).training.step == "torch"
    with pytest.raises(
        SpecError, match=r"Halide does not work here \(ImportError: libz.so: version GLIBC_9 not found\)"
    ):
        decided(with_step("halide"), network("digits-cnn"))


def test_kernels_that_are_not_installed_are_refused(without_the_extra):
    with pytest.raises(SpecError, match=r'the extra "fast" is not installed. Install it: pip install "ccvr\[fast\]"'):
        decided(with_step("halide"), network("digits-cnn"))


def said(spec, images, name="digits-cnn"):
    model = network(name)
    return [note.text for note in notes(spec, decided(spec, model), model, images)]


def test_a_user_is_told_that_kernels_compile():
    assert said(with_step("auto"), 100) == ["step: halide; each process compiles its kernels first, about 2 s"]
    assert said(with_step("torch"), 10 * LONG) == []


def test_a_user_is_told_once_what_the_extra_would_bring_if_the_run_is_long(without_the_extra):
    per_image = SMALL.training.rounds * SMALL.training.local_epochs * SMALL.training.client_fraction
    assert said(with_step("auto"), int(LONG / per_image) - 10) == []
    (line,) = said(with_step("auto"), int(LONG / per_image) + 10)
    assert line.startswith('step: torch; with the extra "fast"')
    assert said(with_step("torch"), 10 * LONG) == [], "who asked for torch knows"
    assert said(with_step("auto"), 10 * LONG, "mobilenet-v2") == [], "it would bring nothing"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of each step."""
    folder = tmp_path_factory.mktemp("steps")
    return {step: (folder / step, run(with_step(step), folder / step)) for step in ("auto", "torch")}


def test_a_run_keeps_what_auto_became(finished):
    path, results = finished["auto"]
    assert tomllib.loads((path / "spec.toml").read_text())["training"]["step"] == "halide"
    assert read_spec(finished["torch"][0] / "spec.toml").training.step == "torch"
    assert results["accuracy"] == finished["torch"][1]["accuracy"], "so few digits do not tell the steps apart"
    kernels = [
        part.kernels for part in open_finished_run(RunFolder(path)).model.modules() if isinstance(part, ConvBlock)
    ]
    assert kernels == [True, True]


def old(folder: RunFolder) -> None:
    """Make a run look like one of a version that knew no step."""
    spec = read_spec(folder.spec)
    lines = to_toml(spec).splitlines()
    folder.spec.write_text("\n".join(line for line in lines if not line.startswith("step =")))
    for path in folder.checkpoints():
        state = read_checkpoint(path)
        path.write_bytes(checkpoint_bytes(state, {"training.rounds": spec.training.rounds}))


def test_runs_that_say_nothing_were_trained_by_torch(tmp_path):
    list(start(with_step("torch", EVERY_ROUND), tmp_path / "run"))
    folder = RunFolder(tmp_path / "run")
    last = read_checkpoint(folder.checkpoint(2))
    old(folder)
    assert read_spec(folder.spec).training.step == "auto", "what a spec is without the field"
    assert spec_of(folder).training.step == "torch"
    for lost in (folder.results, folder.checkpoint(2)):
        lost.unlink()
    text = folder.spec.read_text()
    folder.spec.write_text(text.replace("[training]", '[training]\nstep = "halide"'))
    with pytest.raises(RunError, match=r"was trained with training\.step = 'torch'; the spec now says 'halide'"):
        list(resume(folder))
    folder.spec.write_text(text)
    with pytest.raises(RunError, match=r"holds a run with training\.step = 'torch', not 'halide'"):
        list(run_or_resume(with_step("halide", EVERY_ROUND), folder.path))
    list(run_or_resume(with_step("torch", EVERY_ROUND), folder.path))
    assert read_spec(folder.spec).training.step == "torch"
    again = read_checkpoint(folder.checkpoint(2))
    assert all(torch.equal(again.parameters[name], tensor) for name, tensor in last.parameters.items())


def test_an_unfinished_run_goes_on_with_its_step(tmp_path, monkeypatch):
    spec = with_step("auto", EVERY_ROUND)
    events = start(spec, tmp_path / "run")
    for event in events:
        if isinstance(event, Started):
            next(events)
            break
    events.close()
    folder = RunFolder(tmp_path / "run")
    assert [path.name for path in folder.checkpoints()] == ["round-000001.safetensors"]
    folder.spec.write_text(to_toml(spec))
    assert spec_of(folder).training.step == "halide", "a checkpoint says so, though the spec was written anew"
    monkeypatch.setattr(module, "is_installed", lambda: False)
    with pytest.raises(SpecError, match="is not installed"):
        list(resume(folder))
    monkeypatch.undo()
    assert isinstance(next(iter(resume(folder))), Noted), "kernels compile again"
    list(resume(folder))
    assert folder.results.is_file()


def test_a_finished_run_can_be_looked_at_without_the_extra(finished, monkeypatch):
    monkeypatch.setattr(module, "is_installed", lambda: False)
    opened = open_finished_run(RunFolder(finished["auto"][0]))
    assert not any(part.kernels for part in opened.model.modules() if isinstance(part, ConvBlock))


def test_any_step_will_do_where_a_run_is_looked_for(finished, tmp_path):
    assert identity(with_step("torch")) == identity(with_step("halide")) == identity(with_step("auto"))
    path = finished["torch"][0]
    assert list(run_or_resume(with_step("auto"), path)), "auto is content with what is there"
    with pytest.raises(RunError, match=r"holds a run with training\.step = 'torch', not 'halide'"):
        list(run_or_resume(with_step("halide"), path))


def test_notes_come_before_anything_else(tmp_path):
    first = next(iter(start(with_step("auto"), tmp_path / "run")))
    assert isinstance(first, Noted)


def test_the_default_is_auto():
    assert Spec().training.step == "auto"
