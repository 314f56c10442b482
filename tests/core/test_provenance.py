import json
import os
import platform
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path

import pytest

import ccvr
from ccvr.core.provenance import provenance


def test_what_a_run_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/ccvr", "run", "--seed", "3"])
    record = provenance(3)
    assert record["command"] == ["ccvr", "run", "--seed", "3"]
    assert record["seed"] == 3
    assert abs(datetime.now(UTC) - datetime.fromisoformat(record["started"])) < timedelta(seconds=30)
    assert record["versions"]["python"] == platform.python_version()
    assert record["versions"]["torch"] == version("torch")
    assert record["versions"]["ccvr"] == ccvr.__version__
    assert record["hardware"]["cores"] == os.cpu_count()
    assert record["hardware"]["cpu"]
    assert json.loads(json.dumps(record)) == record


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    done = subprocess.run(["git", "-C", str(folder), *identity, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit_seen_from(source: Path) -> str:
    script = "from ccvr.core.provenance import source_commit; print(source_commit())"
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def copy_package(folder: Path) -> None:
    shutil.copytree(Path(ccvr.__file__).parent, folder / "ccvr", ignore=shutil.ignore_patterns("__pycache__"))


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_commit_of_a_checkout_of_ours_and_its_changes(tmp_path: Path) -> None:
    copy_package(tmp_path / "src")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--no-gpg-sign", "-m", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "results.json").write_text("{}")
    assert commit_seen_from(tmp_path / "src") == commit, "what lies beside the code is no change of it"
    (tmp_path / "src" / "ccvr" / "core" / "seeds.py").write_text("# edited\n")
    assert commit_seen_from(tmp_path / "src") == f"{commit}+changes"


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_commit_of_somebody_elses_checkout_is_not_ours(tmp_path: Path) -> None:
    copy_package(tmp_path / "venv" / "site-packages")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "commit", "--quiet", "--no-gpg-sign", "--allow-empty", "-m", "theirs")
    assert commit_seen_from(tmp_path / "venv" / "site-packages") == "None"


def test_no_checkout_no_commit(tmp_path: Path) -> None:
    copy_package(tmp_path / "src")
    assert commit_seen_from(tmp_path / "src") == "None"
