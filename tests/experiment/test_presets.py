"""The presets against a transcription of the paper's table of hyperparameters."""

import pytest

from ccvr.algorithms.drift import FedAvg, FedProx
from ccvr.algorithms.features import Moon
from ccvr.algorithms.servers import FedAvgM
from ccvr.algorithms.table import find_algorithm
from ccvr.calibration.methods import parse_calibrations
from ccvr.core.errors import SpecError, UnknownName
from ccvr.experiment.presets import PRESETS, find_spec
from ccvr.experiment.spec import Spec, from_toml, to_toml

COLUMNS = ["cifar10-a0.05", "cifar10-a0.1", "cifar10-a0.5", "cifar100-a0.5", "cinic10-a0.5"]
TABLE = """
FedAvg/FedAvgM   | communication rounds  | 100
FedAvg/FedAvgM   | optimizer             | SGD
FedAvg/FedAvgM   | learning rate         | 0.01
FedAvg/FedAvgM   | weight decay          | 1e-5
FedAvg/FedAvgM   | momentum              | 0.9
FedAvg/FedAvgM   | local epoch           | 10
FedAvg/FedAvgM   | clients per round     | 10
FedAvg/FedAvgM   | batch size            | 64    | 64    | 64    | 64   | 512
clsprox          | mu                    | 0.01  | 0.001 | 0.001 | -    | -
FedProx          | communication rounds  | 100
FedProx          | optimizer             | SGD
FedProx          | learning rate         | 0.01
FedProx          | weight decay          | 1e-5
FedProx          | momentum              | 0.9
FedProx          | local epoch           | 10
FedProx          | clients per round     | 10
FedProx          | batch size            | 64    | 64    | 64    | 64   | 512
FedProx          | mu                    | 0.01  | 0.001 | 0.001 | 0.001 | 0.01
MOON             | contrastive temperature | 0.5
MOON             | optimizer             | SGD
MOON             | learning rate         | 0.01
MOON             | weight decay          | 1e-5
MOON             | momentum              | 0.9
MOON             | local epoch           | 10
MOON             | clients per round     | 10
MOON             | batch size            | 64    | 64    | 64    | 64   | 512
MOON             | mu                    | 5     | 1     | 1     | 1    | 1
FedAvg + CCVR    | optimizer             | SGD
FedAvg + CCVR    | weight decay          | 1e-5
FedAvg + CCVR    | momentum              | 0.9
FedAvg + CCVR    | batch size            | 64
FedAvg + CCVR    | epoch                 | 10    | 10    | 30    | 30   | 50
FedAvg + CCVR    | virtual features      | 2000  | 2000  | 100   | 500  | 1000
FedAvg + CCVR    | learning rate         | 0.001 | 0.001 | 0.001 | 1e-5 | 0.001
FedProx + CCVR   | optimizer             | SGD
FedProx + CCVR   | weight decay          | 1e-5
FedProx + CCVR   | momentum              | 0.9
FedProx + CCVR   | batch size            | 64
FedProx + CCVR   | epoch                 | 10    | 10    | 30    | 30   | 50
FedProx + CCVR   | virtual features      | 2000  | 2000  | 100   | 500  | 1000
FedProx + CCVR   | learning rate         | 0.001 | 0.001 | 0.001 | 1e-5 | 0.001
FedAvgM + CCVR   | optimizer             | SGD
FedAvgM + CCVR   | weight decay          | 1e-5
FedAvgM + CCVR   | momentum              | 0.9
FedAvgM + CCVR   | batch size            | 64
FedAvgM + CCVR   | epoch                 | 10    | 10    | 50    | 10   | 50
FedAvgM + CCVR   | virtual features      | 2000  | 2000  | 100   | 500  | 1000
FedAvgM + CCVR   | learning rate         | 0.001 | 0.001 | 0.001 | 1e-5 | 0.001
MOON + CCVR      | optimizer             | SGD
MOON + CCVR      | weight decay          | 1e-5
MOON + CCVR      | momentum              | 0.9
MOON + CCVR      | batch size            | 64
MOON + CCVR      | epoch                 | 10    | 10    | 30    | 10   | 10
MOON + CCVR      | virtual features      | 2000  | 2000  | 100   | 500  | 1000
MOON + CCVR      | learning rate         | 0.001 | 0.001 | 0.001 | 1e-5 | 0.001
Whole Data       | optimizer             | SGD
Whole Data       | learning rate         | 0.001
Whole Data       | weight decay          | 1e-5
Whole Data       | momentum              | 0.9
Whole Data       | batch size            | 64
Whole Data       | epoch                 | 50
text             | communication rounds of MOON | 100
text             | server momentum of FedAvgM   | 0.1
text             | Tukey                 | 0.5
text             | concentration alpha   | 0.05  | 0.1   | 0.5   | 0.5  | 0.5
text             | clients               | 10
"""
"""The paper's table of hyperparameters, row by row; a row with one number has it in all columns. Last what only its
text says."""


