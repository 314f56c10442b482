import re
import subprocess
import sys

import pytest

from ccvr import __version__
from ccvr.algorithms.table import ALGORITHMS
from ccvr.calibration.table import CALIBRATORS
from ccvr.cli.main import COMMANDS
from ccvr.experiment.personalisations import PERSONALISATIONS
from ccvr.experiment.presets import PRESETS
from tests.cli.conftest import Command, Launch

OPTIONS = {
    "run": [
        "--out",
        "--overwrite",
        "--dry-run",
        "--quiet",
        "--no-report",
        "--seed",
        "--training.rounds",
        "--calibration.methods",
        "--engine",
        "--flower.superlink",
    ],
    "resume": ["The run folder", "--quiet"],
    "calibrate": ["The run folder", "--method", "--num-virtual", "--repeats", "--deploy", "--overwrite"],
    "personalise": ["The run folder", "--method", "--head", "--overwrite", "--quiet", "--no-report"],
    "evaluate": ["The run folder", "--head", "--data.root", "--quiet"],
    "analyze": ["Run folders", "--only", "--against", "--points", "--quiet"],
    "report": ["Run folders", "--out", "-o", "--figures", "--quiet"],
    "reproduce": [
        *("--list", "--claims", "--record", "--cells", "--seeds", "--scale", "--budget", "--no-train", "--format"),
        *("--figures", "--out", "--results", "--data.root", "--workers", "--quiet"),
    ],
    "compare": [
        *("PRESET", "--algorithms", "--seeds", "--redraw", "--budget", "--out", "--record", "--results", "--format"),
        *("--json", "--dry-run", "--quiet", "--training.rounds", "--calibration.methods"),
    ],
    "tune": ["PRESET", "--training.algorithm", "--out", "--dry-run", "--quiet"],
    "show": ["Run folders", "--partition", "--json"],
    "data": ["list", "get", "check", "--root"],
    "list": ["algorithms", "calibrators", "A row of the table"],
}


def test_every_command_has_its_options_here() -> None:
    assert set(OPTIONS) == set(COMMANDS)


@pytest.mark.parametrize("flag", ["--help", "-h"])
@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command(command: str, flag: str, ccvr: Command) -> None:
    code, out, err = ccvr(command, flag)
    assert code == 0
    assert err == ""
    assert [option for option in OPTIONS[command] if option not in out] == []


@pytest.mark.parametrize("action", ["list", "get", "check"])
def test_help_of_every_data_command(action: str, ccvr: Command) -> None:
    code, out, err = ccvr("data", action, "--help")
    assert (code, err) == (0, "")
    assert "--root" in out


def test_help_of_run_names_every_preset(ccvr: Command) -> None:
    words = ccvr("run", "--help").out.replace(",", " ").replace(".\n", "\n").split()
    assert [name for name in PRESETS if name not in words] == []


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"], ["help"]])
def test_the_commands_at_a_glance(argv: list[str], ccvr: Command) -> None:
    code, out, err = ccvr(*argv)
    assert (code, err) == (0, "")
    assert [name for name in COMMANDS if f"  ccvr {name} " not in out] == []


def test_the_version(launch: Launch) -> None:
    process = launch("--version")
    assert process.communicate(timeout=60) == (f"ccvr {__version__}\n", "")
    assert process.returncode == 0


def test_help_does_not_wait_for_torch() -> None:
    script = "import sys; from ccvr.cli.main import dispatch; dispatch(['--help']); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], stdout=subprocess.DEVNULL, check=True)


def test_every_personalisation_is_named_where_methods_are_asked_for(ccvr: Command) -> None:
    assert set(PERSONALISATIONS) <= set(re.findall(r"[\w-]+", ccvr("personalise", "--help").out))


def test_every_calibrator_is_named_where_methods_are_asked_for(ccvr: Command) -> None:
    for command in ("run", "calibrate"):
        words = set(re.findall(r"[\w-]+", ccvr(command, "--help").out))
        assert set(CALIBRATORS) <= words, command


def test_help_of_run_names_every_server_optimiser_and_the_table_of_algorithms(ccvr: Command) -> None:
    said = " ".join(re.findall(r"[\w-]+", ccvr("run", "--help").out))
    about = said.partition("training server")[2]
    servers = [name for name, row in ALGORITHMS.items() if row.is_server]
    assert len(servers) > 1
    assert [name for name in servers if name not in about.partition("training rounds")[0]] == []
    assert "ccvr list algorithms" in said.partition("training server")[0]
