"""Trainings that are finished, in run folders and in records, found by what they trained."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ccvr.core.errors import SpecError
from ccvr.core.fields import build
from ccvr.core.run import RunFolder
from ccvr.experiment.reproduction.cells import Cell, Scale, identity, scale_of
from ccvr.experiment.reproduction.heads import find_label
from ccvr.experiment.spec import Spec, read_spec
from ccvr.report.records import is_record, read_record
from ccvr.report.runs import RunFiles


@dataclass(frozen=True)
class Trained:
    """What a finished training left."""

    spec: Spec
    files: RunFiles

    def accuracy(self, head: str, cell: Cell) -> float | None:
        """Percent of the test set that one of the cell's heads gets right; None if it was not fitted."""
        label = find_label(head, cell.at(scale_of(self.spec), self.spec.seed), self.files.results)
        return None if label is None else self.files.accuracy[label]


def run_folders(out: Path) -> Iterator[RunFolder]:
    """Every run below a folder, finished or not."""
    for path in sorted(out.rglob("spec.toml")):
        yield RunFolder(path.parent)


def _finished(out: Path) -> Iterator[Trained]:
    for folder in run_folders(out):
        if folder.results.is_file():
            yield Trained(read_spec(folder.spec), RunFiles.read(folder.path))


def _recorded(results: Path) -> Iterator[Trained]:
    for path in filter(is_record, sorted(results.rglob("*.json"))):
        files = read_record(path)
        try:
            yield Trained(build(Spec, files.spec), files)
        except SpecError as error:
            raise SpecError(f"{path}: {error}") from error


class Trainings:
    """Finished trainings by cell, scale and seed. Of two that are the same the earlier one in the list counts."""

    def __init__(self, trained: Sequence[Trained]) -> None:
        self._by_cell: dict[object, dict[Scale, dict[int, Trained]]] = defaultdict(lambda: defaultdict(dict))
        for each in trained:
            self._by_cell[identity(each.spec)][scale_of(each.spec)].setdefault(each.spec.seed, each)

    @classmethod
    def read(cls, out: Path, results: Path) -> "Trainings":
        """Run folders below ``out`` first, then records below ``results``."""
        return cls([*_finished(out), *_recorded(results)])

    def scales(self, cell: Cell) -> list[Scale]:
        """Scales at which a cell was trained, the largest first."""
        return sorted(self._by_cell.get(identity(cell.spec), {}), key=lambda scale: (-scale.size, scale))

    def seeds(self, cell: Cell, scale: Scale) -> dict[int, Trained]:
        """The trainings of a cell at a scale, by seed."""
        return dict(sorted(self._by_cell.get(identity(cell.spec), {}).get(scale, {}).items()))
