"""What takes minutes on Flower: large statistics, no TLS, a restart, processes that die."""

import json
import re
import signal
from dataclasses import replace

import pytest

from ccvr.core.run import RunFolder
from ccvr.experiment.pipeline import run
from ccvr.experiment.spec import FlowerSpec, to_toml
from ccvr.flower.launch import simulation
from ccvr.training.checkpoint import read_checkpoint
from tests.flower.processes import LIMIT, PATH, await_file, command, deployed, start_command, try_cases
from tests.flower.test_deployment import TWO
from tests.flower.test_engine import furthest
from tests.flower.test_simulation import QUERY, assert_head

pytestmark = pytest.mark.flower_slow

LARGE = {"width": 1280, "stage": {"method": "ncm,kind=full", "quorum": 1.0, "num_clients": 3, "timeout": LIMIT}}
ALL = 3 * 12 * 100
"""Samples of three clients of the large model."""


def test_large_statistics_in_a_simulation(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", PATH)
    with simulation(3, 2) as link:
        found = try_cases(link, tmp_path, {"name": "large", **LARGE})["large"]
    assert found["bytes"] > 328e6
    assert found["samples"] == ALL
    assert found["missing"] == {}


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    with deployed(tmp_path_factory.mktemp("slow"), number=3) as deployment:
        yield deployment


def test_large_statistics_in_a_deployment(deployment, tmp_path):
    found = try_cases(deployment.link, tmp_path, {"name": "large", **LARGE})["large"]
    assert found["samples"] == ALL
    assert found["bytes"] > 328e6
    assert found["missing"] == {}


def test_more_clients_take_no_more_of_the_servers_memory(deployment, tmp_path):
    """Nine clients after three: six answers more, of which not even three would have a place."""
    few, many = ({"name": str(number), "crowd": number, "nodes": 3, "width": 512} for number in (3, 9))
    found = try_cases(deployment.link, tmp_path, few, many)
    assert found["9"]["samples"] == 3 * found["3"]["samples"] == 3 * ALL
    assert found["9"]["peak"] - found["3"]["peak"] < 3 * found["3"]["bytes"]


def test_clients_that_die_or_never_answer(deployment, tmp_path):
    """A process that dies in the query, one that dies in training, one that says nothing: each is named."""
    stage = {"method": "lda", "num_clients": 3, "timeout": 60}
    three = replace(TWO, partition=replace(TWO.partition, num_clients=3), engine="flower")
    found = try_cases(
        deployment.link,
        tmp_path,
        {"name": "dies", "stage": stage, "faults": {"1": [QUERY, "die"]}},
        {"name": "silent", "stage": stage, "faults": {"0": [QUERY, "sleep"]}},
        {"name": "training", "run": to_toml(three), "faults": {"2": ["train", "die"]}},
    )
    for name, others in (("dies", [0, 2]), ("silent", [1, 2])):
        assert len(found[name]["missing"]) == 1
        assert_head(found[name], others)
    assert found["training"]["error"] == "FederationError"
    assert re.match(r"2 of 3 clients answered round 1, .* Missing: client 2 \(", found["training"]["text"])
    assert "\n" not in found["training"]["text"]


def test_a_deployment_without_tls(tmp_path):
    with deployed(tmp_path, secure=False) as deployment:
        case = {"name": "all", "stage": {"method": "lda", "num_clients": 2, "quorum": 1.0}}
        assert_head(try_cases(deployment.link, tmp_path / "trial", case)["all"], [0, 1])


def test_a_node_that_is_killed_is_named(tmp_path):
    """The machine is gone, not the process alone. For a while Flower still knows it; then it is one too few."""
    with deployed(tmp_path) as deployment:
        stage = {"method": "lda", "num_clients": 2, "timeout": 240}
        try_cases(deployment.link, tmp_path / "before", {"name": "all", "stage": stage})  # both are known to the link
        deployment.nodes[0].send_signal(signal.SIGKILL)
        found = try_cases(deployment.link, tmp_path / "after", {"name": "killed", "stage": stage})["killed"]
    assert len(found["missing"]) + found["absent"] == 1
    assert "missing: nobody" not in found["text"]
    assert_head(found, [1])


def test_the_superlink_is_restarted_between_training_and_calibration(tmp_path):
    """The trained model is in the run folder, and a resumed run ends as one that was left alone."""
    spec = replace(TWO, engine="flower", flower=FlowerSpec(superlink="loopback"))
    (tmp_path / "spec.toml").write_text(to_toml(spec))
    folder = RunFolder(tmp_path / "run")
    with deployed(tmp_path, database=True) as deployment:
        call = "run", tmp_path / "spec.toml", "--out", folder.path
        process = start_command(deployment.link.environment, *call)
        await_file(folder.head("uncalibrated"))
        deployment.link_process.kill()
        deployment.link_process.wait()
        _, said = process.communicate(timeout=LIMIT)
        assert process.returncode == 2
        assert said.count("\n") == 1, said
        assert read_checkpoint(folder.checkpoint(2)).round == 2
        assert not folder.results.exists()
        deployment.start_link()
        done = command(deployment.link.environment, "resume", folder.path)
        assert done.returncode == 0, done.stderr
        assert "resuming after round 2 of 2" in done.stdout
    here = run(TWO, tmp_path / "here")
    states = [read_checkpoint(RunFolder(path).checkpoint(2)) for path in (folder.path, tmp_path / "here")]
    assert furthest(*(state.parameters | state.buffers for state in states)) <= 1e-5
    assert json.loads(folder.results.read_text())["accuracy"] == pytest.approx(here["accuracy"], abs=0.5)
