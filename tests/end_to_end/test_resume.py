"""Killed at any moment and resumed, with any number of workers, a run ends in the same bits as one left alone."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ccvr.core.run import RunFolder
from ccvr.experiment.pipeline import resume, run
from ccvr.experiment.spec import to_toml
from tests.end_to_end.tiny import TINY

KILLER = Path(__file__).with_name("killer.py")
TIMES = {"seconds", "samples"}


def without_times(value):
    if isinstance(value, dict):
        return {key: without_times(item) for key, item in value.items() if key not in TIMES}
    return [without_times(item) for item in value] if isinstance(value, list) else value


def contents(folder):
    """Everything in a run that must not depend on when it was killed."""
    files = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix in (".safetensors", ".toml")
    }
    files["results"] = without_times(json.loads((folder / "results.json").read_text()))
    files["rounds"] = without_times(RunFolder(folder).read_rounds())
    return files


ON_KERNELS = replace(
    TINY,
    training=replace(TINY.training, step="halide"),
    calibration=replace(TINY.calibration, methods=("ccvr,num_virtual=50",)),
)


@pytest.fixture(scope="module")
def left_alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(TINY, folder)
    return folder


@pytest.fixture(scope="module")
def alone_on_kernels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernels") / "run"
    run(ON_KERNELS, folder)
    return folder


def assert_same(folder, left_alone):
    found, expected = contents(folder), contents(left_alone)
    assert found.keys() == expected.keys()
    for name in expected.keys() - {"spec.toml"}:
        assert found[name] == expected[name], name


def test_sigkill_at_random_moments(left_alone, tmp_path):
    assert_survives_kills(replace(TINY, workers=1), 7, 0, left_alone, tmp_path)


def test_sigkill_with_workers_on_kernels(alone_on_kernels, tmp_path):
    assert_survives_kills(replace(ON_KERNELS, workers=2), 1, 2, alone_on_kernels, tmp_path)


def assert_survives_kills(chosen, kills, seed, left_alone, tmp_path):
    spec, folder = tmp_path / "spec.toml", tmp_path / "run"
    spec.write_text(to_toml(chosen))
    done = subprocess.run(
        [sys.executable, KILLER, spec, folder, str(kills), str(seed)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= min(kills, 3)
    assert_same(folder, left_alone)


@pytest.mark.slow  # two workers are tried above
def test_another_number_of_workers_ends_in_the_same_bits(left_alone, tmp_path):
    run(replace(TINY, workers=3), tmp_path / "run")
    assert_same(tmp_path / "run", left_alone)


def test_workers_may_change_before_a_resume(left_alone, tmp_path):
    folder = shutil.copytree(left_alone, tmp_path / "run")
    for lost in (folder / "results.json", RunFolder(folder).checkpoint(4)):
        lost.unlink()
    (folder / "spec.toml").write_text(to_toml(replace(TINY, workers=2)))
    list(resume(RunFolder(folder)))
    assert_same(folder, left_alone)
