"""A run folder, a spec or a comparison of somebody else's runs no code, whichever command reads it."""

import json
import shutil
import tomllib
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import tomli_w

import ccvr as library
from ccvr.core.errors import UntrustedCode
from ccvr.core.run import RunFolder
from ccvr.experiment.pipeline import run
from ccvr.experiment.spec import Spec, from_toml, to_toml
from ccvr.models.tensor_file import tensors_from_bytes, tensors_to_bytes
from tests.cli.conftest import TINY, Command

SPY = """
import pathlib
pathlib.Path(__file__).with_name("imported").touch()
"""
MODEL = "ccvr-model/2"
QUICK = ["--training.rounds", "1", "--training.local-epochs", "1", "--training.step", "torch"]
QUICK += ["--partition.num-clients", "2", "--partition.kind", "iid", "--workers", "1"]
READING = {
    "resume": ["--quiet"],
    "calibrate": ["--method", "ncm", "--quiet"],
    "personalise": ["--method", "prior", "--head", "ccvr", "--quiet"],
    "evaluate": ["--quiet"],
    "analyze": ["--only", "norms", "--quiet"],
    "show": [],
    "report": ["--quiet"],
}
"""Commands that read a run folder."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    run(TINY, folder)
    return folder


@pytest.fixture
def spy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], bool]:
    """A module that leaves a mark when it is imported; asks for the mark."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "spy.py").write_text(SPY)
    monkeypatch.syspath_prepend(tmp_path / "modules")
    return (tmp_path / "modules" / "imported").exists


def text_fields(cls: Any, where: str = "") -> list[str]:
    """The dotted names of all fields of a spec that hold texts."""
    found, hints = list[str](), get_type_hints(cls)
    for each in fields(cls):
        hint, name = hints[each.name], f"{where}{each.name}"
        if is_dataclass(hint):
            found += text_fields(hint, f"{name}.")
        elif "str" in str(hint):
            found.append(name)
    return found


NOT_CODE = {"flower.superlink", "model.head", "calibration.deploy"}
"""Texts that no table reads. That they are not imported is tried as well."""


def planted(folder: Path, field: str) -> None:
    content = tomllib.loads((folder / "spec.toml").read_text())
    *sections, last = field.split(".")
    table = content
    for section in sections:
        table = table.setdefault(section, {})
    table[last] = ["ncm", "lda,kind=spy:x"] if field == "calibration.methods" else "spy:x"
    (folder / "spec.toml").write_text(tomli_w.dumps(content))


