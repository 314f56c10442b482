import dataclasses
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from ccvr.cli.run import unused_folder
from ccvr.experiment.presets import PRESETS
from ccvr.experiment.spec import Spec, from_toml, read_spec, to_toml
from tests.cli.conftest import SCRIPT, TINY, Command, Launch

SMALL = ["--workers", "1", "--training.rounds", "1", "--training.local-epochs", "1", "--data.validation", "0.8"]
SMALL += ["--partition.num-clients", "3", "--partition.alpha", "0.5", "--no-report", "--training.step", "torch"]
SMALL += ["--calibration.methods", "ccvr,num_virtual=5,epochs=1"]


class TestDryRun:
    @pytest.mark.parametrize("name", PRESETS)
    def test_of_every_preset_is_its_spec_file(self, name: str, ccvr: Command, tmp_path: Path) -> None:
        # A small batch, for the dry run times a few steps and some presets have large networks.
        code, out, err = ccvr("run", name, "--dry-run", "--threads", "1", "--training.batch-size", "2")
        assert (code, err) == (0, "")
        preset = PRESETS[name]
        training = dataclasses.replace(preset.training, batch_size=2)
        assert from_toml(out) == dataclasses.replace(preset, threads=1, training=training)
        assert "\n# training samples: " in out
        assert list(tmp_path.iterdir()) == []

    def test_of_nothing_is_the_demo(self, launch: Launch, tmp_path: Path) -> None:
        process = launch("run", "--dry-run")
        out, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, "")
        assert from_toml(out) == Spec()
        assert list(tmp_path.iterdir()) == []

    def test_what_it_prints_can_be_run_and_changed(self, ccvr: Command, tmp_path: Path) -> None:
        (tmp_path / "my.toml").write_text(ccvr("run", *SMALL, "--dry-run").out)
        code, out, _ = ccvr("run", "my.toml", "--seed", "7", "--dry-run")
        assert code == 0
        assert from_toml(out) == dataclasses.replace(read_spec(tmp_path / "my.toml"), seed=7)

    def test_every_option_reaches_the_spec(self, ccvr: Command) -> None:
        argv = ["--data.augment", "True", "--data.root", "a/b", "--training.clsnorm"]
        argv += ["--training.algorithm", "moon,mu=4"]
        argv += ["--calibration.methods", "ccvr,label=a,seed=5", "oracle", "--partition.alpha", "2"]
        spec = from_toml(ccvr("run", *argv, "--dry-run", "--threads", "1").out)
        assert spec.data.augment is True
        assert spec.data.root == Path("a/b")
        assert spec.training.algorithm == "moon,mu=4"
        assert spec.calibration.methods == ("ccvr,label=a,seed=5", "oracle")
        assert spec.training.clsnorm is True
        assert spec.partition.alpha == 2.0


