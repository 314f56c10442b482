"""Entries of the paper's tables beside what our cells say."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ccvr.calibration.spec import UNCALIBRATED
from ccvr.experiment.reproduction.cells import CELLS, Cell, Scale
from ccvr.experiment.reproduction.trained import Trainings
from ccvr.report.comparison import Row
from ccvr.report.groups import Spread
from ccvr.report.published import Published

DATA = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "cinic10": "CINIC-10"}
ALGORITHMS = {"fedavg": "FedAvg", "fedprox": "FedProx", "fedavgm": "FedAvgM", "moon": "MOON"}
METHODS = {"ccvr": "CCVR", "oracle": "whole data", UNCALIBRATED: ""}


def setting_of(cell: Cell) -> str:
    """Data and owners: a column of the paper's tables."""
    data, part, model = cell.spec.data, cell.spec.partition, cell.spec.model.name
    owners = f"α = {part.alpha:g}" if part.kind == "dirichlet" else part.kind
    clients = f", {part.num_clients} clients" if part.num_clients != 10 else ""
    network = f", {model}" if (data.name == "cifar10") != (model == "simple-cnn") else ""
    return f"{DATA.get(data.name, data.name)}, {owners}{clients}{network}"


def method_of(cell: Cell, head: str) -> str:
    """Algorithm and head: a row of the paper's tables."""
    training = cell.spec.training
    switches = ["clsnorm"] * training.clsnorm + ["clsprox"] * bool(training.clsprox)
    name = METHODS.get(head, head)
    if head.startswith("ccvr-m"):
        name = f"CCVR, M_c = {head.removeprefix('ccvr-m')}"
    if head.startswith("oracle-partial-"):
        name = f"{head.removeprefix('oracle-partial-')} real samples per class"
    return " + ".join(filter(None, [ALGORITHMS.get(training.algorithm, training.algorithm), *switches, name]))


def base_of(cell: Cell, head: str) -> Cell | None:
    """The cell whose uncalibrated accuracy a gain is counted from; None where there is nothing to gain."""
    if head != UNCALIBRATED:
        return cell
    return CELLS[cell.plain] if cell.plain != cell.name else None


@dataclass(frozen=True)
class Numbers:
    """Our accuracies and gains by seed."""

    trainings: Trainings

    def accuracies(self, cell: Cell, head: str, scale: Scale) -> dict[int, float]:
        found = {seed: each.accuracy(head, cell) for seed, each in self.trainings.seeds(cell, scale).items()}
        return {seed: value for seed, value in found.items() if value is not None}

    def gains(self, cell: Cell, head: str, scale: Scale) -> dict[int, float]:
        """Over the uncalibrated model of the same seed and scale; seeds that lack one of the two are left out."""
        base = base_of(cell, head)
        after = self.accuracies(cell, head, scale)
        before = self.accuracies(base, UNCALIBRATED, scale) if base else {}
        return {seed: after[seed] - before[seed] for seed in after if seed in before}

    def row(self, key: tuple[str, str], paper: Published | None, scale: Scale | None) -> Row:
        """One entry; without a scale at the largest that has it."""
        cell, head = CELLS[key[0]], key[1]
        row = Row(*key, setting_of(cell), method_of(cell, head), paper)
        for each in [scale] if scale else self.trainings.scales(cell):
            values, gains = self.accuracies(cell, head, each), self.gains(cell, head, each)
            if values:
                gain = Spread.of(list(gains.values())) if gains else None
                ours = Spread.of(list(values.values()))
                return Row(*key, row.setting, row.method, paper, ours, gain, len(values), len(gains), each.label)
        return row


def compare(
    entries: Mapping[tuple[str, str], Published | None], trainings: Trainings, scale: Scale | None
) -> list[Row]:
    """All entries of a table, setting by setting, each in the paper's order."""
    numbers = Numbers(trainings)
    rows = [numbers.row(key, paper, scale) for key, paper in entries.items()]
    return [row for setting in _once(row.setting for row in rows) for row in rows if row.setting == setting]


def _once(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
