"""Clients that lie in their statistics: who is named, who is named in error, and what each fold's head scores.

    python bench/attacks.py RUN… [--draws 10] [--fits 3] [--honest 20] [--json]
    python bench/attacks.py --table results/attacks.json

Takes the models of finished runs. The clients of each are drawn anew, as its spec says, with partition seeds 0, 1, …;
attackers are drawn with the same seeds. Accuracies are percent of the test set, means over the draws: `lda` on all,
`ccvr-converged` with 500 draws a class on the first ones, against three attackers. `plain` merges all statistics,
`robust` leaves the suspects out, `honest` leaves the attackers out, which takes to know them. `median` is `lda` from
the median of the clients' class means. `cameras` are honest clients; each changes contrast by up to 30 % and brightness
by up to 20 of 255.

labels      the statistics of class a are sent as those of class a + 1
shift s     every feature is moved by s standard deviations, up or down; all attackers in the same direction
scale s     features are multiplied by s
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import ccvr
from ccvr.calibration.spec import UNCALIBRATED
from ccvr.core.arrays import IntArray
from ccvr.core.provenance import source_commit
from ccvr.core.run import RunFolder
from ccvr.data.batches import in_order
from ccvr.data.catalogue import load
from ccvr.data.partition import draw_partition
from ccvr.data.samples import Dataset
from ccvr.experiment.spec import Spec, read_spec
from ccvr.models.digest import backbone_digest
from ccvr.models.split import SplitModel
from ccvr.statistics.collect import read_features
from ccvr.statistics.moments import ClassStatistics
from ccvr.statistics.source import Source

METHODS = {"lda": "lda", "ccvr": "ccvr-converged,num_virtual=500"}
NUM_ATTACKERS = (1, 3)
Samples = tuple[Tensor, Tensor]
Attack = Callable[[Samples, Tensor, int], Samples]


def shifted(amount: float) -> Attack:
    return lambda samples, step, _: (samples[0] + amount * step, samples[1])


def scaled(amount: float) -> Attack:
    return lambda samples, _, __: (samples[0] * amount, samples[1])


ATTACKS: dict[str, Attack] = {
    "labels": lambda samples, step, classes: (samples[0], (samples[1] + 1) % classes),
    "shift 0.1": shifted(0.1),
    "shift 1": shifted(1),
    "scale 1.1": scaled(1.1),
    "scale 1.5": scaled(1.5),
    "scale 10": scaled(10),
}


@dataclass
class Counts:
    """What was found over the draws of one setting."""

    found: int = 0
    attackers: int = 0
    false_alarms: int = 0
    honest: int = 0
    accuracy: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def add(self, named: set[int], liars: set[int], num_clients: int) -> None:
        self.found += len(named & liars)
        self.attackers += len(liars)
        self.false_alarms += len(named - liars)
        self.honest += num_clients - len(liars)

    def score(self, method: str, fold: str, accuracy: float) -> None:
        self.accuracy.setdefault(method, {}).setdefault(fold, []).append(accuracy)

    def row(self) -> dict[str, Any]:
        of = self.accuracy.items()
        means = {m: {fold: round(float(np.mean(v)), 2) for fold, v in folds.items()} for m, folds in of}
        found = {"found": self.found, "attackers": self.attackers}
        return found | {"false_alarms": self.false_alarms, "honest": self.honest, "accuracy": means}


@dataclass(frozen=True)
class World:
    """One run's model, the features of its data, and how they are dealt out."""

    spec: Spec
    dataset: Dataset
    model: SplitModel
    train: Samples
    test: Samples
    source: Source

    @classmethod
    def of(cls, path: Path) -> "World":
        spec = read_spec(RunFolder.open(path).spec)
        dataset = load(spec.data.name, spec.data.root)
        model = ccvr.load(path, head=UNCALIBRATED)
        train, test = (_joined(read_features(model, in_order(part), "head")) for part in (dataset.train, dataset.test))
        return cls(spec, dataset, model, train, test, Source(backbone_digest(model, "head"), "head"))

    def shards(self, seed: int) -> list[Tensor]:
        partition = replace(self.spec.partition, seed=seed)
        return [torch.from_numpy(shard) for shard in draw_partition(self.train[1].numpy(), partition).shards]

    def clients(self, seed: int) -> list[Samples]:
        return [(self.train[0][shard], self.train[1][shard]) for shard in self.shards(seed)]

    def cameras(self, seed: int) -> list[Samples]:
        """The same clients, each with a camera of its own."""
        rng = np.random.default_rng(seed)
        return [
            _joined(
                read_features(self.model, self._seen_by(shard.numpy(), *rng.uniform((0.7, -20), (1.3, 20))), "head")
            )
            for shard in self.shards(seed)
        ]

    def _seen_by(self, shard: IntArray, contrast: float, brightness: float) -> Iterator[Samples]:
        for x, y in in_order(self.dataset.train, shard):
            yield ((x.float() - 128) * contrast + 128 + brightness).clamp(0, 255).to(x.dtype), y

    def statistics(self, samples: Samples) -> ClassStatistics:
        return ccvr.statistics_of(*samples, self.dataset.num_classes, source=self.source)

    def accuracy(self, total: ClassStatistics, method: str) -> float:
        head = ccvr.calibrate(self.model, total, method).head
        return 100 * float((head(self.test[0]).argmax(1) == self.test[1]).double().mean())

    def median_accuracy(self, parts: list[ClassStatistics]) -> float:
        """`lda` in which the mean of a class is the median of its owners' means, feature by feature."""
        mean = torch.zeros(parts[0].num_classes, parts[0].num_features, dtype=torch.float64)
        for label in range(len(mean)):
            mean[label] = torch.stack([part.mean[label] for part in parts if part.count[label]]).quantile(0.5, dim=0)
        cov = ccvr.merge(parts).pooled_covariance()
        weight = torch.linalg.solve(cov + 1e-3 * cov.trace() / len(cov) * torch.eye(len(cov), dtype=cov.dtype), mean.T)
        scores = self.test[0].double() @ weight - 0.5 * (mean.T * weight).sum(0)
        return 100 * float((scores.argmax(1) == self.test[1]).double().mean())