def in_results(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = RunFolder(folder).results
    content = json.loads(path.read_text())
    change(content["calibrations"]["ccvr"])
    path.write_text(json.dumps(content))


def in_model(folder: Path, **header: str) -> None:
    path = RunFolder(folder).model
    old, tensors = tensors_from_bytes(path.read_bytes(), format=MODEL)
    path.write_bytes(tensors_to_bytes(tensors, **{**old, **header}))
    content = json.loads(RunFolder(folder).results.read_text())
    RunFolder(folder).results.write_text(json.dumps({key: content[key] for key in content if key != "files"}))


def test_every_field_of_a_spec_that_a_table_reads_is_known() -> None:
    names = {"data.name", "data.unlabelled", "partition.kind", "model.name", "training.algorithm", "training.server"}
    names |= {"calibration.methods", "calibration.between"}
    plain = {name for name in text_fields(Spec) if "Literal" not in name}
    assert names <= plain
    assert plain >= NOT_CODE


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_spec_of_somebody_else_runs_no_code(
    finished: Path, is_finished: bool, tmp_path: Path, spy: Callable[[], bool], ccvr: Command
) -> None:
    for field in text_fields(Spec):
        folder = shutil.copytree(finished, tmp_path / "run", dirs_exist_ok=True)
        planted(folder, field)
        if not is_finished:
            (folder / "results.json").unlink()
        for command, options in READING.items():
            if command == "report" and field != "data.name":
                continue  # it takes seconds, and reads the spec as it reads any text
            code, _, err = ccvr(command, folder, *options)
            assert not spy(), (command, field)
            if is_finished and command not in ("show", "report") and field not in ("flower.superlink",):
                assert code == 2, (command, field)
                assert err.count("\n") == 1, err
                assert "spec.toml names code that is not part of ccvr: " in err, err
                assert f'{field} is "spy:x", which would import and run spy. Add --trust' in err, err


@pytest.mark.parametrize("change", [{"method": "spy:x"}, {"kind": "spy:x"}, {"method": "ncm", "epochs": "spy:x"}])
def test_results_of_somebody_else_run_no_code(
    change: dict[str, str], finished: Path, tmp_path: Path, spy: Callable[[], bool], ccvr: Command
) -> None:
    folder = shutil.copytree(finished, tmp_path / "run")
    in_results(folder, lambda row: row.update(change))
    for command in ("calibrate", "personalise", "analyze", "show"):
        code, _, err = ccvr(command, folder, *READING[command])
        assert not spy(), command
        assert (code, "results.json names code that is not part of ccvr" in err) == (2, True) or command == "show"


@pytest.mark.parametrize("key", ["name", "preprocess"])
def test_a_model_of_somebody_else_runs_no_code(
    key: str, finished: Path, tmp_path: Path, spy: Callable[[], bool], ccvr: Command
) -> None:
    folder = shutil.copytree(finished, tmp_path / "run")
    in_model(folder, **{key: "spy:x"})
    code, _, err = ccvr("evaluate", folder)
    assert (code, err.count("\n")) == (2, 1)
    assert f'model.safetensors names code that is not part of ccvr: {key} is "spy:x"' in err
    for head in (None, "ccvr"):
        with pytest.raises(UntrustedCode, match="in Python trust=True"):
            library.load(folder, head=head)
    assert not spy()


def test_a_comparison_of_somebody_else_runs_no_code(tmp_path: Path, spy: Callable[[], bool], ccvr: Command) -> None:
    argv = [*QUICK, "--calibration.methods", "ncm", "--seeds", "1"]
    folder = tmp_path / "comparison"
    assert ccvr("compare", "--algorithms", "fedavg", "fednova", *argv, "--out", folder, "--quiet").code == 0
    kept = json.loads((folder / "comparison.json").read_text())
    arms = json.loads(json.dumps(kept).replace('"fednova"', '"spy:Arm"'))
    for content in ({**kept, "spec": {**kept["spec"], "data": {"name": "spy:x"}}}, arms):
        (folder / "comparison.json").write_text(json.dumps(content))
        code, _, err = ccvr("compare", folder)
        assert (code, "comparison.json names code that is not part of ccvr" in err) == (2, True), err
        assert ccvr("compare", folder / "comparison.json").code == 0, "its numbers are shown, and nothing is run"
        assert not spy()


def test_a_spec_file_needs_trust_and_the_command_line_does_not(
    tmp_path: Path, spy: Callable[[], bool], ccvr: Command
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(to_toml(TINY).replace('name = "digits"', 'name = "spy:x"'))
    for argv in (
        ["run", path],
        ["tune", path, "--training.lr", "0.1", "0.2"],
        ["compare", path, "--algorithms", "a", "b"],
    ):
        code, _, err = ccvr(*argv)
        assert (code, err.partition(":")[0]) == (2, "UntrustedCode")
        assert not spy()
    code, _, err = ccvr("run", path, "--trust", "--dry-run")
    assert spy()
    assert "has no attribute 'x'" in err


OWN = """
from ccvr.data.catalogue import load
from ccvr.calibration.closed_forms import Ncm
from dataclasses import dataclass

def digits(root):
    return load("digits")

@dataclass(frozen=True)
class Mine(Ncm):
    pass
"""


def test_code_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ccvr: Command) -> None:
    (tmp_path / "trusted_own.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    argv = ["--data.name", "trusted_own:digits", *QUICK]
    assert ccvr("run", *argv, "--calibration.methods", "ncm", "--out", "here", "--quiet").code == 0
    page = (tmp_path / "here" / "report.html").read_text()
    assert "come from code that is not part of ccvr: <code>trusted_own:digits</code>." in page
    assert ccvr("evaluate", "here").code == 2
    assert ccvr("evaluate", "here", "--trust").code == 0
    assert ccvr("resume", "here", "--trust", "--quiet") == (0, "", "")
    typed = ccvr("calibrate", "here", "--method", "trusted_own:Mine", "--quiet", "--no-report")
    assert 'data.name is "trusted_own:digits"' in typed.err, "what is typed is trusted, and the run's data is not typed"
    assert ccvr("calibrate", "here", "--trust", "--method", "trusted_own:Mine", "--quiet") == (0, "", "")
    assert "<code>trusted_own:Mine</code>" in (tmp_path / "here" / "report.html").read_text()
    assert ccvr("analyze", "here", "--trust", "--only", "norms", "--quiet").code == 0
    (tmp_path / "here" / "results.json").unlink()
    assert ccvr("resume", "here", "--quiet").code == 2
    assert ccvr("resume", "here", "--trust", "--quiet").code == 0


def test_the_same_comparison_of_ones_own_code_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ccvr: Command
) -> None:
    """The command names the code again, so the runs that it made may name it, too."""
    (tmp_path / "trusted_own.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    argv = ["compare", "--data.name", "trusted_own:digits", *QUICK]
    argv += ["--calibration.methods", "ncm", "--seeds", "1", "--algorithms", "fedavg", "fednova", "--out", "here"]
    assert ccvr(*argv, "--quiet").code == 0
    results = sorted((tmp_path / "here").rglob("results.json"))
    assert len(results) == 2
    results[0].unlink()
    assert ccvr(*argv, "--quiet").code == 0
    assert results[0].is_file()
    assert ccvr("compare", "here", "--quiet").code == 2
    assert ccvr("compare", "here", "--trust", "--quiet").code == 0


def test_a_text_is_a_spec_only_with_trust(spy: Callable[[], bool]) -> None:
    for section in ('[data]\nname = "spy:x"', '[calibration]\nmethods = ["spy:x"]\nepochs = 3'):
        with pytest.raises(UntrustedCode):
            from_toml(section)
    assert not spy()
