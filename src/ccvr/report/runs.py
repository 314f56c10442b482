"""The files of a run, read for a report."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypedDict

from ccvr.core.arrays import Array, load_arrays, read_arrays
from ccvr.core.errors import RunError
from ccvr.core.fields import flat
from ccvr.core.files import MAX_TOML, digest_of, parse_toml, read_text, sha256
from ccvr.core.results import UNCALIBRATED, Results
from ccvr.core.run import RunFolder
from ccvr.core.schema import Count, Real, mistyped
from ccvr.report.analyses import ABOUT, Analysis, misfit
from ccvr.report.text import shown

NOT_SETTINGS = ("seed", "data.root", "workers", "log.tensorboard")
"""Fields of a spec in which runs may differ and still be repeats of each other."""

MAX_OWNED = 2**40
"""Samples of a class that a client can have."""


class DataTable(TypedDict, total=False):
    name: str


class PartitionTable(TypedDict, total=False):
    kind: str
    alpha: Real
    num_clients: Count


class ModelTable(TypedDict, total=False):
    name: str


class TrainingTable(TypedDict, total=False):
    rounds: Count
    local_epochs: Count
    client_fraction: Annotated[float, (0, 1)]


class SpecTable(TypedDict, total=False):
    """What reports read of a spec; `ccvr.experiment.spec` has all of it."""

    seed: Count
    data: DataTable
    partition: PartitionTable
    model: ModelTable
    training: TrainingTable
    calibration: dict[str, Any]


@dataclass(frozen=True)
class RunFiles:
    """One finished run. What the run does not have is empty or None."""

    name: str
    folder: RunFolder
    spec: dict[str, Any]
    results: Results
    rounds: list[dict[str, Any]]
    provenance: dict[str, Any]
    label_counts: Array | None
    analyses: dict[str, Analysis]

    @classmethod
    def read(cls, path: Path) -> "RunFiles":
        folder = RunFolder.open(path)
        kept = {name: folder.analysis(name) for name in sorted(ABOUT) if folder.analysis(name).is_file()}
        run = cls(
            name=Path(os.path.abspath(path)).name or str(path),
            folder=folder,
            spec=_spec(folder.spec),
            results=folder.read_results(),
            rounds=folder.read_rounds(),
            provenance=folder.read_provenance() if folder.provenance.is_file() else {},
            label_counts=read_label_counts(folder.partition) if folder.partition.is_file() else None,
            analyses={name: read_arrays(file) for name, file in kept.items()},
        )
        if fact := inconsistent(run):
            raise RunError(f"files in {path} do not belong together: {fact}. Restore the file, or delete it.")
        for name, found in run.analyses.items():
            if fact := misfit(name, found, len(run.class_names)):
                raise RunError(f"{kept[name]} is damaged: {fact}. Delete it and run `ccvr analyze` again.")
        return run

    @property
    def accuracy(self) -> dict[str, float]:
        """Percent of the test samples that each head gets right."""
        return self.results["accuracy"]

    @property
    def deployed(self) -> str:
        return self.results["deployed"]

    @property
    def before(self) -> float:
        return self.accuracy[UNCALIBRATED]

    @property
    def after(self) -> float:
        return self.accuracy[self.deployed]

    @property
    def shown_heads(self) -> list[str]:
        """Before and after: the trained head and the one that the run's model has, if that is another."""
        return list(dict.fromkeys([UNCALIBRATED, self.deployed]))

    @property
    def class_names(self) -> list[str]:
        return [shown(name, 40) for name in self.results["class_names"]]

    @property
    def settings(self) -> dict[str, Any]:
        """The spec by dotted field; repeats of a run with other seeds have the same."""
        return {name: value for name, value in flat(self.spec).items() if name not in NOT_SETTINGS}

    def setting(self, name: str, default: Any = None) -> Any:
        return self.settings.get(name, default)

    @property
    def algorithm(self) -> str:
        return str(self.setting("training.algorithm", "?")).partition(",")[0]

    @property
    def label(self) -> str:
        """The run's name, with its algorithm where the name does not contain it."""
        return self.name if self.algorithm.lower() in self.name.lower() else f"{self.name} ({self.algorithm})"

    @property
    def what(self) -> str:
        """Data, owners and algorithm in a few words."""
        kind = self.setting("partition.kind", "?")
        owners = f"{kind} {self.setting('partition.alpha')}" if kind == "dirichlet" else str(kind)
        return f"{self.setting('data.name', '?')}, {owners}, {self.algorithm}"


def made_from(runs: Sequence[RunFolder]) -> str:
    """What a page about runs is made from, in short: a digest over the files that it reads."""
    files = []
    for folder in runs:
        own = [folder.spec, folder.results, folder.rounds, folder.provenance, folder.partition]
        files += [*own, *sorted((folder.path / "analysis").glob("[!.]*.safetensors"))]
    return sha256("\n".join(f"{path.name} {digest_of(path)}" for path in files).encode())


def read_runs(paths: Sequence[Path]) -> list[RunFiles]:
    """Finished runs, each with a name of its own."""
    runs = [RunFiles.read(path) for path in paths]
    taken = Counter(run.name for run in runs)
    return [run if taken[run.name] == 1 else replace(run, name=f"{run.name} ({i + 1})") for i, run in enumerate(runs)]


def _spec(path: Path) -> dict[str, Any]:
    try:
        content = parse_toml(read_text(path, MAX_TOML))
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read ({error}). Give a folder that `ccvr run` made.") from error
    if fact := mistyped(content, SpecTable):
        raise RunError(f"{path} is damaged: {fact}. Give a folder that `ccvr run` made.")
    return content


def read_label_counts(path: Path) -> Array:
    """Training samples of each client by class [K, C], from partition.safetensors."""
    remedy = "Delete it to go on without it."
    try:
        counts = load_arrays(path)[1]["label_counts"]
    except (OSError, LookupError, ValueError) as error:
        raise RunError(f"{path} cannot be read ({error}). {remedy}") from error
    if fact := miscounted(counts):
        raise RunError(f"{path} is damaged: {fact}. {remedy}")
    return counts


def miscounted(counts: Array) -> str | None:
    """Why an array is no count of samples by client and class; None where it is one."""
    if counts.ndim != 2 or not counts.size or counts.dtype.kind not in "iu":
        return f"label_counts is {counts.dtype} {list(counts.shape)}, not whole numbers by client and class"
    low, high = int(counts.min()), int(counts.max())
    return None if 0 <= low <= high <= MAX_OWNED else f"label_counts has values from {low} to {high}"


def inconsistent(run: RunFiles) -> str | None:
    """The first fact in which files of a run contradict each other; None where they belong together."""
    classes, counts = len(run.results["class_names"]), run.label_counts
    clients = run.results.get("num_clients", MAX_OWNED if counts is None else len(counts))
    if counts is not None and counts.shape != (clients, classes):
        return f"partition.safetensors has {len(counts)} clients and {counts.shape[1]} classes, results.json others"
    for record in run.rounds:
        for each in record.get("clients", ()):
            where = f"client {each['client']} in round {record['round']} of rounds.jsonl"
            if each["client"] >= clients:
                return f"{where} is not among {clients} clients"
            if each.get("head_row_norms") and len(each["head_row_norms"]) != classes:
                return f"{where} has norms of {len(each['head_row_norms'])} classes, results.json has {classes}"
    return None
