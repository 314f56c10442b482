"""On a real simulation of Flower's, started once: runs equal those in this process, the stage survives its clients."""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import ccvr
from ccvr.core.run import RunFolder
from ccvr.experiment.pipeline import run
from ccvr.experiment.spec import to_toml
from ccvr.flower.launch import simulation
from ccvr.training.checkpoint import read_checkpoint
from tests.flower.processes import (
    PATH,
    ROOT,
    await_nobody,
    run_app,
    try_cases,
)
from tests.flower.small import batches_of, small_model
from tests.flower.test_engine import furthest, with_training

pytestmark = pytest.mark.flower

QUERY = "query.ccvr_statistics"
RUNS = {
    "kernels": with_training(step="halide"),
    "moon": with_training(algorithm="moon"),
    "together": with_training(algorithm="fedavgm,momentum=0.5", clsnorm=True, clsprox=0.1),
}
"""Every algorithm is tried in test_engine.py, without Flower's processes."""
STAGES = {
    "all": {"stage": {"method": "lda", "quorum": 1.0}},
    "kernel": {"stage": {"method": "kernel,num_features=50", "quorum": 1.0, "validate": True}},
    "fails": {"stage": {"method": "lda"}, "faults": {"1": [QUERY, "fail"]}},
    "lies": {"stage": {"method": "lda"}, "faults": {"0": [QUERY, "lie"]}},
    "nothing": {"stage": {"method": "lda", "quorum": 1.0}, "faults": {"2": [QUERY, "nothing"]}},
    "too-few": {"stage": {"method": "lda", "quorum": 0.9}, "faults": {"1": [QUERY, "fail"], "2": [QUERY, "lie"]}},
    "silent": {"stage": {"method": "lda", "timeout": 10}, "faults": {"1": [QUERY, "sleep"]}},
}


@pytest.fixture(scope="module")
def link(tmp_path_factory):
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = PATH
    with simulation(3, 2) as link:
        yield link
    await_nobody(Path(link.environment["FLWR_HOME"]))
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


@pytest.fixture(scope="module")
def trial(link, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trial")
    runs = [{"name": name, "run": to_toml(replace(spec, engine="flower"))} for name, spec in RUNS.items()]
    stages = [{"name": name, **case} for name, case in STAGES.items()]
    return folder, try_cases(link, folder, *runs, *stages)


@pytest.mark.parametrize("name", RUNS)
def test_a_run_ends_in_the_model_of_this_process(name, trial, tmp_path):
    folder, found = trial
    here = run(RUNS[name], tmp_path)
    states = [read_checkpoint(RunFolder(path).checkpoint(2)) for path in (folder / name, tmp_path)]
    models = [state.parameters | state.buffers for state in states]
    assert furthest(*models) == 0, "the same bits"
    assert found[name]["results"]["accuracy"] == pytest.approx(here["accuracy"], abs=0.5)
    files = [{each.name for each in path.iterdir()} for path in (folder / name, tmp_path)]
    assert files[0] == files[1] - {"memories"}  # those of Flower's nodes stay with the nodes


def head_from(clients):
    """The head that lda makes of some clients' statistics."""
    blobs = [ccvr.collect(small_model(), batches_of(k), num_classes=4, kind="pooled").to_bytes() for k in clients]
    return [t.tolist() for t in ccvr.calibrate(small_model(), ccvr.merge(blobs), "lda")[4].state_dict().values()]


def assert_head(found, clients):
    for mine, theirs in zip(found["head"], head_from(clients), strict=True):
        assert torch.tensor(mine) == pytest.approx(torch.tensor(theirs), rel=1e-5)
    assert found["samples"] == 80 * len(clients)
    assert found["untouched"]


def test_the_stage_is_the_library(trial):
    assert_head(trial[1]["all"], [0, 1, 2])
    assert "missing: nobody" in trial[1]["all"]["text"]


def test_kernel_and_validation(trial):
    assert re.search(r"kernel from kernel statistics.*chosen: kernel", trial[1]["kernel"]["text"], re.DOTALL)


@pytest.mark.parametrize(
    ("name", "others", "reason"),
    [
        ("fails", [0, 2], "statistics: (RuntimeError: )?out of luck$"),
        ("lies", [1, 2], "these bytes are not class statistics"),
        ("silent", [0, 2], "no answer within 10 seconds"),
    ],
)
def test_one_client_is_missing_and_named(name, others, reason, trial):
    found = trial[1][name]
    ((node, said),) = found["missing"].items()
    assert re.search(reason, said)
    assert f"client {node}" in found["text"]
    assert_head(found, others)


def test_a_client_without_samples(trial):
    assert trial[1]["nothing"]["without_samples"] == 1
    assert trial[1]["nothing"]["missing"] == {}
    assert_head(trial[1]["nothing"], [0, 1])


def test_fewer_than_the_quorum(trial):
    found = trial[1]["too-few"]
    assert found["error"] == "FederationError"
    assert "1 of 3 clients answered the query for pooled statistics, where 3 are needed" in found["text"]
    assert found["text"].count("client ") == 2
    assert "\n" not in found["text"]


def test_the_quickstart(link, tmp_path):
    """Its own lines for the calibration, 15 at most, lift the accuracy; both models are saved."""
    app = ROOT / "examples" / "flower-quickstart"
    lines = [line for file in app.glob("quickstart/*.py") for line in file.read_text().splitlines()]
    assert 0 < sum("# calibration" in line for line in lines) <= 15
    log = run_app(link, app, tmp_path, folder=str(tmp_path), **{"num-clients": 3, "num-server-rounds": 2})
    trained, calibrated = (float(re.search(rf"{name}: ([\d.]+)%", log)[1]) for name in ("trained", "calibrated"))
    assert calibrated > trained + 3
    assert "3 clients; missing: nobody" in log
    assert {"final_model.pt", "calibrated_model.pt"} <= {path.name for path in tmp_path.iterdir()}
