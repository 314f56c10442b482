"""The presets against a transcription of the paper's table of hyperparameters."""

import pytest

from ccvr.calibration.methods import parse_calibrations
from ccvr.core.errors import SpecError, UnknownName
from ccvr.experiment.presets import PRESETS, find_spec
from ccvr.experiment.spec import Spec, from_toml, to_toml

COLUMNS = ["cifar10-a0.05", "cifar10-a0.1", "cifar10-a0.5", "cifar100-a0.5", "cinic10-a0.5"]
EVERYWHERE = {"rounds": 100, "lr": 0.01, "weight_decay": 1e-5, "momentum": 0.9, "local_epochs": 10}
BATCH_SIZE = [64, 64, 64, 64, 512]
MU = {"fedprox": [0.01, 0.001, 0.001, 0.001, 0.01], "moon": [5, 1, 1, 1, 1]}
CLSPROX = [0.01, 0.001, 0.001]
NUM_VIRTUAL = [2000, 2000, 100, 500, 1000]
CALIBRATION_LR = [0.001, 0.001, 0.001, 1e-5, 0.001]
CALIBRATION_EPOCHS = {
    "fedavg": [10, 10, 30, 30, 50],
    "fedprox": [10, 10, 30, 30, 50],
    "fedavgm": [10, 10, 50, 10, 50],
    "moon": [10, 10, 30, 10, 10],
}


@pytest.mark.parametrize("algorithm", CALIBRATION_EPOCHS)
@pytest.mark.parametrize("column", COLUMNS)
def test_the_papers_table(column, algorithm):
    spec = PRESETS[f"{column}-{algorithm}"]
    number = COLUMNS.index(column)
    training, calibration = spec.training, spec.calibration
    assert {name: getattr(training, name) for name in EVERYWHERE} == EVERYWHERE
    assert (training.algorithm, training.batch_size) == (algorithm, BATCH_SIZE[number])
    assert training.mu == (MU[algorithm][number] if algorithm in MU else None)
    assert (training.temperature, training.server_momentum, training.client_fraction) == (0.5, 0.1, 1.0)
    assert (spec.partition.num_clients, spec.partition.alpha) == (10, float(column.split("-a")[1]))
    assert spec.model.name == ("simple-cnn" if number < 3 else "mobilenet-v2")
    assert (calibration.num_virtual, calibration.lr) == (NUM_VIRTUAL[number], CALIBRATION_LR[number])
    assert calibration.epochs == CALIBRATION_EPOCHS[algorithm][number]
    assert (calibration.transform, calibration.transform_at) == ("tukey:0.5", "draws")
    oracle = parse_calibrations(calibration)[1]
    assert (oracle.method, oracle.options.epochs, oracle.options.lr) == ("oracle", 50, 0.001)
    for options in (calibration, oracle.options):
        assert (options.batch_size, options.momentum, options.weight_decay) == (64, 0.9, 1e-5)


@pytest.mark.parametrize("number", range(3))
def test_the_regularisers(number):
    plain = PRESETS[f"{COLUMNS[number]}-fedavg"].training
    assert (plain.clsnorm, plain.clsprox) == (False, 0.0)
    mu = CLSPROX[number]
    for name, wanted in {"clsnorm": (True, 0.0), "clsprox": (False, mu), "clsnorm-clsprox": (True, mu)}.items():
        training = PRESETS[f"{COLUMNS[number]}-fedavg-{name}"].training
        assert (training.clsnorm, training.clsprox) == wanted


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
