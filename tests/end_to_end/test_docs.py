"""Every command and block of the documents works as written."""

import re
import shlex
from pathlib import Path

import pytest
import torch
from tests.end_to_end.tiny import TINY

from ccvr.cli.main import dispatch
from ccvr.data.sources.rows import SOURCES
from ccvr.experiment.pipeline import run

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
    if words[0] == "run" and "--dry-run" not in words:
        words.append("--dry-run")
    words = [str(finished) if re.fullmatch(r"RUN|runs/[\w*]+", word) and words[0] != "run" else word for word in words]
    if words[0] == "calibrate":
        words.append("--overwrite")
    dispatch(words)
    assert capsys.readouterr().out


def test_the_readmes_python(tmp_path, monkeypatch, capsys):
    (block,) = re.findall(r"```python\n(.*?)```", PAGES[0].read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    scope = {"images": torch.zeros(3, 1, 8, 8, dtype=torch.uint8)}
    exec(block, scope)
    assert scope["scores"].shape == (3, 10)
    assert "ccvr" in capsys.readouterr().out


def test_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
