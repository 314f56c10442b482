"""Cells: the trainings that tables and figures of the paper are made of, at several scales."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ccvr.core.errors import UnknownName
from ccvr.core.tables import Table
from ccvr.experiment.presets import PRESETS
from ccvr.experiment.spec import Spec, training_settings
from ccvr.models.build import ModelSpec

PER_ROUND = 10
"""Clients that train in a round, also where there are 50 or 100 (the paper's table of hyperparameters)."""


class Scale(NamedTuple):
    """How much is trained."""

    rounds: int
    local_epochs: int

    @property
    def size(self) -> int:
        """Passes over the data in all."""
        return self.rounds * self.local_epochs

    @property
    def numbers(self) -> str:
        """``10 × 5``."""
        return f"{self.rounds} × {self.local_epochs}"

    @property
    def name(self) -> str:
        """``quick``; the numbers where the table has no such scale."""
        return next((name for name, scale in SCALES.items() if scale == self), self.numbers)

    @property
    def label(self) -> str:
        """``quick (10 × 5)``; without a name the numbers alone."""
        return self._with_numbers(self.name)

    @property
    def phrase(self) -> str:
        """``quick scale (10 × 5)``, so that "paper" is not read as the paper's own numbers."""
        return self._with_numbers(f"{self.name} scale")

    def _with_numbers(self, words: str) -> str:
        return words if self.name == self.numbers else f"{words} ({self.numbers})"

    @property
    def folder(self) -> str:
        """The name of a folder for cells of this scale."""
        return self.name.replace(" × ", "x")


SCALES: Table[Scale] = Table(
    "scale", {"paper": Scale(100, 10), "half": Scale(50, 10), "quick": Scale(10, 5)}, closed=True
)


def find_scale(text: str) -> Scale:
    """A scale by name, or as rounds and local epochs: ``10x1``."""
    numbers = re.fullmatch(r"([1-9][0-9]*)x([1-9][0-9]*)", text, re.ASCII)
    if numbers:
        return Scale(int(numbers[1]), int(numbers[2]))
    if text not in SCALES:
        known = ", ".join(sorted(SCALES))
        raise UnknownName(f'no scale "{text}". Known: {known}; or give rounds and local epochs, as 10x1.')
    return SCALES[text]


@dataclass(frozen=True)
class Cell:
    """One training of the paper: a spec at full scale, by the name that the data files have for it."""

    name: str
    spec: Spec

    @property
    def plain(self) -> str:
        """The cell without regularisers, which theirs are compared with."""
        return self.name.replace("-clsnorm", "").replace("-clsprox", "")

    def at(self, scale: Scale, seed: int) -> Spec:
        """What is trained. A seed changes initialisation and training, never who owns what."""
        training = replace(self.spec.training, rounds=scale.rounds, local_epochs=scale.local_epochs)
        return replace(self.spec, seed=seed, training=training)


def scale_of(spec: Spec) -> Scale:
    return Scale(spec.training.rounds, spec.training.local_epochs)


NOT_THE_CELLS = (
    "seed",
    "device",
    "threads",
    "training.step",
    "training.evaluate_every",
    "training.rounds",
    "training.local_epochs",
)
"""Settings in which runs may differ and still belong to one cell; scale and seed are keys of their own."""


def identity(spec: Spec) -> tuple[tuple[str, Any], ...]:
    """The settings that all runs of a cell share; names do not matter."""
    return tuple(item for item in sorted(training_settings(spec).items()) if item[0] not in NOT_THE_CELLS)


def _cells() -> Iterator[Cell]:
    for name, spec in PRESETS.items():
        if spec != Spec():
            yield Cell(name, spec)
    for algorithm in ("fedavg", "fedprox", "moon"):
        for number in (50, 100):
            yield _with_clients(f"cifar10-a0.1-{algorithm}", number)
    fedavg = PRESETS["cifar10-a0.1-fedavg"]
    yield Cell("cifar10-iid-fedavg", replace(fedavg, partition=replace(fedavg.partition, kind="iid")))
    for alpha in (0.1, 0.5):
        yield _small_network(alpha)


def _with_clients(preset: str, number: int) -> Cell:
    spec = PRESETS[preset]
    partition = replace(spec.partition, num_clients=number)
    training = replace(spec.training, client_fraction=PER_ROUND / number)
    return Cell(f"{preset}-n{number}", replace(spec, partition=partition, training=training))


def _small_network(alpha: float) -> Cell:
    """CIFAR-100 with CIFAR-10's network: no cell of the paper, but one that two cores can train."""
    spec = PRESETS["cifar100-a0.5-fedavg"]
    partition, model = replace(spec.partition, alpha=alpha), ModelSpec(name="simple-cnn")
    return Cell(f"cifar100-a{alpha:g}-fedavg-simple-cnn", replace(spec, partition=partition, model=model))


CELLS: Table[Cell] = Table("cell", {cell.name: cell for cell in _cells()}, closed=True)
