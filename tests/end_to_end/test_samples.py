"""Token ids with a transformer, vectors with a linear model, several inputs: every command works on them."""

import json
import shlex
import shutil
import sys
from pathlib import Path

import pytest
import torch

import ccvr
from ccvr.cli import analyze, calibrate, evaluate, report, resume, run, show
from ccvr.core.errors import CcvrError
from ccvr.core.run import RunFolder
from ccvr.data.batches import in_order
from ccvr.data.catalogue import check, load

OWN = '''
import torch
from torch import nn

from ccvr.data.samples import Dataset, Samples


def split(inputs, labels, names, **options):
    def part(rows):
        chosen = {k: t[rows] for k, t in inputs.items()} if isinstance(inputs, dict) else inputs[rows]
        return Samples(chosen, labels[rows])

    return Dataset(part(slice(0, 300)), part(slice(300, 400)), names, **options)


def drawn():
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(400) % 4
    centres = 3 * torch.randn(4, 6, generator=rng)
    return 5 + 40 * (centres[labels] + torch.randn(400, 6, generator=rng)), labels


def vectors(root):
    x, labels = drawn()
    return split(x, labels, ("a", "b", "c", "d"), preprocess="standardize")


class Noisy:
    """Adds noise to training inputs."""

    def prepare(self, inputs):
        return inputs

    def batch(self, prepared, indices, *, rng):
        chosen = prepared["x"][torch.from_numpy(indices)]
        noise = torch.from_numpy(rng.normal(size=tuple(chosen.shape))).float()
        return {"x": chosen + noise, "side": prepared["side"][torch.from_numpy(indices)]}


def pairs(root):
    x, labels = drawn()
    return split({"x": x / 40, "side": (labels % 2).unsqueeze(1)}, labels, ("a", "b", "c", "d"), augment=Noisy())


class TwoInputs(nn.Module):
    def __init__(self, shape, num_classes):
        super().__init__()
        self.side = nn.Embedding(2, 4)
        self.body = nn.Sequential(nn.Linear(shape["x"][0] + 4, 16), nn.ReLU())
        self.head = nn.Linear(16, num_classes)

    def forward(self, x, side):
        return self.head(self.body(torch.cat([x, self.side(side).flatten(1)], dim=1)))
'''
KINDS = {
    "tokens": ["--data.name", "tokens:commands", "--model.name", "tokens:transformer", "--workers", "1"],
    "vectors": ["--data.name", "own_samples:vectors", "--workers", "1"],
    "pairs": ["--data.name", "own_samples:pairs", "--model.name", "own_samples:TwoInputs", "--workers", "2"],
}
SHORT = shlex.split("--training.rounds 3 --training.local-epochs 1 --partition.num-clients 4 --partition.alpha 0.5")
CALIBRATED = shlex.split("--data.validation 0.1 --calibration.methods ccvr lda oracle --checkpoint.keep 0 --no-report")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder with the modules that the commands name."""
    (tmp_path / "own_samples.py").write_text(OWN)
    shutil.copy(Path(__file__).parents[2] / "examples" / "tokens.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize("kind", KINDS)
def test_every_command(kind, home, capsys):
    path, copied = home / "run", home / "copied"
    run.command([*KINDS[kind], *SHORT, *CALIBRATED, "--out", str(path)])
    spec = path / "spec.toml"
    spec.write_text(spec.read_text().replace("workers = 2", "workers = 1"))  # what follows need not start them again
    results = json.loads((path / "results.json").read_text())
    assert list(results["accuracy"]) == ["uncalibrated", "ccvr", "lda", "oracle"]
    assert max(results["accuracy"].values()) > 100 / len(results["class_names"]) + 10, "it learns"

    dataset = load(KINDS[kind][1])
    for head, accuracy in results["accuracy"].items():
        counts = ccvr.score(ccvr.load(path, head=head, trust=True), in_order(dataset.test), dataset.num_classes)
        assert round(counts.accuracy, 4) == accuracy, "a loaded model scores the same"

    shutil.copytree(path, copied)
    for gone in (copied / "results.json", copied / "model.safetensors", RunFolder(copied).checkpoints()[-1]):
        gone.unlink()
    shutil.rmtree(copied / "heads")
    resume.command([str(copied), "--no-report", "--trust"])
    for file in ("model.safetensors", "heads/ccvr.safetensors", "heads/lda.safetensors"):
        assert (copied / file).read_bytes() == (path / file).read_bytes(), "a resumed run ends in the same bits"

    calibrate.command([str(path), "--trust", "--method", "ridge", "--deploy", "ridge"])
    results = json.loads((path / "results.json").read_text())
    capsys.readouterr()
    evaluate.command([str(path), "--quiet", "--trust"])
    assert float(capsys.readouterr().out) == results["accuracy"]["ridge"]
    show.command([str(path)])
    assert "ridge *" in capsys.readouterr().out
    analyze.command([str(path), "--trust", "--only", "confusion", "cka", "separability"])
    assert "mean CKA" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        analyze.command([str(path), "--trust", "--only", "inversion"])
    assert "inversion reconstructs images, and the inputs of this run are others" in capsys.readouterr().err
    if kind == "vectors":  # a page is made from run files alone, which are the same for all
        report.command([str(path)])
        page = (path / "report.html").read_text()
        assert all(name in page for name in results["class_names"])
        capsys.readouterr()
    run.command([*KINDS[kind], *SHORT, "--dry-run"])
    assert "training samples: " in capsys.readouterr().out


def test_a_model_whose_code_is_not_here_is_not_damaged(home, monkeypatch):
    run.command(
        [*KINDS["pairs"][:-1], "1", *SHORT, "--calibration.methods", "lda", "--no-report", "--out", str(home / "run")]
    )
    monkeypatch.setattr("sys.path", [each for each in sys.path if each != str(home)])
    monkeypatch.delitem(sys.modules, "own_samples")
    monkeypatch.chdir(home.parent)
    with pytest.raises(
        CcvrError, match=r"needs code that is not here: .*own_samples.* Start from the folder that holds"
    ):
        ccvr.load(home / "run", trust=True)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--model.name", "simple-cnn"], "simple-cnn takes images [C, H, W]; these inputs are (6,)."),
        (["--data.augment", "True"], "only uint8 images [N, C, H, W] are shifted and mirrored"),
        (["--training.step", "halide"], "the model has no blocks that kernels run"),
        (["--data.name", "tokens:commands"], "model.name is auto, which knows images and vectors; inputs are int64"),
    ],
)
def test_what_vectors_and_tokens_cannot_do_is_one_line(home, more, message):
    with pytest.raises(CcvrError) as refused:
        run.command([*KINDS["vectors"], *more, "--out", str(home / "run")])
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_check_says_of_them(home):
    shown = {kind: check(words[1]).inputs for kind, words in KINDS.items()}
    assert shown == {"tokens": "int64 [12]", "vectors": "float32 [6]", "pairs": "x: float32 [6], side: int64 [1]"}


def test_statistics_of_several_inputs_add_up():
    class Sum(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head = torch.nn.Linear(3, 2)

        def forward(self, x, shift):
            return self.head(x + shift)

    model, labels = Sum(), torch.tensor([0, 1, 1, 0, 1])
    batch = {"x": torch.randn(5, 3), "shift": torch.ones(5, 3)}
    found = ccvr.collect(model, [(batch, labels)], num_classes=2, min_count=0)
    expected = ccvr.statistics_of(batch["x"] + 1, labels, 2)
    assert torch.allclose(found.total, expected.total)
