"""The spec of a run: frozen dataclasses ↔ TOML ↔ command line."""

import multiprocessing
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import tomli_w

from ccvr.algorithms.spec import TrainingSpec
from ccvr.algorithms.table import canonical
from ccvr.algorithms.table import upgraded as upgraded_training
from ccvr.calibration.methods import shared_options
from ccvr.calibration.methods import upgraded as upgraded_calibration
from ccvr.calibration.spec import CalibrationSpec
from ccvr.core.errors import SpecError
from ccvr.core.fields import build, flat, plain, require_finite
from ccvr.core.files import MAX_TOML, parse_toml, read_text
from ccvr.core.machine import cores
from ccvr.core.trust import REMEDY, Trust, require_trust
from ccvr.data.spec import DataSpec, PartitionSpec
from ccvr.models.build import ModelSpec


@dataclass(frozen=True)
class CheckpointSpec:
    """How often the state of the rounds is saved."""

    every: int = 1
    """Save after every so many rounds, and after the last."""
    keep: int = 2
    """How many of the newest checkpoints stay; 0 keeps all."""

    def __post_init__(self) -> None:
        if self.every < 1:
            raise SpecError(f"checkpoint.every is {self.every}; give at least 1.")
        if self.keep < 0:
            raise SpecError(f"checkpoint.keep is {self.keep}; give 0 for all, or how many.")


@dataclass(frozen=True)
class LogSpec:
    """Who else is told how a run goes."""

    tensorboard: bool = False
    """Log scalars by round, the label distribution and figures to RUN/tensorboard; needs ccvr[tensorboard]."""


MAX_SECONDS = 10**7
"""Some months: nobody waits longer."""


@dataclass(frozen=True)
class FlowerSpec:
    """How clients are reached with ``engine = "flower"``."""

    superlink: str = ""
    """Name of a SuperLink connection in Flower's configuration; without it Flower simulates the clients here."""
    quorum: float = 1.0
    """Part of the clients that must answer in each exchange; the missing ones are named."""
    timeout: float = 3600.0
    """Seconds that an exchange with the clients may take."""

    def __post_init__(self) -> None:
        if not 0 < self.quorum <= 1:
            raise SpecError(f"flower.quorum is {self.quorum}; give a number above 0, at most 1.")
        if not 0 < self.timeout <= MAX_SECONDS:
            raise SpecError(f"flower.timeout is {self.timeout}; give seconds above 0, at most {MAX_SECONDS:,}.")


@dataclass(frozen=True)
class Spec:
    """Everything that decides what a run computes."""

    seed: int = 0
    """Seed of initialisation, training and calibration; who owns what has partition.seed."""
    device: Literal["cpu", "cuda"] = "cpu"
    threads: int = 1
    """Threads of statistics and calibration; part of the spec because another number may round differently."""
    workers: int | None = None
    """Processes that train clients, one thread each; without it as many as there are cores. Changes no result."""
    engine: Literal["local", "flower"] = "local"
    """Where the clients are: on this machine, or where Flower reaches them (docs/flower.md)."""
    data: DataSpec = field(default_factory=DataSpec)
    partition: PartitionSpec = field(default_factory=PartitionSpec)
    model: ModelSpec = field(default_factory=ModelSpec)
    training: TrainingSpec = field(default_factory=TrainingSpec)
    calibration: CalibrationSpec = field(default_factory=CalibrationSpec)
    checkpoint: CheckpointSpec = field(default_factory=CheckpointSpec)
    log: LogSpec = field(default_factory=LogSpec)
    flower: FlowerSpec = field(default_factory=FlowerSpec)

    def __post_init__(self) -> None:
        require_finite(self)
        if not 1 <= self.threads <= 1024:
            raise SpecError(f"threads is {self.threads}; give a number from 1 to 1024.")
        if self.workers is not None and not 1 <= self.workers <= 1024:
            raise SpecError(f"workers is {self.workers}; give a number from 1 to 1024.")

    def processes(self, num_clients: int) -> int:
        """How many processes train a round of so many clients; 1 is this one alone, as with CUDA."""
        alone = self.device != "cpu" or multiprocessing.current_process().daemon  # a daemon may have no children
        return 1 if alone else min(self.workers or cores(), num_clients)

    @property
    def description(self) -> str:
        """What is run, in a few words."""
        train, part = self.training, self.partition
        owners = f"dirichlet {part.alpha:g}" if part.kind == "dirichlet" else part.kind
        return (
            f"{' + '.join([train.algorithm, *self._switches])} on {self.data.name}, {part.num_clients} clients "
            f"({owners}), {train.rounds} rounds of {train.local_epochs} epochs"
        )

    @property
    def _switches(self) -> list[str]:
        train = self.training
        server = [train.server.partition(",")[0]] if train.server else []
        return [*server, *["clsnorm"] * train.clsnorm, *["clsprox"] * bool(train.clsprox)]

    @property
    def name(self) -> str:
        """What sets this spec apart in a comparison: data, owners, algorithm, regularisers."""
        part, train = self.partition, self.training
        owners = {"dirichlet": f"a{part.alpha:g}", "shards": f"shards{part.classes_per_client}"}.get(
            part.kind, part.kind
        )
        return re.sub(r"[^\w.]+", "-", "-".join([self.data.name, owners, train.algorithm_name, *self._switches])).strip(
            "-."
        )


