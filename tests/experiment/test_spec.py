"""Specs of every version: a file of before methods had options of their own means what it meant."""

from dataclasses import replace

import pytest

from ccvr.algorithms.drift import FedProx
from ccvr.algorithms.spec import TrainingSpec
from ccvr.algorithms.table import find_algorithm
from ccvr.calibration.methods import parse_calibrations
from ccvr.calibration.oracles import Oracle
from ccvr.calibration.spec import CalibrationSpec
from ccvr.calibration.virtual import Ccvr
from ccvr.core.errors import SpecError
from ccvr.data.spec import DataSpec, PartitionSpec
from ccvr.experiment.presets import PRESETS
from ccvr.experiment.spec import Spec, from_mapping, from_toml, read_spec, to_toml, training_settings
from ccvr.models.build import ModelSpec

OLD = """
seed = 3
device = "cpu"
threads = 1
engine = "local"

[data]
name = "cifar10"
validation = 0.0

[partition]
kind = "dirichlet"
num_clients = 10
alpha = 0.05
classes_per_client = 2
balance = false
min_size = 10
seed = 0

[model]
name = "simple-cnn"
head = ""

[training]
algorithm = "fedprox"
rounds = 100
local_epochs = 10
batch_size = 64
lr = 0.01
momentum = 0.9
weight_decay = 1e-05
client_fraction = 1.0
mu = 0.01
temperature = 0.5
server_momentum = 0.1
clsnorm = false
clsprox = 0.0
buffers = "average"
step = "auto"
evaluate_every = 1

[calibration]
num_virtual = 100
priors = "uniform"
shrinkage = "none"
transform = "tukey:0.5"
transform_at = "draws"
kind = ""
min_count = 0
start = "trained"
epochs = 30
batch_size = 64
lr = 0.001
momentum = 0.9
weight_decay = 1e-05
l2 = 0.001
iterations = 300
ridge = 0.001
num_features = 2000
bandwidth = 0.5
per_class = 100
methods = [
    "ccvr",
    "oracle,epochs=50,lr=0.001,transform=none",
]
deploy = ""

[checkpoint]
every = 1
keep = 2

[log]
tensorboard = false

[flower]
superlink = ""
quorum = 1.0
timeout = 3600.0
"""
"""What the version before wrote of its preset cifar10-a0.05-fedprox, with some changes."""


def test_a_whole_file_of_before():
    assert from_toml(OLD) == Spec(
        seed=3,
        threads=1,
        data=DataSpec(name="cifar10"),
        partition=PartitionSpec(kind="dirichlet", num_clients=10, alpha=0.05),
        model=ModelSpec(name="simple-cnn"),
        training=TrainingSpec(algorithm="fedprox,mu=0.01", rounds=100, local_epochs=10, batch_size=64),
        calibration=CalibrationSpec(
            methods=(
                "ccvr,num_virtual=100,transform=tukey:0.5,transform_at=draws,epochs=30",
                "oracle,epochs=50,lr=0.001,transform=none",
            )
        ),
    )


def test_a_whole_file_of_before_means_the_same():
    spec = from_toml(OLD)
    assert find_algorithm(spec.training.algorithm) == FedProx(mu=0.01)
    ccvr, oracle = parse_calibrations(spec.calibration)
    assert ccvr.method == Ccvr(num_virtual=100, epochs=30, transform="tukey:0.5", transform_at="draws")
    assert oracle.method == Oracle(epochs=50)
    assert training_settings(spec) == training_settings(replace(PRESETS["cifar10-a0.05-fedprox"], seed=3, threads=1))


def test_what_was_read_from_an_old_file_is_written_as_a_new_one(tmp_path):
    (tmp_path / "spec.toml").write_text(OLD)
    spec = read_spec(tmp_path / "spec.toml")
    text = to_toml(spec)
    assert "mu = " not in text
    assert "num_virtual = " not in text
    assert from_toml(text) == spec


def test_algorithms_and_methods_may_be_tables():
    text = """
[training]
algorithm = { name = "moon", mu = 5, temperature = 0.25 }

[calibration]
methods = ["lda", { name = "ccvr", epochs = 3, label = "short" }]
"""
    spec = from_toml(text)
    assert spec.training.algorithm == "moon,mu=5,temperature=0.25"
    assert spec.calibration.methods == ("lda", "ccvr,epochs=3,label=short")
    tables = '[training.algorithm]\nname = "fedprox"\nmu = 0.5\n[[calibration.methods]]\nname = "ncm"\ntaps = "auto"\n'
    assert from_toml(tables) == Spec(
        training=TrainingSpec(algorithm="fedprox,mu=0.5"), calibration=CalibrationSpec(methods=("ncm,taps=auto",))
    )


def test_an_algorithm_of_the_user_s_own_keeps_the_fields_of_before(tmp_path, monkeypatch):
    (tmp_path / "own_algorithm.py").write_text(
        "from dataclasses import dataclass\n"
        "from ccvr.algorithms.drift import FedProx\n"
        "@dataclass(frozen=True)\n"
        "class Mine(FedProx):\n"
        "    temperature: float = 0.5\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    spec = from_mapping({"training": {"algorithm": "own_algorithm:Mine", "mu": 2.0, "temperature": 0.5}})
    assert spec.training.algorithm == "own_algorithm:Mine,mu=2"
    assert find_algorithm(spec.training.algorithm).mu == 2.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[calibration]\nepoch = 3", r'^spec: no field "calibration\.epoch"\.'),
        ('[calibration]\nmethod = ["lda"]', r'^spec: no field "calibration\.method"\. Did you mean "methods"\?'),
        ("[training]\nnu = 3", r'^spec: no field "training\.nu"\.'),
        ("training = 3", r"^spec: training is 3; give a table of fields\.$"),
        ("calibration = 3", r"^spec: calibration is 3; give a table of fields\.$"),
        ("[training]\nalgorithm = 3\nmu = 1", r"^spec: training\.algorithm is 3; give text\.$"),
        ('[calibration]\nmethods = "lda"\nepochs = 3', r"^spec: calibration\.methods is 'lda'; give a list\.$"),
    ],
)
def test_mistakes_in_a_file(text, message):
    with pytest.raises(SpecError, match=message):
        from_toml(text)


def test_an_algorithm_is_the_same_setting_however_it_is_written():
    plain, same, other = (
        training_settings(Spec(training=TrainingSpec(algorithm=text))) for text in ("moon", "moon,mu=1.0", "moon,mu=2")
    )
    assert plain == same != other
