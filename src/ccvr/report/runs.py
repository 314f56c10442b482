"""The files of a run, read for a report."""

import os
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.numpy import load_file

from ccvr.core.arrays import Array, read_arrays
from ccvr.core.errors import RunError
from ccvr.core.fields import flat
from ccvr.core.results import UNCALIBRATED, Results
from ccvr.core.run import RunFolder
from ccvr.report.text import shown

NOT_SETTINGS = ("seed", "data.root", "workers", "log.tensorboard")
"""Fields of a spec in which runs may differ and still be repeats of each other."""

Analysis = tuple[dict[str, Array], dict[str, Any]]


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
        provenance = folder.read_json(folder.provenance) if folder.provenance.is_file() else {}
        if not isinstance(provenance, dict):
            raise RunError(f"{folder.provenance} is damaged. Delete it to go on without a record of the start.")
        analyses = sorted((path / "analysis").glob("[!.]*.safetensors"))
        return cls(
            name=Path(os.path.abspath(path)).name or str(path),
            folder=folder,
            spec=_spec(folder.spec),
            results=folder.read_results(),
            rounds=folder.read_rounds(),
            provenance=provenance,
            label_counts=read_label_counts(folder.partition) if folder.partition.is_file() else None,
            analyses={file.stem: read_arrays(file) for file in analyses},
        )

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


def read_runs(paths: Sequence[Path]) -> list[RunFiles]:
    """Finished runs, each with a name of its own."""
    runs = [RunFiles.read(path) for path in paths]
    taken = Counter(run.name for run in runs)
    return [run if taken[run.name] == 1 else replace(run, name=f"{run.name} ({i + 1})") for i, run in enumerate(runs)]


def _spec(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} cannot be read ({error}). Give a folder that `ccvr run` made.") from error


def read_label_counts(path: Path) -> Array:
    """Training samples of each client by class [K, C], from partition.safetensors."""
    try:
        return load_file(path)["label_counts"]
    except (OSError, SafetensorError, LookupError) as error:
        raise RunError(f"{path} cannot be read ({error}).") from error