def transcribed(method: str, column: str) -> dict[str, str]:
    """A block of the table, for one column."""
    rows = [[part.strip() for part in line.split("|")] for line in TABLE.strip().splitlines()]
    place = COLUMNS.index(column)
    return {name: values[place if len(values) > 1 else 0] for block, name, *values in rows if block == method}


SGD = {"learning rate": "lr", "weight decay": "weight_decay", "momentum": "momentum", "batch size": "batch_size"}
METHODS = {"fedavg": "FedAvg", "fedprox": "FedProx", "fedavgm": "FedAvgM", "moon": "MOON"}


def require_sgd(options: object, block: dict[str, str]) -> None:
    assert block.pop("optimizer") == "SGD"
    for name, field in SGD.items():
        assert getattr(options, field) == float(block.pop(name)), name


@pytest.mark.parametrize("algorithm", METHODS)
@pytest.mark.parametrize("column", COLUMNS)
def test_the_papers_training(column, algorithm):
    spec, text = PRESETS[f"{column}-{algorithm}"], transcribed("text", column)
    training = spec.training
    block = transcribed("FedAvg/FedAvgM" if algorithm in ("fedavg", "fedavgm") else METHODS[algorithm], column)
    require_sgd(training, block)
    rounds = text["communication rounds of MOON"] if algorithm == "moon" else block.pop("communication rounds")
    assert (training.algorithm_name, training.rounds) == (algorithm, int(rounds))
    assert training.local_epochs == int(block.pop("local epoch"))
    assert training.client_fraction * spec.partition.num_clients == int(block.pop("clients per round"))
    wanted = {
        "fedavg": lambda: FedAvg(),
        "fedprox": lambda: FedProx(mu=float(block.pop("mu"))),
        "fedavgm": lambda: FedAvgM(momentum=float(text["server momentum of FedAvgM"])),
        "moon": lambda: Moon(mu=float(block.pop("mu")), temperature=float(block.pop("contrastive temperature"))),
    }
    assert find_algorithm(training.algorithm) == wanted[algorithm]()
    assert block == {}, "every row of the block was looked at"
    assert (spec.partition.kind, spec.partition.balance) == ("dirichlet", False)
    assert (spec.partition.num_clients, spec.partition.alpha) == (
        int(text["clients"]),
        float(text["concentration alpha"]),
    )
    assert spec.model.name == ("simple-cnn" if column.startswith("cifar10-") else "mobilenet-v2")
    assert (training.clsnorm, training.clsprox) == (False, 0.0)


@pytest.mark.parametrize("algorithm", METHODS)
@pytest.mark.parametrize("column", COLUMNS)
def test_the_papers_calibration(column, algorithm):
    ccvr, oracle = parse_calibrations(PRESETS[f"{column}-{algorithm}"].calibration)
    block, whole = transcribed(f"{METHODS[algorithm]} + CCVR", column), transcribed("Whole Data", column)
    for calibration, rows in ((ccvr, block), (oracle, whole)):
        require_sgd(calibration.method, rows)
        assert calibration.method.epochs == int(rows.pop("epoch"))
    assert ccvr.method.num_virtual == int(block.pop("virtual features"))
    assert (block, whole) == ({}, {}), "every row was looked at"
    assert (ccvr.name, oracle.name) == (ccvr.label, oracle.label) == ("ccvr", "oracle")
    assert ccvr.method.transform == f"tukey:{transcribed('text', column)['Tukey']}"
    assert ccvr.method.transform_at == "draws", "before re-training: the paper's order"
    assert oracle.method.transform == "none"


@pytest.mark.parametrize("column", COLUMNS)
def test_the_regularisers(column):
    mu = transcribed("clsprox", column)["mu"]
    found = {name: spec.training for name, spec in PRESETS.items() if name.startswith(f"{column}-fedavg-cls")}
    if mu == "-":
        assert found == {}
        return
    wanted = {"clsnorm": (True, 0.0), "clsprox": (False, float(mu)), "clsnorm-clsprox": (True, float(mu))}
    assert {name: (each.clsnorm, each.clsprox) for name, each in found.items()} == {
        f"{column}-fedavg-{name}": values for name, values in wanted.items()
    }


def test_a_presets_name_is_the_specs():
    assert all(name == spec.name for name, spec in PRESETS.items())
    assert PRESETS["digits-a0.1-fedavg"] == Spec()


@pytest.mark.parametrize("name", PRESETS)
def test_toml_round_trip(name, tmp_path):
    path = tmp_path / "spec.toml"
    path.write_text(to_toml(PRESETS[name]))
    assert find_spec(str(path)) == PRESETS[name]


def test_what_is_neither_a_preset_nor_a_file():
    with pytest.raises(
        UnknownName,
        match=r'^no preset "cifar10-a0.1"\. Did you mean "cifar10-a0.1-moon"\? Known: cifar10-a0.05-fedavg, ',
    ):
        find_spec("cifar10-a0.1")
    with pytest.raises(SpecError, match=r"missing\.toml does not exist"):
        find_spec("missing.toml")
    with pytest.raises(SpecError, match="spec is not valid TOML"):
        from_toml("seed = = 3")
