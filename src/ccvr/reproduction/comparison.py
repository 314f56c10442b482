"""The paper's tables: published numbers beside ours."""

from collections.abc import Sequence
from dataclasses import dataclass

from ccvr.report.groups import Spread
from ccvr.report.published import Published
from ccvr.report.text_table import DASH, TextTable, Value
from ccvr.reproduction.cells import CELLS, Cell, Scale
from ccvr.reproduction.heads import BEFORE, HEADS, Entries, Entry, HeadName
from ccvr.reproduction.run_index import RunIndex

EXACT = 6
"""Digits to which numbers are compared: far less than one test image, far more than floats err."""


@dataclass(frozen=True)
class TableRow:
    """One entry of a table of the paper: test accuracy in percent, theirs and ours; what is not known is None."""

    cell: str
    head: HeadName
    setting: str
    method: str
    paper: Published | None
    ours: Spread | None = None
    gain: Spread | None = None
    seeds: int = 0
    gain_seeds: int = 0
    scale: Scale | None = None

    @property
    def difference(self) -> float | None:
        return None if self.ours is None or self.paper is None else self.ours.mean - self.paper.mean


HEADERS = ("setting", "method", "paper", "ours", "ours − paper", "paper's gain", "our gain", "seeds", "scale")
WORDS = ("setting", "method", "scale")


def comparison(title: str, rows: Sequence[TableRow], name: str = "") -> TextTable:
    """A table of the paper, each entry beside ours, with how much ours was trained."""
    scales = list(dict.fromkeys(row.scale.label for row in rows if row.scale))
    trained = f"ours: {', '.join(scales)}" if scales else "ours: nothing yet"
    mixed = "; scales are mixed, each row has its own, and so has its gain" if len(scales) > 1 else ""
    caption = f"{title}. Test accuracy in percent; rounds × local epochs: paper: 100 × 10, {trained}{mixed}."
    return TextTable(caption, HEADERS, [_cells(row) for row in rows], WORDS, [_values(row) for row in rows], name)


def _cells(row: TableRow) -> list[str]:
    paper = None if row.paper is None else Spread(row.paper.mean, row.paper.std)
    theirs = None if row.paper is None or row.paper.gain is None else Spread(row.paper.gain, None)
    difference = None if row.difference is None else Spread(row.difference, None)
    spreads = [(paper, ""), (row.ours, ""), (difference, "+"), (theirs, "+"), (row.gain, "+")]
    numbers = [DASH if spread is None else spread.text(sign) for spread, sign in spreads]
    is_part = row.gain is not None and row.gain_seeds != row.seeds  # not every seed has what the gain is counted from
    seeds = f"{row.seeds}, gain {row.gain_seeds}" if is_part else str(row.seeds or DASH)
    return [row.setting, row.method, *numbers, seeds, row.scale.name if row.scale else DASH]


def _values(row: TableRow) -> dict[str, Value]:
    numbers = {
        "paper_mean": row.paper.mean if row.paper else None,
        "paper_std": row.paper.std if row.paper else None,
        "paper_gain": row.paper.gain if row.paper else None,
        "mean": row.ours.mean if row.ours else None,
        "std": row.ours.std if row.ours else None,
        "difference": row.difference,
        "gain": row.gain.mean if row.gain else None,
        "gain_std": row.gain.std if row.gain else None,
    }
    rounded = {name: None if number is None else round(number, 4) for name, number in numbers.items()}
    counts: dict[str, Value] = {"seeds": row.seeds, "gain_seeds": row.gain_seeds}
    scale = row.scale.label if row.scale else ""
    return {"cell": row.cell, "head": row.head, **rounded, **counts, "scale": scale}


DATA = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "cinic10": "CINIC-10"}
ALGORITHMS = {"fedavg": "FedAvg", "fedprox": "FedProx", "fedavgm": "FedAvgM", "moon": "MOON"}


def setting_of(cell: Cell) -> str:
    """Data and owners: a column of the paper's tables."""
    data, part, model = cell.spec.data, cell.spec.partition, cell.spec.model.name
    owners = f"α = {part.alpha:g}" if part.kind == "dirichlet" else part.kind
    clients = f", {part.num_clients} clients" if part.num_clients != 10 else ""
    network = f", {model}" if (data.name == "cifar10") != (model == "simple-cnn") else ""
    return f"{DATA.get(data.name, data.name)}, {owners}{clients}{network}"


def method_of(cell: Cell, head: HeadName) -> str:
    """Algorithm and head: a row of the paper's tables."""
    training = cell.spec.training
    switches = ["clsnorm"] * training.clsnorm + ["clsprox"] * bool(training.clsprox)
    algorithm = ALGORITHMS.get(training.algorithm_name, training.algorithm_name)
    return " + ".join(filter(None, [algorithm, *switches, HEADS[head].words]))


def base_of(cell: Cell, head: HeadName) -> Cell | None:
    """The cell whose uncalibrated accuracy a gain is counted from; None where there is nothing to gain."""
    if head != BEFORE:
        return cell
    return CELLS[cell.plain] if cell.plain != cell.name else None


@dataclass(frozen=True)
class Numbers:
    """Our accuracies and gains by seed."""

    trainings: RunIndex

    def accuracies(self, cell: Cell, head: HeadName, scale: Scale) -> dict[int, float]:
        found = {seed: each.accuracy(head, cell) for seed, each in self.trainings.seeds(cell, scale).items()}
        return {seed: value for seed, value in found.items() if value is not None}

    def gains(self, cell: Cell, head: HeadName, scale: Scale) -> dict[int, float]:
        """Over the uncalibrated model of the same seed and scale; seeds that lack one of the two are left out."""
        base = base_of(cell, head)
        after = self.accuracies(cell, head, scale)
        before = self.accuracies(base, BEFORE, scale) if base else {}
        return {seed: after[seed] - before[seed] for seed in after if seed in before}

    def row(self, key: Entry, paper: Published | None, scale: Scale | None) -> TableRow:
        """One entry; without a scale at the largest that has it."""
        cell, head = CELLS[key[0]], key[1]
        names = (*key, setting_of(cell), method_of(cell, head))
        for each in [scale] if scale else self.trainings.scales(cell):
            values, gains = self.accuracies(cell, head, each), self.gains(cell, head, each)
            if values:
                gain = Spread.of(list(gains.values())) if gains else None
                return TableRow(*names, paper, Spread.of(list(values.values())), gain, len(values), len(gains), each)
        return TableRow(*names, paper)


def compare(entries: Entries, trainings: RunIndex, scale: Scale | None) -> list[TableRow]:
    """All entries of a table, setting by setting, each in the paper's order."""
    numbers = Numbers(trainings)
    rows = [numbers.row(key, paper, scale) for key, paper in entries.items()]
    return [row for setting in dict.fromkeys(row.setting for row in rows) for row in rows if row.setting == setting]
