"""On a real federation over TLS, started once: one SuperLink, two SuperNodes, a process for each message."""

import json
from dataclasses import replace

import pytest

from ccvr.core.run import RunFolder
from ccvr.data.spec import PartitionSpec
from ccvr.experiment.pipeline import run
from ccvr.experiment.spec import FlowerSpec, to_toml
from ccvr.training.checkpoint import read_checkpoint
from tests.flower.processes import command, deployed, try_cases
from tests.flower.test_engine import TINY, furthest
from tests.flower.test_simulation import QUERY, assert_head

pytestmark = pytest.mark.flower

TWO = replace(
    TINY,
    partition=PartitionSpec(num_clients=2, alpha=0.5),
    training=replace(TINY.training, rounds=1),  # Flower starts a process for each message
)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    with deployed(tmp_path_factory.mktemp("deployment")) as deployment:
        yield deployment


def test_a_run_equals_one_in_this_process(deployment, tmp_path):
    spec = replace(TWO, engine="flower", flower=FlowerSpec(superlink="loopback"))
    (tmp_path / "spec.toml").write_text(to_toml(spec))
    done = command(deployment.link.environment, "run", tmp_path / "spec.toml", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "round 1/1" in done.stdout
    here = run(TWO, tmp_path / "here")
    states = [read_checkpoint(RunFolder(tmp_path / each).checkpoint(1)) for each in ("run", "here")]
    assert furthest(*(state.parameters | state.buffers for state in states)) <= 1e-5
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["accuracy"] == pytest.approx(here["accuracy"], abs=0.5)
    provenance = json.loads((tmp_path / "run" / "provenance.json").read_text())
    assert provenance["command"][:2] == ["ccvr", "run"]  # and no token of Flower's
    assert "token" not in json.dumps(provenance)
    assert (tmp_path / "run" / "report.html").is_file()


def test_the_stage_and_a_client_that_lies(deployment, tmp_path):
    cases = {"all": {}, "lies": {"0": [QUERY, "lie"]}}
    stage = {"method": "lda", "num_clients": 2}
    found = try_cases(
        deployment.link, tmp_path, *({"name": name, "faults": faults, "stage": stage} for name, faults in cases.items())
    )
    assert_head(found["all"], [0, 1])
    assert found["all"]["missing"] == {}
    ((_, said),) = found["lies"]["missing"].items()
    assert "these bytes are not class statistics" in said
    assert_head(found["lies"], [1])


def test_a_superlink_that_nobody_knows(deployment, tmp_path):
    done = command(
        deployment.link.environment,
        "run",
        "--engine",
        "flower",
        "--flower.superlink",
        "nowhere",
        "--out",
        tmp_path / "run",
        "--calibration.methods",
        "lda",
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "nowhere" in done.stderr
    assert not (tmp_path / "run").exists()
