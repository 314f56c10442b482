from pathlib import Path

import pytest

from ccvr.algorithms.table import ALGORITHMS
from ccvr.core.fields import names_of
from ccvr.experiment.presets import PRESETS
from ccvr.experiment.spec import Spec
from ccvr.reproduction.items import ITEMS
from tests.cli.conftest import Command, Launch

PRESET_NAMES = ", ".join(sorted(PRESETS))
FROM_RUN = "See `ccvr run --help`."
SETS = "Known: cifar10, cifar100, cinic10, digits, fashion-mnist, mnist."
KNOWN = (
    "Known: analyze, calibrate, compare, data, evaluate, list, personalise, report, reproduce, resume, run, show, tune."
)
IDS = ", ".join(ITEMS)
KNOWN_ALGORITHMS = f"Known: {', '.join(sorted(ALGORITHMS))}."
KNOWN_IDS = f"Known: {', '.join(sorted(ITEMS))}."
FIELDS = ", ".join(sorted(names_of(Spec)))

MISTAKES = {
    "rum": f'UnknownName: no command "rum". Did you mean "run"? {KNOWN}',
    "os:path": f'UnknownName: no command "os:path". {KNOWN}',
    "--verbose": f'UnknownName: no command "--verbose". {KNOWN}',
    "run nope": f'UnknownName: no preset "nope". Known: {PRESET_NAMES}.',
    "run digits-a0.1-fedvag": (
        f'UnknownName: no preset "digits-a0.1-fedvag". Did you mean "digits-a0.1-fedavg"? Known: {PRESET_NAMES}.'
    ),
    "run spec.toml": (
        "SpecError: spec.toml does not exist. Give a TOML file, or a preset that `ccvr run --help` lists."
    ),
    "run --out x --trainin.rounds 1": (
        f"UsageError: Unrecognized options: --trainin.rounds, 1. Did you mean --training.rounds? {FROM_RUN}"
    ),
    "run --out x surplus": f"UsageError: Unrecognized options: surplus. {FROM_RUN}",
    "run --out x --training.rounds many": (
        "UsageError: Error parsing --training.rounds: invalid literal for int() with base 10: 'many'. " + FROM_RUN
    ),
    "run --training.rounds": (
        f"UsageError: Missing value for argument '--training.rounds'. Expected 1 values. {FROM_RUN}"
    ),
    "run --seed 1 cifar10-a0.1-fedavg": (
        "UsageError: cifar10-a0.1-fedavg stands behind options. The preset comes first: "
        "ccvr run cifar10-a0.1-fedavg [OPTIONS]."
    ),
    "run --out x --calibration.methods ccvr,epochs=3,epochs=4": (
        'SpecError: ccvr gives the option "epochs" twice. Leave one out.'
    ),
    "run --out x --calibration.methods ccvr,label=..": (
        'SpecError: calibration label ".." is not usable; use at most 100 letters, digits and . _ + -, '
        "not a dot first, not uncalibrated or select."
    ),
    "run --device tpu": (
        f"UsageError: invalid choice 'tpu' for argument '--device'. Expected one of ('cpu', 'cuda'). {FROM_RUN}"
    ),
    "run --engine flwr": (
        f"UsageError: invalid choice 'flwr' for argument '--engine'. Expected one of ('local', 'flower'). {FROM_RUN}"
    ),
    "run --flower.quorum 0": "SpecError: flower.quorum is 0.0; give a number above 0, at most 1.",
    "run --flower.timeout 0": "SpecError: flower.timeout is 0.0; give seconds above 0, at most 10,000,000.",
    "run --out x --engine flower --flower.superlink link": (
        "SpecError: oracles need raw features, which no client of a federation sends. Choose other calibration.methods."
    ),
    "run --out x --engine flower --device cuda": (
        'SpecError: device is "cuda"; our simulation on Flower uses the CPU alone. Use --device cpu.'
    ),
    "run --out x --engine flower --calibration.deploy ccrv": (
        'SpecError: calibration.deploy is "ccrv", which is not a label. Choose one of: ccvr, uncalibrated.'
    ),
    "run --out x --training.rounds 0": "SpecError: training.rounds is 0; give at least 1.",
    "run --out x --training.lr nan": "SpecError: training.lr is nan; give a number above 0.",
    "run --out x --training.algorithm fedavgg": (
        f'UnknownName: no algorithm "fedavgg". Did you mean "fedavg"? {KNOWN_ALGORITHMS}'
    ),
    "run --out x --training.algorithm fedprox,mju=1": (
        'SpecError: fedprox has no option "mju". Did you mean "mu"? Known: mu.'
    ),
    "run --out x --training.algorithm fedavg,mu=1": 'SpecError: fedavg has no option "mu". It has none.',
    "run --out x --training.mu 0.1": (
        "UsageError: --training.mu is an option of the method: --training.algorithm fedprox,mu=…."
    ),
    "run --out x --training.server-momentum=0.1": (
        "UsageError: --training.server_momentum is an option of the method: --training.algorithm fedavgm,momentum=…."
    ),
    "run --out x --calibration.num-virtual 3": (
        "UsageError: --calibration.num_virtual is an option of the method: --calibration.methods ccvr,num_virtual=…."
    ),
    "run --out x --calibration.per-class 3": (
        "UsageError: --calibration.per_class is an option of the method: "
        "--calibration.methods oracle-partial,per_class=…."
    ),
    "run --out x --calibration.methods ccrv": (
        'UnknownName: no calibrator "ccrv". Did you mean "ccvr"? Known: ccvr, ccvr-converged, cof, cof-means, '
        "kernel, lda, ncm, oracle, oracle-partial, ridge."
    ),
    "run --out x --calibration.methods ccvr,epoch=3": (
        'SpecError: ccvr has no option "epoch". Did you mean "epochs"? Known: batch_size, epochs, kind, label, lr, '
        "matched, min_count, momentum, num_virtual, priors, seed, shrinkage, start, transform, transform_at, "
        "weight_decay."
    ),
    "run --out x --calibration.methods lda,num_virtual=3": (
        'SpecError: lda has no option "num_virtual". Known: kind, label, min_count, priors, seed, shrinkage, taps, '
        "transform."
    ),
    "run --out x --calibration.methods ncm,kind=kernel": (
        'SpecError: kind is "kernel", which this method cannot use. It can use: means, diagonal, pooled, full.'
    ),
    "run --out x --calibration.methods lda,shrinkage=ledoit": (
        'SpecError: no shrinkage "ledoit". Known: fixed, none, oas, pooled.'
    ),
    "run --out x --calibration.deploy select": (
        'SpecError: calibration.deploy is "select", but no client holds out samples. Set data.validation, for example '
        "0.15."
    ),
    "run --out x --calibration.methods ccvr,seed=five": 'SpecError: ccvr: seed is "five"; give a whole number.',
    "run --out x --data.name digit": f'UnknownName: no data set "digit". Did you mean "digits"? {SETS}',
    "run --out x --model.name resnet": (
        'UnknownName: no model "resnet". Known: digits-cnn, linear, mobilenet-v2, simple-cnn.'
    ),
    "run --out x --model.name simple-cnn": (
        "ModelError: simple-cnn needs images of at least 16 x 16 pixels; these are 8 x 8."
    ),
    "run --out x --partition.kind dirichelt": (
        'UnknownName: no partition "dirichelt". Did you mean "dirichlet"? Known: dirichlet, iid, shards.'
    ),
    "run nope --dry-run": f'UnknownName: no preset "nope". Known: {PRESET_NAMES}.',
    "run --dry-run --data.name digit": f'UnknownName: no data set "digit". Did you mean "digits"? {SETS}',
    "resume": "UsageError: Missing from ccvr resume: PATH The run folder. (required). See `ccvr resume --help`.",
    "resume gone": "RunError: gone is not a run: it has no spec.toml. Give a folder that `ccvr run` made.",
    "calibrate gone": "RunError: gone is not a run: it has no spec.toml. Give a folder that `ccvr run` made.",
    "calibrate gone --repeats 0": "UsageError: --repeats is 0; give at least 1.",
    "evaluate gone": "RunError: gone is not a run: it has no spec.toml. Give a folder that `ccvr run` made.",
    "show": "RunError: no run named. Give run folders: ccvr show runs/*",
    "show gone": "RunError: gone is not a run: it has no spec.toml. Give a folder that `ccvr run` made.",
    "show --jsn gone": "UsageError: Unrecognized options: --jsn, gone. Did you mean --json? See `ccvr show --help`.",
    "reproduce": f"UsageError: nothing asked for. Give --list, --claims, --record, or ids: {IDS}.",
    "reproduce table22": f'UnknownName: no table or figure "table22". Did you mean "table2"? {KNOWN_IDS}',
    "reproduce table1 os:getcwd": f'UnknownName: no table or figure "os:getcwd". {KNOWN_IDS}',
    "reproduce table1 --cells nothing*": (
        'UsageError: --cells "nothing*" is not a cell of table1. Known: cifar10-a0.05-fedavg, '
        "cifar10-a0.05-fedavg-clsnorm, cifar10-a0.05-fedavg-clsnorm-clsprox, cifar10-a0.05-fedavg-clsprox, "
        "cifar10-a0.1-fedavg, cifar10-a0.1-fedavg-clsnorm, cifar10-a0.1-fedavg-clsnorm-clsprox, "
        "cifar10-a0.1-fedavg-clsprox, cifar10-a0.5-fedavg, cifar10-a0.5-fedavg-clsnorm, "
        "cifar10-a0.5-fedavg-clsnorm-clsprox, cifar10-a0.5-fedavg-clsprox."
    ),
    "reproduce table1 --budget soon": (
        'UsageError: --budget is "soon"; give hours, minutes or seconds: 2h, 90m, 1h30m, or 0 to train nothing.'
    ),
    "reproduce table1 --budget -2h": (
        'UsageError: --budget is "-2h"; give hours, minutes or seconds: 2h, 90m, 1h30m, or 0 to train nothing.'
    ),
    "reproduce table1 --seeds 0": "UsageError: --seeds is 0; give at least 1.",
    "reproduce table1 --scale tiny": (
        'UnknownName: no scale "tiny". Known: half, paper, quick; or give rounds and local epochs, as 10x1.'
    ),
    "reproduce table1 --scale=": (
        'UnknownName: no scale "". Known: half, paper, quick; or give rounds and local epochs, as 10x1.'
    ),
    "reproduce --cells cifar10-* table1": (
        "UsageError: --cells takes all that follows as patterns, also table1. Give ids before it."
    ),
    "reproduce --list --record": (
        "UsageError: --list shows what there is and does nothing else. Leave it out, or --claims and --record."
    ),
    "reproduce --record": (
        "RunError: no such finished run below reproduction. Train some, or give their folder as --out."
    ),
    "reproduce --claims --cells cifar10-*": (
        "UsageError: --cells chooses among the cells of tables and figures. Give ids, too."
    ),
    "tune": "UsageError: no preset. Give one first: ccvr tune cifar10-a0.1-fedavg --training.lr 0.01 0.1",
    "tune nope --training.lr 1 2": f'UnknownName: no preset "nope". Known: {PRESET_NAMES}.',
    "tune digits-a0.1-fedavg": (
        "SpecError: nothing to choose from. Give a field several values: --training.lr 0.001 0.01 0.1"
    ),
    "tune digits-a0.1-fedavg --training.lr": (
        "SpecError: training.lr has no value. Give one to fix it, several to choose from."
    ),
    "tune digits-a0.1-fedavg --training.rounds 1 many": ('SpecError: training.rounds is "many"; give a whole number.'),
    "tune digits-a0.1-fedavg --training.lr 0.1 0.1": (
        "SpecError: nothing to choose from. Give a field several values: --training.lr 0.001 0.01 0.1"
    ),
    "tune digits-a0.1-fedavg --training.lr 0.1 --training.lr 0.2": (
        "UsageError: --training.lr is given twice. Give all its values at once."
    ),
    "tune digits-a0.1-fedavg --training.lr 0.1 -1": "SpecError: training.lr is -1.0; give a number above 0.",
    "tune digits-a0.1-fedavg --training.lr=0.1 0.2 --training.lr=0.3": (
        "UsageError: --training.lr is given twice. Give all its values at once."
    ),
    "tune digits-a0.1-fedavg --training.lrr=0.1 0.2": (
        f'SpecError: no field "training.lrr". Did you mean "training.lr"? Known: {FIELDS}.'
    ),
    "tune digits-a0.1-fedavg --partition.alpha 0.1 1": (
        "SpecError: partition.alpha has several values; only training.*, model.* and data.augment are chosen."
    ),
    "tune digits-a0.1-fedavg --data.validation 0.1 0.2": (
        "SpecError: data.validation is what tuning sets: 0.15, then 0 for the last training. Leave it out."
    ),
    "tune digits-a0.1-fedavg --calibration.methods ccvr,num_virtual=50 ccvr,num_virtual=100": (
        "SpecError: calibration.methods needs no training. Run `ccvr run --data.validation 0.15`, then "
        "`ccvr calibrate RUN --method … --deploy select`."
    ),
    "tune digits-a0.1-fedavg --training 1 2": (
        "UsageError: Unrecognized options: --training, 1, 2. See `ccvr tune --help`."
    ),
    "list algorithm": (
        'UnknownName: no table "algorithm". Did you mean "algorithms"? Known: algorithms, analyses, calibrators, data, '
        "models, partitions, personalisations, presets, statistics."
    ),
    "list algorithms fedprix": (f'UnknownName: no algorithm "fedprix". Did you mean "fedprox"? {KNOWN_ALGORITHMS}'),
    "list presets nope": f'UnknownName: no preset "nope". Known: {PRESET_NAMES}.',
    "data lst": 'UnknownName: no data command "lst". Did you mean "list"? Known: check, get, list.',
    "data os:getcwd": 'UnknownName: no data command "os:getcwd". Known: check, get, list.',
    "data check digit": f'UnknownName: no data set "digit". Did you mean "digits"? {SETS}',
    "data get digits": "DataError: digits comes with scikit-learn; there is nothing to download.",
    "data get": (
        "UsageError: Missing from ccvr data get: STR The data set's name, as `ccvr data list` shows it. (required). "
        "See `ccvr data get --help`."
    ),
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_one_line_and_leaves_nothing_behind(line: str, ccvr: Command, tmp_path: Path) -> None:
    assert ccvr(*line.split()) == (2, "", MISTAKES[line] + "\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("columns", ["20", "40", "300"])
@pytest.mark.parametrize("line", [line for line in MISTAKES if MISTAKES[line].startswith("UsageError")])
def test_the_line_does_not_depend_on_the_terminal(
    line: str, columns: str, ccvr: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert ccvr(*line.split()).err == MISTAKES[line] + "\n"


def test_a_mistake_beside_help(ccvr: Command) -> None:
    assert ccvr("run", "--device", "tpu", "--help") == (2, "", MISTAKES["run --device tpu"] + "\n")


@pytest.mark.parametrize("line", ["run nope", "run --out x --training.rounds many"])
def test_a_mistake_in_a_process_of_its_own(line: str, launch: Launch, tmp_path: Path) -> None:
    process = launch(*line.split())
    assert process.communicate(timeout=60) == ("", MISTAKES[line] + "\n")
    assert process.returncode == 2
    assert list(tmp_path.iterdir()) == []


def test_a_spec_file_with_a_mistake(ccvr: Command, tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text("[training]\nround = 3\n")
    code, out, err = ccvr("run", "spec.toml")
    assert (code, out) == (2, "")
    assert err.startswith(
        'SpecError: spec.toml: no field "training.round". Did you mean "rounds"? Known: algorithm, batch_size,'
    )
    assert err.count("\n") == 1
    (tmp_path / "spec.toml").write_text("[training\n")
    reason = "Expected ']' at the end of a table declaration (at line 1, column 10)"
    assert ccvr("run", "spec.toml").err == f"SpecError: spec.toml is not valid TOML: {reason}.\n"


def test_a_folder_in_the_way_is_left_as_it_is(ccvr: Command, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "1.png").write_text("precious")
    for extra in ([], ["--overwrite"]):
        code, out, err = ccvr("run", "--out", "photos", *extra)
        assert (code, out, err) == (2, "", "RunError: photos exists and is not a run. Choose another --out.\n")
    assert (tmp_path / "photos" / "1.png").read_text() == "precious"


def test_data_that_is_not_there(ccvr: Command, tmp_path: Path) -> None:
    code, out, err = ccvr("run", "cifar10-a0.1-fedavg", "--out", "x")
    assert (code, out) == (2, "")
    assert err.startswith("DataError: ")
    assert "ccvr data get cifar10" in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


USERS = """
from dataclasses import dataclass
from torch import nn
from ccvr.calibration.calibrator import Calibrator
class Network(nn.Module):
    def __init__(self, image_shape, num_classes):
        super().__init__()
        self.head = nn.Linear(64, num_classes)
    def forward(self, x):
        if self.training:
            raise ValueError("not today")
        return self.head(x.flatten(1))
@dataclass(frozen=True, kw_only=True)
class Fails(Calibrator):
    def fit(self, head, statistics, *, rng):
        return 1 / 0
"""


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            ["--model.name", "theirs:Network"],
            "TrainingError: client 2 failed in round 1 (ValueError in {}:11: not today). The run can be resumed.",
        ),
        (
            ["--calibration.methods", "theirs:Fails"],
            "ZeroDivisionError in {}:16: division by zero. CCVR_TRACEBACK=1 shows the way there.",
        ),
    ],
)
def test_an_error_in_the_users_own_code_names_its_line(launch: Launch, tmp_path: Path, options, line) -> None:
    (tmp_path / "theirs.py").write_text(USERS)
    process = launch(
        "run",
        "--workers",
        "1",
        "--training.rounds",
        "1",
        "--training.local-epochs",
        "1",
        "--quiet",
        "--out",
        "x",
        *options,
    )
    _, err = process.communicate(timeout=120)
    assert err == f"{line.format(tmp_path / 'theirs.py')}\n"
    assert process.returncode == 2