def _joined(batches: Iterator[Samples]) -> Samples:
    z, y = zip(*batches, strict=True)
    return torch.cat(z), torch.cat(y)


@dataclass
class Draw:
    """One draw of clients, and what was fitted on sums of them."""

    world: World
    seed: int
    methods: dict[str, str]
    fitted: dict[tuple[str, frozenset[int], frozenset[int], str], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clients = self.world.clients(self.seed)
        self.parts = [self.world.statistics(client) for client in self.clients]

    def measure(self, attack: str, number: int, counts: Counts) -> None:
        """Let ``number`` clients attack; count who is named, and score each fold."""
        rng = np.random.default_rng(self.seed)
        liars = set(rng.choice(len(self.parts), number, replace=False).tolist())
        step = (
            self.world.train[0].std(0) * torch.from_numpy(rng.choice([-1.0, 1.0], self.parts[0].num_features)).float()
        )
        parts = list(self.parts)
        for liar in liars:
            lie = ATTACKS[attack](self.clients[liar], step, self.world.dataset.num_classes)
            parts[liar] = self.world.statistics(lie)
        total, named = merged_and_named(parts)
        counts.add(named, liars, len(parts))
        every = frozenset(range(len(parts)))
        for method in self.methods if number != 1 else ["lda"]:
            for fold, left_out in (("plain", set()), ("robust", named), ("honest", liars)):
                counts.score(method, fold, self._accuracy(parts, total, every - left_out, liars, attack, method))

    def _accuracy(
        self,
        parts: list[ClassStatistics],
        total: ClassStatistics,
        kept: frozenset[int],
        liars: set[int],
        attack: str,
        method: str,
    ) -> float:
        """Of the sum of some parts; fitted once, whatever was sent by the others."""
        key = (attack if kept & liars else "", kept & liars, kept, method)
        if key not in self.fitted:
            if len(kept) < len(parts):
                total = ccvr.merge(parts[client] for client in sorted(kept))
            self.fitted[key] = self.world.accuracy(total, self.methods[method])
        return self.fitted[key]


def merged_and_named(parts: list[ClassStatistics]) -> tuple[ClassStatistics, set[int]]:
    named: list[Any] = []
    total = ccvr.merge(parts, suspects=named.append)
    return total, {suspect.position for suspect in named}


def measured(path: Path, draws: int, fits: int, honest: int) -> Iterator[dict[str, Any]]:
    """One row for each attack, and for none."""
    world = World.of(path)
    facts = {
        "data": world.spec.data.name,
        "clients": world.spec.partition.num_clients,
        "alpha": world.spec.partition.alpha,
    }
    settings = [("none", 0), *((attack, number) for number in NUM_ATTACKERS for attack in ATTACKS)]
    found = {setting: Counts() for setting in settings}
    cameras = Counts()
    for seed in range(draws):
        draw = Draw(world, seed, {name: text for name, text in METHODS.items() if name == "lda" or seed < fits})
        for attack, number in settings:
            draw.measure(attack, number, found[attack, number])
        found["none", 0].score("median", "plain", world.median_accuracy(draw.parts))
        if seed < fits + 1:
            parts = [world.statistics(client) for client in world.cameras(seed)]
            cameras.add(merged_and_named(parts)[1], set(), len(parts))
    for seed in range(draws, honest):
        parts = list(map(world.statistics, world.clients(seed)))
        found["none", 0].add(merged_and_named(parts)[1], set(), len(parts))
    for (attack, number), counts in found.items():
        yield facts | {"attack": attack, "num_attackers": number} | counts.row()
    yield facts | {"attack": "none, cameras", "num_attackers": 0} | cameras.row()


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f}" if whole else "–"