class TestRun:
    def test_a_run_tells_what_it_does_and_where_it_is(self, ccvr: Command, tmp_path: Path) -> None:
        code, out, err = ccvr("run", *SMALL, "--out", "mine")
        assert (code, err) == (0, "")
        results = json.loads((tmp_path / "mine" / "results.json").read_text())
        assert "Training samples of each client, by class" in out
        assert f"round 1/1  accuracy {results['accuracy']['uncalibrated']:.2f} %" in out
        assert f"ccvr: accuracy {results['accuracy']['ccvr']:.2f} %" in out
        assert out.endswith('Run folder: mine\nThe model, in Python: ccvr.load("mine")\n')

    def test_quiet_means_quiet(self, ccvr: Command, tmp_path: Path) -> None:
        assert ccvr("run", *SMALL, "--out", "mine", "--quiet") == (0, "", "")
        assert (tmp_path / "mine" / "results.json").is_file()

    def test_a_second_run_does_not_take_the_place_of_the_first(self, ccvr: Command, tmp_path: Path) -> None:
        ccvr("run", *SMALL, "--out", "mine", "--quiet")
        before = (tmp_path / "mine" / "model.safetensors").read_bytes()
        code, out, err = ccvr("run", *SMALL, "--seed", "1", "--out", "mine", "--quiet")
        assert (code, out) == (2, "")
        assert err == (
            "RunError: mine holds a run already. Continue it with `ccvr resume mine`, replace it with --overwrite, "
            "or choose another --out.\n"
        )
        assert (tmp_path / "mine" / "model.safetensors").read_bytes() == before
        assert ccvr("run", *SMALL, "--seed", "1", "--out", "mine", "--quiet", "--overwrite") == (0, "", "")
        assert (tmp_path / "mine" / "model.safetensors").read_bytes() != before

    def test_folders_without_out_are_named_after_the_spec(self, ccvr: Command, tmp_path: Path) -> None:
        ccvr("run", *SMALL, "--quiet")
        ccvr("run", *SMALL, "--quiet")
        names = sorted(path.name for path in (tmp_path / "runs").iterdir())
        assert names == ["digits-a0.5-fedavg-seed0", "digits-a0.5-fedavg-seed0-2"]

    def test_unused_folders_are_numbered(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        for expected in ("a", "a-2", "a-3"):
            assert unused_folder("a") == Path("runs") / expected
            (tmp_path / "runs" / expected).mkdir(parents=True)


LONG = dataclasses.replace(
    TINY,
    data=dataclasses.replace(TINY.data, validation=0.8),
    training=dataclasses.replace(TINY.training, rounds=20),
)


def children_of(parent: int) -> list[int]:
    """Processes that ``parent`` started and that run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            _, _, rest = path.read_text().rpartition(")")
        except OSError:
            continue  # it ended in the meantime
        if int(rest.split()[1]) == parent:
            found.append(int(path.parent.name))
    return found


class TestStopped:
    def test_ctrl_c_says_how_to_go_on_and_resume_does(self, ccvr: Command, launch: Launch, tmp_path: Path) -> None:
        (tmp_path / "long.toml").write_text(to_toml(LONG))
        process = launch("run", "long.toml", "--out", "mine")
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("round 2/20"):
                process.send_signal(signal.SIGINT)
                break
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130
        assert err == "\nstopped. Go on with: ccvr resume mine\n"

        code, out, err = ccvr("show", "mine")
        assert (code, out) == (2, "")
        assert err == (
            "mine is not finished: go on with `ccvr resume mine`.\nRunError: none of these runs is finished.\n"
        )
        assert ccvr("evaluate", "mine").err == "RunError: mine has no model. Finish it with `ccvr resume mine`.\n"

        code, out, err = ccvr("resume", "mine", "--no-report")
        assert (code, err) == (0, "")
        assert out.startswith("resuming after round ")
        assert "round 20/20" in out
        assert "round 1/20" not in out
        assert len((tmp_path / "mine" / "rounds.jsonl").read_text().splitlines()) == 20
        assert ccvr("show", "mine").code == 0

    @pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="children are read from /proc")
    def test_ctrl_c_ends_the_workers_too(self, launch: Launch, tmp_path: Path) -> None:
        (tmp_path / "long.toml").write_text(to_toml(LONG))
        process = launch("run", "long.toml", "--workers", "2", "--out", "mine")
        assert process.stdout is not None
        next(line for line in process.stdout if line.startswith("round 1/20"))
        workers = children_of(process.pid)
        assert len(workers) >= 2
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (130, "\nstopped. Go on with: ccvr resume mine\n")
        ends = time.monotonic() + 20  # Python's own resource tracker ends a moment after its parent
        while [pid for pid in workers if Path(f"/proc/{pid}").exists()] and time.monotonic() < ends:
            time.sleep(0.1)
        assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]

    def test_a_finished_run_is_resumed_by_showing_it(self, finished: Path, ccvr: Command, tmp_path: Path) -> None:
        run = shutil.copytree(finished, tmp_path / "run")
        ccvr("resume", run)  # which writes the page that it lacks
        files = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
        code, out, err = ccvr("resume", run)
        assert (code, err) == (0, "")
        assert "ccvr *" in out
        assert "Report:" not in out, "it is there, and of the same files"
        assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == files

    def test_a_stopped_calibration_keeps_what_it_finished(self, finished: Path, launch: Launch, tmp_path: Path) -> None:
        shutil.copytree(finished, tmp_path / "run")
        before = json.loads((tmp_path / "run" / "results.json").read_text())["accuracy"]
        methods = ["ccvr,label=quick", "ccvr,label=endless,epochs=1000000"]
        process = launch("calibrate", "run", "--method", *methods)
        assert process.stdout is not None
        assert process.stdout.readline().startswith("quick: accuracy ")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (130, "\nstopped.\n")
        after = json.loads((tmp_path / "run" / "results.json").read_text())["accuracy"]
        assert after == before | {"quick": after["quick"]}


def test_a_terminal_that_knows_ascii_only(tmp_path: Path) -> None:
    done = subprocess.run(
        [SCRIPT, "run", *SMALL, "--out", "run"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "Run folder: run" in done.stdout
