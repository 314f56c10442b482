"""What can be done with a finished run: show, evaluate, calibrate."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import ccvr as package
from ccvr.core.results import ClientScores
from ccvr.core.run import RunFolder
from tests.cli.conftest import SCRIPT, Command


def results_of(path: Path) -> dict:
    return json.loads(RunFolder(path).results.read_text())


@pytest.fixture
def own(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, to be written."""
    shutil.copytree(finished, tmp_path / "own")
    return tmp_path / "own"


class TestShow:
    def test_accuracies(self, finished: Path, ccvr: Command) -> None:
        code, out, err = ccvr("show", finished)
        assert (code, err) == (0, "")
        for label, accuracy in results_of(finished)["accuracy"].items():
            assert re.search(rf"{label}( \*)? +│ +{accuracy:.2f} │", out)
        assert "Training samples of each client" not in out

    def test_owners(self, finished: Path, ccvr: Command) -> None:
        out = ccvr("show", finished, "--partition").out
        assert "Training samples of each client, by class" in out
        assert "Test accuracy in percent" in out

    def test_json(self, finished: Path, ccvr: Command) -> None:
        code, out, err = ccvr("show", finished, "--json")
        assert (code, err) == (0, "")
        assert json.loads(out) == {str(finished): results_of(finished)}

    def test_two_runs(self, finished: Path, own: Path, ccvr: Command) -> None:
        shown = json.loads(ccvr("show", finished, own, "--json").out)
        assert list(shown) == [str(finished), str(own)]
        assert ccvr("show", finished, own).out.count("uncalibrated") == 2

    def test_an_unfinished_run_among_others(self, finished: Path, own: Path, ccvr: Command) -> None:
        RunFolder(own).results.unlink()
        code, out, err = ccvr("show", finished, own)
        assert (code, err) == (0, f"{own} is not finished: go on with `ccvr resume {own}`.\n")
        assert out.count("uncalibrated") == 1

    def test_the_clients_own_models(self, own: Path, ccvr: Command) -> None:
        folder = RunFolder(own)
        assert "own models" not in ccvr("show", own)[1]
        scores: ClientScores = {"mean": 81.25, "worst": 40.0, "p10": 50.0}
        folder.write_results({**folder.read_results(), "personal_accuracy": scores})
        shared = folder.read_results()["client_accuracy"]["uncalibrated"]
        out = ccvr("show", own)[1]
        assert "Clients' own models: percent under each client's label mix" in out
        said = f"81.25 ({shared['mean']:.2f}) │ {81.25 - shared['mean']:+.2f} │ 40.00 ({shared['worst']:.2f})"
        assert f"│ trained    │ uncalibrated │ {said}" in out
        assert out.index("│ trained ") > out.index("│ oracle ")

    def test_raw_data_that_moved(self, own: Path, ccvr: Command) -> None:
        folder = RunFolder(own)
        assert "raw data moved" not in ccvr("show", own)[1]
        folder.write_results({**folder.read_results(), "shared": {"samples": 72, "bytes": 51840}})
        assert "raw data moved: every client trained on 72 shared samples" in ccvr("show", own)[1]

    @pytest.mark.parametrize(
        ("content", "fact"),
        [("{}", 'its content has no "accuracy"'), ("[]", "its content is a list, not an object")],
    )
    def test_results_without_their_keys(self, own: Path, ccvr: Command, content: str, fact: str) -> None:
        RunFolder(own).results.write_text(content)
        code, out, err = ccvr("show", own)
        assert (code, out) == (2, "")
        assert err == (
            f"RunError: {own}/results.json is damaged: {fact}. Delete it and make it again with `ccvr resume {own}`; "
            "calibrations that were added with `ccvr calibrate` must be added again.\n"
        )

    def test_a_damaged_partition(self, own: Path, ccvr: Command) -> None:
        RunFolder(own).partition.write_bytes(b"damaged")
        code, out, err = ccvr("show", own, "--partition")
        assert (code, out) == (2, "")
        assert err.startswith(f"RunError: {own}/partition.safetensors cannot be read (")
        assert err.count("\n") == 1

    def test_damaged_results(self, own: Path, ccvr: Command) -> None:
        RunFolder(own).results.write_text('{"accuracy": ')
        code, out, err = ccvr("show", own)
        assert (code, out) == (2, "")
        assert err.startswith(f"RunError: {own}/results.json cannot be read (")
        assert err.count("\n") == 1


