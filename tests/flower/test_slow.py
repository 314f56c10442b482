"""What takes minutes on Flower: large statistics, no TLS, a restart, processes that die, the README."""

import json
import re
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ccvr.core.run import RunFolder
from ccvr.experiment.pipeline import run
from ccvr.experiment.spec import FlowerSpec, to_toml
from ccvr.flower import stopping
from ccvr.flower.launch import free_port, simulation
from ccvr.models.build import ModelSpec
from ccvr.training.checkpoint import read_checkpoint
from tests.flower.noisy import NOISE
from tests.flower.processes import (
    LIMIT,
    PATH,
    ROOT,
    alive,
    await_file,
    await_nobody,
    command,
    deployed,
    environment,
    start_command,
    try_cases,
)
from tests.flower.test_deployment import TWO
from tests.flower.test_engine import TINY, furthest
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


def test_the_command_simulates(tmp_path):
    """`ccvr run --engine flower`: its own SuperLink, its own Ray, and nothing of them afterwards.

    Also where temporary files lie so deep that Ray's sockets have no place there, and where a model prints lines that
    look like ours.
    """
    spec = replace(TINY, model=ModelSpec(name="tests.flower.noisy:make"))
    (tmp_path / "spec.toml").write_text(to_toml(replace(spec, engine="flower")))
    variables = environment(tmp_path, TMPDIR=str(tmp_path), CCVR_TRACEBACK="1")
    done = command(variables, "run", tmp_path / "spec.toml", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stdout + done.stderr
    for noise in NOISE:
        assert f"{noise}\n" in done.stderr
    here = run(spec, tmp_path / "here")
    states = [read_checkpoint(RunFolder(tmp_path / each).checkpoint(2)) for each in ("run", "here")]
    assert furthest(*(state.parameters | state.buffers for state in states)) <= 1e-5
    assert "round 2/2" in done.stdout
    assert f"{here['accuracy']['lda']:.2f}" in done.stdout
    assert (tmp_path / "run" / "report.html").is_file()
    await_nobody(tmp_path)
    assert {each.name for each in tmp_path.iterdir()} == {"spec.toml", "run", "here"}


def test_a_second_ctrl_c_leaves_nothing_behind(tmp_path):
    """Not even for a moment: whoever resumes the run at once finds it free."""
    out = tmp_path / "run"
    call = "run", "--engine", "flower", "--training.rounds", "500", "--partition.num-clients", "3", "--out", out
    process = start_command(environment(tmp_path, TMPDIR=str(tmp_path)), *call)
    await_file(out / "checkpoints" / "round-000001.safetensors")
    assert any("raylet" in each for each in alive(tmp_path))
    started = stopping.processes_with(f"TMPDIR={tmp_path}")  # Ray's agents, too, whose environment cannot be read
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
    _, said = process.communicate(timeout=LIMIT)
    assert stopping.still_there(started) == set()
    assert alive(tmp_path) == []
    assert process.returncode == 130
    assert f"ccvr resume {out}" in said
    with RunFolder(out).locked():
        assert [each.name for each in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(("ending", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129), ("pipe", 1)])
def test_what_ends_the_command_ends_everything(ending, code, tmp_path):
    """Our own SuperLink, its simulation and Ray are gone with it; a pipe that nobody reads is an error among others."""
    out = tmp_path / "run"
    call = "run", "--engine", "flower", "--training.rounds", "500", "--out", out
    process = start_command(environment(tmp_path, TMPDIR=str(tmp_path)), *call)
    await_file(out / "checkpoints" / "round-000001.safetensors")
    assert any("flower-superlink" in each for each in alive(tmp_path))
    assert any("raylet" in each for each in alive(tmp_path))
    started = stopping.processes_with(f"TMPDIR={tmp_path}")  # Ray's agents, too, whose environment cannot be read
    if ending == "pipe":
        process.stdout.close()
        process.wait(LIMIT)
    else:
        process.send_signal(signal.Signals[ending])
        _, said = process.communicate(timeout=LIMIT)
        assert (f"ccvr resume {out}" in said) == (ending == "SIGINT")
    assert stopping.still_there(started) == set()
    assert alive(tmp_path) == []
    assert process.returncode == code
    process.stderr.close()


README = (ROOT / "src" / "ccvr" / "flower" / "bundle" / "README.md").read_text()
QUICKSTART = (ROOT / "examples" / "flower-quickstart" / "README.md").read_text()


def blocks_of(text: str) -> list[str]:
    return re.findall(r"```bash\n(.*?)```", text, re.DOTALL)


def script_of(section: str) -> str:
    """A section's blocks after the exports of the first one; the package is installed already."""
    _, text = re.split(rf"^## {section}$", README, flags=re.MULTILINE)
    exports = re.sub(r"^(python3|\.venv/bin/pip) .*\n", "", blocks_of(README)[0], flags=re.MULTILINE)
    return exports + "".join(blocks_of(text.split("\n## ")[0]))


def run_script(script: str, folder: Path) -> str:
    """As written, in a folder like the repository; Flower's own SuperLink listens on ports that nobody else has."""
    for name in ("src", "examples"):
        (folder / name).symlink_to(ROOT / name)
    ports = "FLWR_LOCAL_CONTROL_API_PORT", "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT"
    done = subprocess.run(
        ["bash", "-c", f"set -e\n{script}"],
        cwd=folder,
        env=environment(folder, **{name: str(free_port()) for name in ports}),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_readmes_simulation(tmp_path):
    said = run_script(script_of("Simulation"), tmp_path)
    await_nobody(tmp_path / ".flwr")
    assert re.search(r"ccvr: round 8/8: accuracy .*\n(.*\n)*ccvr: finished, see it with: ccvr show \S+", said)


def test_the_quickstarts_readme(tmp_path):
    (script,) = blocks_of(QUICKSTART)
    said = run_script(script, tmp_path)
    await_nobody(tmp_path / ".flwr")
    assert re.search(r"calibrated: [\d.]+%", said)


def test_the_readmes_deployment(tmp_path):
    script = script_of("Deployment")
    for port in ("9092", "9094", "9095"):
        script = script.replace(port, str(free_port()))
    said = run_script(script, tmp_path)
    assert f"ccvr: finished, see it with: ccvr show {tmp_path}/runs/loopback" in said
    await_nobody(tmp_path / ".flwr")
