"""Every command and block of the documents works as written."""

import copy
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import ccvr
from bench.attacks import tables
from bench.reproduction import BLOCK, refreshed
from bench.reproduction import PAGES as GENERATED
from ccvr.cli.main import dispatch
from ccvr.data.sources.rows import SOURCES
from ccvr.experiment.pipeline import run
from tests.end_to_end.tiny import TINY

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = sorted(
    {
        re.sub(r"\s+#.*", "", line)
        for page in PAGES
        if page.name != "extending.md"  # its commands need its code: test_extending.py
        for line in re.findall(r"^    (ccvr .+)$", page.read_text(), re.MULTILINE)
    }
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    run(TINY, path)
    return path


@pytest.mark.parametrize("line", COMMANDS)
def test_commands(line, finished, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    _, *words = shlex.split(line)
    if words[0] == "data":  # what it downloads or checks is not here; that the names are right is
        assert words[1] == "list" or words[2] in SOURCES
        words = ["data", "list"]
    words = [str(ROOT / word) if word.startswith("results/") else word for word in words]
    if words[0] in ("run", "tune", "compare") and "--dry-run" not in words and not words[-1].endswith(".json"):
        words.append("--dry-run")
    if words[0] == "reproduce":  # from the records; what the words ask for is checked, but not trained
        words += ["--results", str(ROOT / "results")] + ["--budget", "0"] * ("--budget" not in words)
        words += ["table1"] * ("--list" in words)  # not the time of steps of every network
        words = ["0" if before == "--budget" else word for before, word in zip(["", *words], words, strict=False)]
        if "--record" in words:
            words += ["--out", str(finished.parent), "--results", "here"]
    words = [word.replace("per_class=1000", "per_class=125") for word in words]  # as many as a class has here
    words = [str(finished) if re.fullmatch(r"RUN|runs/[\w*-]+", word) and words[0] != "run" else word for word in words]
    if words[0] in ("calibrate", "personalise"):
        words += ["--overwrite", "--no-report"]
    if words[0] == "analyze" and "--only" not in words:
        words += ["--only", "norms"]  # test_analyze.py has the others
    dispatch(words)
    assert capsys.readouterr().out


def small_federation():
    """A model of five numbers in, ten classes out, and three clients that have all classes."""
    rng = torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 10))
    y = torch.arange(300) % 10
    return model, [[(torch.randn(300, 5, generator=rng) + y.unsqueeze(1), y)] for _ in range(3)]


def test_the_readmes_python(capsys):
    (block,) = re.findall(r"```python\n(.*?)```", PAGES[0].read_text(), re.DOTALL)
    model, clients = small_federation()
    scope = {"model": model, "clients": clients, "images": clients[0][0][0]}
    exec(block, scope)
    assert scope["scores"].shape == (300, 10)
    assert "forecast" in capsys.readouterr().out


def test_the_librarys_python(capsys):
    """Every block of library.md, one after the other, on a small model and three clients."""
    model, clients = small_federation()
    blobs = [ccvr.collect(model, batches, num_classes=10).to_bytes() for batches in clients]
    scope = {"model": model, "batches": clients[0], "blobs": blobs, "clients": clients, "held_out": clients}
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "library.md").read_text(), re.DOTALL):
        exec(block, scope)
        assert ccvr.score(scope["fixed"], clients[0], 10).accuracy > ccvr.score(model, clients[0], 10).accuracy + 20
    assert "chosen: ccvr" in capsys.readouterr().out


def test_the_robust_merges_python(capsys):
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "robustness.md").read_text(), re.DOTALL)
    model, clients = small_federation()
    x, y = clients[0][0]
    parts = small_statistics(model, [*clients, clients[1], [(x, (y + 1) % 10)]])
    scope = {"ccvr": ccvr, "blobs": [part.to_bytes() for part in parts]}
    exec(block, scope)
    assert capsys.readouterr().out.count("part 4: the mean of classes") == 2
    assert scope["total"].count.sum() == 4 * 300


def test_the_analyses_python(capsys):
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "analysis.md").read_text(), re.DOTALL)
    model, clients = small_federation()
    images, labels = clients[0][0]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        other = copy.deepcopy(model)
        other[0].reset_parameters()
    scope = {"models": [model, other], "images": images, "labels": labels, "x": model[:2](images), "y": images}
    scope |= {"scores": model(images), "weight": model[4].weight, "total": ccvr.merge(small_statistics(model, clients))}
    scope |= {"client_norms": torch.rand(3, 10), "label_counts": torch.arange(30).view(3, 10)}
    exec(block, scope)
    assert "4 0." in capsys.readouterr().out, "the head's CKA"


def small_statistics(model, clients):
    return [ccvr.collect(model, batches, num_classes=10) for batches in clients]


def test_the_example(tmp_path):
    script = ROOT / "examples" / "calibrate_your_model.py"
    assert len(script.read_text().splitlines()) <= 40
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    before, after = (float(found) for found in re.findall(r"^(?:before|after): ([\d.]+) %", done.stdout, re.MULTILINE))
    assert after > before + 5
    assert list(tmp_path.iterdir()) == []


def test_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize(("page", "blocks"), [(GENERATED[0], 6), (GENERATED[1], 5)])
def test_pages_say_what_the_records_say(page, blocks):
    text = page.read_text()
    assert refreshed(text) == text, "run: python bench/reproduction.py"
    assert len(BLOCK.findall(text)) >= blocks


def test_the_attacks_are_those_of_the_records():
    records = json.loads((ROOT / "results" / "attacks.json").read_text())
    page = (ROOT / "docs" / "robustness.md").read_text()
    for block in tables([row for record in records for row in record["rows"]]).split("\n\n"):
        assert block in page, "run: python bench/attacks.py --table results/attacks.json"


def test_nothing_is_left_to_be_filled_in():
    """Comments are the bounds of blocks that are kept up to date, and nothing else."""
    for page in PAGES:
        comments = re.findall(r"<!-- (.+?) -->", page.read_text(), re.DOTALL)
        assert [each for each in comments if each != "end" and not BLOCK.match(f"<!-- {each} -->\n<!-- end -->")] == []