class TestEvaluate:
    def test_it_finds_the_accuracy_that_the_run_found(self, finished: Path, ccvr: Command) -> None:
        results = results_of(finished)
        code, out, err = ccvr("evaluate", finished, "--quiet")
        assert (code, err) == (0, "")
        assert float(out) == results["accuracy"]["ccvr"]
        assert (
            float(ccvr("evaluate", finished, "--quiet", "--head", "uncalibrated").out)
            == (results["accuracy"]["uncalibrated"])
        )

    def test_recalls(self, finished: Path, ccvr: Command) -> None:
        results = results_of(finished)
        out = ccvr("evaluate", finished).out
        for name, recall in zip(results["class_names"], results["per_class_recall"]["ccvr"], strict=True):
            assert re.search(rf"│ {name} +│ +{recall:.2f} │", out)
        assert f"accuracy {results['accuracy']['ccvr']:.2f} %, loss " in out

    def test_an_unknown_head(self, finished: Path, ccvr: Command) -> None:
        assert ccvr("evaluate", finished, "--head", "few") == (
            2,
            "",
            f'RunError: {finished} has no head "few". It has: ccvr, oracle, uncalibrated.\n',
        )


class TestCalibrate:
    def test_every_method_number_and_repeat_gets_a_label_and_a_seed(self, own: Path, ccvr: Command) -> None:
        before = results_of(own)
        argv = [
            "--method",
            "ccvr,epochs=1",
            "ccvr,label=t,transform=tukey",
            "--num-virtual",
            "5",
            "10",
            "--repeats",
            "2",
        ]
        code, out, err = ccvr("calibrate", own, *argv, "--no-report")
        assert (code, err) == (0, "")
        results = results_of(own)
        new = {f"{name}-m{number}-r{repeat}" for name in ("ccvr", "t") for number in (5, 10) for repeat in (1, 2)}
        assert set(results["accuracy"]) - set(before["accuracy"]) == new
        made = results["calibrations"]
        assert {label: made[label]["seed"] for label in ("t-m5-r1", "t-m5-r2")} == {"t-m5-r1": 0, "t-m5-r2": 1}
        assert made["t-m10-r1"]["num_virtual"] == 10
        assert made["t-m10-r1"]["transform"] == "tukey"
        assert made["ccvr-m10-r1"]["epochs"] == 1
        mean = (results["accuracy"]["t-m10-r1"] + results["accuracy"]["t-m10-r2"]) / 2
        assert re.search(rf"│ t-m10 +│ 2 │ {mean:.2f} │", out)
        assert results["deployed"] == before["deployed"]

    def test_options_are_those_of_the_run_unless_given(self, own: Path, ccvr: Command) -> None:
        methods = ["ccvr,label=same", "ccvr,epochs=1,label=short", "ccvr-converged,iterations=1", "oracle,label=all"]
        assert ccvr("calibrate", own, "--method", *methods, "--no-report").code == 0
        made = results_of(own)["calibrations"]
        assert [(made[label]["num_virtual"], made[label]["epochs"]) for label in ("same", "short")] == [
            (20, 2),
            (20, 1),
        ]
        assert made["ccvr-converged"]["num_virtual"] == 2000, "another method"
        assert made["all"]["epochs"] == 1
        accuracy = results_of(own)["accuracy"]
        assert (accuracy["same"], accuracy["all"]) == (accuracy["ccvr"], accuracy["oracle"])
        assert accuracy["same"] != accuracy["short"]

    def test_a_run_of_before_methods_had_options(self, own: Path, ccvr: Command) -> None:
        old = 'methods = ["ccvr", "oracle,epochs=1"]\nnum_virtual = 20\nepochs = 2\n'
        text = RunFolder(own).spec.read_text()
        section = re.search(r"\[calibration\]\n(.*?)\n\[", text, re.DOTALL)[1]
        RunFolder(own).spec.write_text(text.replace(section, old))
        assert ccvr("calibrate", own, "--method", "ccvr,label=same", "--no-report").code == 0
        accuracy, row = results_of(own)["accuracy"], results_of(own)["calibrations"]["same"]
        assert (row["num_virtual"], row["epochs"]) == (20, 2)
        assert accuracy["same"] == accuracy["ccvr"]

    def test_a_label_is_taken_until_overwritten(self, own: Path, ccvr: Command) -> None:
        before = results_of(own)
        code, _, err = ccvr("calibrate", own, "--method", "ccvr,epochs=1", "--quiet")
        assert code == 2
        assert err == (
            f'RunError: {own} has "ccvr" already, made in another way. Use --overwrite, or --method '
            "METHOD,label=NAME.\n"
        )
        assert results_of(own) == before
        assert ccvr("calibrate", own, "--method", "ccvr,epochs=1", "--quiet", "--overwrite", "--no-report") == (
            0,
            "",
            "",
        )
        assert results_of(own)["calibrations"]["ccvr"]["epochs"] == 1

    def test_two_of_one_label_are_refused(self, own: Path, ccvr: Command) -> None:
        code, _, err = ccvr("calibrate", own, "--method", "ccvr,epochs=1,label=x", "ccvr,epochs=2,label=x")
        assert code == 2
        assert err == 'UsageError: two calibrations are labelled "x". Give each method its own with label=….\n'

    def test_deploying(self, own: Path, ccvr: Command) -> None:
        assert ccvr("calibrate", own, "--method", "ccvr,label=new", "--deploy", "new", "--quiet", "--no-report") == (
            0,
            "",
            "",
        )
        results = results_of(own)
        assert results["deployed"] == "new"
        assert float(ccvr("evaluate", own, "--quiet").out) == results["accuracy"]["new"]
        deployed, head = package.load(own), package.load(own, head="new").head
        assert deployed.head.weight.tolist() == head.weight.tolist()

    @pytest.mark.parametrize("label", ["nothing", "oracle"])
    def test_what_cannot_be_deployed_is_refused_before_anything_is_fitted(
        self, label: str, own: Path, ccvr: Command
    ) -> None:
        before = results_of(own)
        code, out, err = ccvr("calibrate", own, "--method", "ccvr,label=new", "--deploy", label)
        assert (code, out) == (2, "")
        assert err.startswith(f'SpecError: calibration.deploy is "{label}", which ')
        assert err.count("\n") == 1
        assert results_of(own) == before

    def test_an_unknown_method_is_refused_before_anything_is_fitted(self, own: Path, ccvr: Command) -> None:
        code, out, err = ccvr("calibrate", own, "--method", "ccvr,label=new", "ccrv")
        assert (code, out) == (2, "")
        assert err.startswith(
            'UnknownName: no calibrator "ccrv". Did you mean "ccvr"? Known: ccvr, ccvr-converged, cof, '
        )


