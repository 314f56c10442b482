"""The paper's hyperparameters as specs by name (Luo et al. 2021, appendix, table of hyperparameters)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ccvr.algorithms.spec import TrainingSpec
from ccvr.algorithms.table import canonical
from ccvr.calibration.spec import CalibrationSpec
from ccvr.core.errors import SpecError, UnknownName
from ccvr.core.methods import text_of
from ccvr.core.tables import suggestion
from ccvr.core.trust import Trust
from ccvr.data.spec import DataSpec, PartitionSpec
from ccvr.experiment.spec import Spec, read_spec
from ccvr.models.build import ModelSpec


@dataclass(frozen=True)
class Column:
    """One column of the paper's table."""

    data: str
    alpha: float
    model: str
    batch_size: int
    fedprox_mu: float
    moon_mu: float
    clsprox_mu: float | None
    num_virtual: int
    calibration_lr: float
    calibration_epochs: dict[str, int]


def _epochs(fedavg: int, fedprox: int, fedavgm: int, moon: int) -> dict[str, int]:
    return {"fedavg": fedavg, "fedprox": fedprox, "fedavgm": fedavgm, "moon": moon}


COLUMNS = (
    Column("cifar10", 0.05, "simple-cnn", 64, 0.01, 5, 0.01, 2000, 1e-3, _epochs(10, 10, 10, 10)),
    Column("cifar10", 0.1, "simple-cnn", 64, 0.001, 1, 0.001, 2000, 1e-3, _epochs(10, 10, 10, 10)),
    Column("cifar10", 0.5, "simple-cnn", 64, 0.001, 1, 0.001, 100, 1e-3, _epochs(30, 30, 50, 30)),
    Column("cifar100", 0.5, "mobilenet-v2", 64, 0.001, 1, None, 500, 1e-5, _epochs(30, 30, 10, 10)),
    Column("cinic10", 0.5, "mobilenet-v2", 512, 0.01, 1, None, 1000, 1e-3, _epochs(50, 50, 50, 10)),
)


def _paper_specs() -> Iterator[Spec]:
    for column in COLUMNS:
        for algorithm in ("fedavg", "fedprox", "fedavgm", "moon"):
            yield _paper_spec(column, algorithm)
        if column.clsprox_mu is not None:
            plain = _paper_spec(column, "fedavg")
            for clsnorm, clsprox in ((True, 0.0), (False, column.clsprox_mu), (True, column.clsprox_mu)):
                yield replace(plain, training=replace(plain.training, clsnorm=clsnorm, clsprox=clsprox))


def _paper_spec(column: Column, algorithm: str) -> Spec:
    options = {
        "fedprox": {"mu": column.fedprox_mu},
        "moon": {"mu": column.moon_mu, "temperature": 0.5},
        "fedavgm": {"momentum": 0.1},
    }
    return Spec(
        data=DataSpec(name=column.data),
        partition=PartitionSpec(kind="dirichlet", num_clients=10, alpha=column.alpha),
        model=ModelSpec(name=column.model),
        training=TrainingSpec(
            algorithm=canonical(text_of(algorithm, options.get(algorithm, {}))),
            rounds=100,
            local_epochs=10,
            batch_size=column.batch_size,
            lr=0.01,
            momentum=0.9,
            weight_decay=1e-5,
        ),
        calibration=CalibrationSpec(
            methods=(
                f"ccvr,num_virtual={column.num_virtual},epochs={column.calibration_epochs[algorithm]},"
                f"lr={column.calibration_lr:g},momentum=0.9,weight_decay=1e-5,batch_size=64,"
                "transform=tukey:0.5,transform_at=draws",
                "oracle,epochs=50,lr=0.001",
            )
        ),
    )


PRESETS: dict[str, Spec] = {spec.name: spec for spec in (Spec(), *_paper_specs())}


def find_spec(text: str, *, trust: Trust = False) -> Spec:
    """The spec that a preset's name or a TOML file's path stands for; names of code in a file need ``trust``."""
    if text in PRESETS:
        return PRESETS[text]
    path = Path(text)
    if path.suffix == ".toml" or path.is_file():
        if not path.is_file():
            raise SpecError(f"{path} does not exist. Give a TOML file, or a preset that `ccvr run --help` lists.")
        return read_spec(path, trust=trust)
    raise UnknownName(f'no preset "{text}".{suggestion(text, PRESETS)}')
