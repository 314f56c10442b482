"""Every block of docs/extending.md: it runs, and it fits its budget of lines."""

import re
import shlex
from pathlib import Path

import pytest

from ccvr.cli.personalise import command as personalise
from ccvr.cli.run import command

PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()
PARTS = re.findall(r"^##+ (.+?)\n(.*?)(?=^##+ |\Z)", PAGE, re.MULTILINE | re.DOTALL)
SECTIONS = {title: text for title, text in PARTS if "```python" in text}
BUDGETS = {
    "A partitioner": 25,
    "A data set": 20,
    "A calibrator": 20,
    "A model of one's own": 15,
    "A kind of statistics": 25,
    "What a client minimises": 25,
    "What the server does": 25,
    "What stays with a client": 10,
    "What a server learns": 40,
    "All of it": 40,
}


def code(section):
    (block,) = re.findall(r"```python\n(.*?)```", SECTIONS[section], re.DOTALL)
    return block


def lines_of_code(block):
    """Lines that say something: no blanks, comments, imports or docstrings."""
    without_docstrings = re.sub(r'^\s*""".*?"""$', "", block, flags=re.MULTILINE | re.DOTALL)
    lines = [line.strip() for line in without_docstrings.splitlines()]
    return [line for line in lines if line and not line.startswith(("#", "import ", "from "))]


@pytest.mark.parametrize("section", SECTIONS)
def test_the_commands_run(section, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    name = f"mine_{list(SECTIONS).index(section)}"  # a module is imported once; each section is one of its own
    (tmp_path / f"{name}.py").write_text(code(section))
    commands = re.findall(r"^    ccvr run (.+)$", SECTIONS[section], re.MULTILINE)
    assert commands
    for line in commands:
        words = [*shlex.split(line.replace("mine:", f"{name}:")), "--training.local-epochs", "1", "--workers", "1"]
        words += [] if "blocks" in line else ["--training.step", "torch"]  # other models have no use for kernels
        command([*words, "--dry-run"])
        assert "training samples" in capsys.readouterr().out
        command([*words, "--no-report"])
        assert "Run folder: runs" in capsys.readouterr().out
    for line in re.findall(r"^    ccvr personalise (.+)$", SECTIONS[section], re.MULTILINE):
        personalise([*shlex.split(line.replace("mine:", f"{name}:")), "--no-report"])
        assert "│ Between " in capsys.readouterr().out


@pytest.mark.parametrize("section", BUDGETS)
def test_the_budget(section):
    assert len(lines_of_code(code(section))) <= BUDGETS[section]