class TestData:
    def test_a_list_of_all(self, ccvr: Command, tmp_path: Path) -> None:
        code, out, err = ccvr("data", "list", "--root", tmp_path / "d")
        assert (code, err) == (0, "")
        assert f"looked for in {tmp_path / 'd'}" in out
        for name in ("digits", "cifar10", "cifar100", "cinic10", "mnist", "fashion-mnist"):
            assert re.search(rf"│ {name} +│", out)
        assert "missing: ccvr data get cifar10" in out

    def test_a_check_of_the_embedded_one(self, ccvr: Command) -> None:
        assert ccvr("data", "check", "digits") == (
            0,
            "digits: 1,442 train and 355 test samples of 1 x 8 x 8, 10 classes: good.\n",
            "",
        )


class TestClosedOutput:
    @pytest.mark.parametrize("argv", [["show"], ["show", "--json"], ["show", "--help"]])
    def test_a_reader_that_goes_away(self, argv: list[str], finished: Path) -> None:
        reading, writing = os.pipe()
        os.close(reading)
        done = subprocess.run(
            [SCRIPT, *argv, finished], stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
        os.close(writing)
        assert done.stderr == ""
        assert done.returncode != 0

    @pytest.mark.parametrize(
        ("argv", "code", "err"),
        [
            (["--version"], 0, ""),
            (["show", "--nope"], 2, "UsageError: Unrecognized options: --nope. See `ccvr show --help`.\n"),
            (["show"], 0, ""),
        ],
    )
    def test_no_output_at_all(self, argv: list[str], code: int, err: str, finished: Path) -> None:
        arguments = [SCRIPT, *argv] + ([finished] if argv == ["show"] else [])
        done = subprocess.run(
            ["sh", "-c", 'exec "$0" "$@" >&-', *arguments], stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stderr) == (code, err)
