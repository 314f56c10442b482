"""What takes minutes on Flower: our command, however it ends, and the READMEs; each with its own SuperLink."""

import re
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ccvr.core.run import RunFolder
from ccvr.experiment.pipeline import run
from ccvr.experiment.spec import to_toml
from ccvr.flower import stopping
from ccvr.flower.launch import free_port
from ccvr.models.build import ModelSpec
from ccvr.training.checkpoint import read_checkpoint
from tests.flower.noisy import NOISE
from tests.flower.processes import LIMIT, ROOT, alive, await_file, await_nobody, command, environment, start_command
from tests.flower.test_engine import TINY, furthest

pytestmark = pytest.mark.flower_slow


def test_the_command_simulates(tmp_path):
    """`ccvr run --engine flower`: its own SuperLink, its own Ray, and nothing of them afterwards.

    Also where temporary files lie so deep that Ray's sockets have no place there, and where a model prints lines that
    look like ours.
    """
    spec = replace(TINY, model=ModelSpec(name="tests.flower.noisy:make"))
    (tmp_path / "spec.toml").write_text(to_toml(replace(spec, engine="flower")))
    variables = environment(tmp_path, TMPDIR=str(tmp_path), CCVR_TRACEBACK="1")
    done = command(variables, "run", tmp_path / "spec.toml", "--trust", "--out", tmp_path / "run")
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
    assert stopping.still_running(started) == set()
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
    assert stopping.still_running(started) == set()
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