FREE = ("calibration.", "checkpoint.", "log.", "flower.", "data.root", "engine", "workers")
"""Beginnings of the names of fields that the rounds do not depend on."""


def training_settings(spec: Spec) -> dict[str, Any]:
    """The fields, by dotted name, that decide what the rounds compute: not where data lies, nor what comes after."""
    fields = flat(asdict(spec))  # with what is None, which plain() leaves out
    fields["training.algorithm"] = canonical(spec.training.algorithm)
    fields["training.server"] = canonical(spec.training.server)
    between = {"calibration.every": spec.calibration.every, "calibration.between": spec.calibration.between_method}
    return {name: value for name, value in fields.items() if not name.startswith(FREE)} | between


def to_toml(spec: Spec) -> str:
    return tomli_w.dumps(plain(spec))


def from_mapping(mapping: Mapping[str, Any], *, trust: Trust = False) -> Spec:
    """The spec in nested mappings, of this version or an older one. What it names is not looked up.

    Raises:
        UntrustedCode: a spec of an old version gives options to calibrators of the user's own. To know which they take
            these must be imported, and ``trust`` does not allow it.
        SpecError: it is not a spec.
    """
    old = mapping.get("calibration")
    if isinstance(old, Mapping) and shared_options(old):
        require_trust({"calibration": old}, "spec", trust)
    sections = {"training": upgraded_training, "calibration": upgraded_calibration}
    return build(
        Spec,
        {key: sections[key](v) if key in sections and isinstance(v, Mapping) else v for key, v in mapping.items()},
    )


def from_toml(text: str, where: str = "spec", *, trust: Trust = False, remedy: str = REMEDY) -> Spec:
    """The spec in a TOML text.

    Args:
        text: the content of a spec file.
        where: the file, for errors.
        trust: which names of code it may have (``package.module:name``): a spec is read to be run.
        remedy: what the error about others asks for.

    Raises:
        UntrustedCode: it has another such name. Nothing was imported.
        SpecError: it is not a spec.
    """
    try:
        content = parse_toml(text)
        require_trust(content, where, trust, remedy=remedy)
        return from_mapping(content, trust=trust)
    except ValueError as error:
        raise SpecError(f"{where} is not valid TOML: {error}.") from error
    except SpecError as error:
        raise SpecError(f"{where}: {error}") from error


def read_spec(path: Path, *, trust: Trust = False) -> Spec:
    try:
        text = read_text(path, MAX_TOML)
    except (OSError, ValueError) as error:
        raise SpecError(f"{path} cannot be read ({error}). Give a TOML file, or a preset by name.") from error
    return from_toml(text, str(path), trust=trust)