def _gains(row: dict[str, Any], method: str) -> str:
    of = row["accuracy"].get(method)
    return f"{of['plain']:.1f} → {of['robust']:.1f} ({of['honest']:.1f})" if of else "–"


def tables(rows: list[dict[str, Any]]) -> str:
    """Who was named, and what the folds score, as Markdown."""
    settings = list(dict.fromkeys((row["attack"], row["num_attackers"]) for row in rows))
    worlds = list(dict.fromkeys((row["data"], row["alpha"]) for row in rows))
    found = {(row["data"], row["alpha"], row["attack"], row["num_attackers"]): row for row in rows}
    scored = [world for world in worlds if "ccvr" in found[*world, "none", 0]["accuracy"] and world[0] == "cifar10"]
    lines = ["| attack | of 10 | " + " | ".join(f"{data} {alpha}" for data, alpha in worlds) + " |"]
    lines += ["|---|---:|" + "---:|" * len(worlds)]
    for attack, number in settings:
        cells = [found[*world, attack, number] for world in worlds]
        named = [f"{_percent(r['found'], r['attackers'])} / {_percent(r['false_alarms'], r['honest'])}" for r in cells]
        lines.append(f"| {attack} | {number} | " + " | ".join(named) + " |")
    columns = [(method, world) for method in METHODS for world in scored]
    lines += ["", "| attack | of 10 | " + " | ".join(f"`{m}`, {data} {alpha}" for m, (data, alpha) in columns) + " |"]
    lines += ["|---|---:|" + "---:|" * len(columns)]
    for attack, number in settings:
        cells = [_gains(found[*world, attack, number], method) for method, world in columns]
        if set(cells) != {"–"}:
            lines.append(f"| {attack} | {number} | " + " | ".join(cells) + " |")
    medians = (f"{found[*world, 'none', 0]['accuracy']['median']['plain']:.1f}" for world in scored)
    lines += ["", f"`lda` from the median of the clients' class means, without an attack: {', '.join(medians)}."]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="*")
    parser.add_argument("--table", type=Path, help="print the tables of what --json wrote")
    parser.add_argument("--draws", type=int, default=10, help="partitions of each run's data")
    parser.add_argument(
        "--fits", type=int, default=3, help="of them those that also fit ccvr-converged; cameras take one more"
    )
    parser.add_argument("--honest", type=int, default=0, help="partitions without an attack, if more")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    if options.table:
        records = json.loads(options.table.read_text(encoding="utf-8"))
        print(tables([row for record in records for row in record["rows"]]))
        return
    torch.set_num_threads(1)
    rows = [row for path in options.runs for row in measured(path, options.draws, options.fits, options.honest)]
    if options.json:
        about = {"command": f"python bench/attacks.py {' '.join(sys.argv[1:])}", "commit": source_commit()}
        print(json.dumps([about | {"rows": rows}]))
        return
    print(tables(rows))


if __name__ == "__main__":
    main()
