"""Finished trainings in run folders and records, found by cell, scale and seed."""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ccvr.core.errors import CcvrError, SpecError, UntrustedCode
from ccvr.core.run import RunFolder
from ccvr.core.trust import Trust
from ccvr.experiment.spec import Spec, from_mapping, read_spec
from ccvr.report.runs import RunFiles
from ccvr.reproduction.cells import Cell, Scale, identity, scale_of
from ccvr.reproduction.heads import HeadName, find_label
from ccvr.reproduction.merge_records import same_training, united
from ccvr.reproduction.records import is_record, read_record

NAME = re.compile(r".+-s\d+\.json")
"""What records are called."""
Key = tuple[object, Scale, int]
"""What is trained, how much of it, and the seed."""


def key_of(spec: Spec) -> Key:
    return identity(spec), scale_of(spec), spec.seed


@dataclass(frozen=True)
class Trained:
    """A finished training: its spec and its files."""

    spec: Spec
    files: RunFiles

    def accuracy(self, head: HeadName, cell: Cell) -> float | None:
        """Percent of the test set that one of the cell's heads gets right; None if it was not fitted."""
        label = find_label(head, cell.at(scale_of(self.spec), self.spec.seed), self.files.results)
        return None if label is None else self.files.accuracy[label]


@dataclass(frozen=True)
class Unusable:
    """A file that is skipped, and why."""

    reason: str


def runs_below(out: Path, *, trust: Trust = False) -> Iterator[tuple[RunFolder, Spec] | Unusable]:
    """Every run below a folder, finished or not; those that name code that may not be imported are unusable."""
    for path in sorted(out.rglob("spec.toml")):
        try:
            yield RunFolder(path.parent, trust), read_spec(path, trust=trust)
        except (SpecError, UntrustedCode) as error:
            yield Unusable(str(error))


def _finished(out: Path, trust: Trust) -> Iterator[Trained | Unusable]:
    for found in runs_below(out, trust=trust):
        if isinstance(found, Unusable):
            yield found
        elif found[0].results.is_file():
            folder, spec = found
            try:
                yield Trained(spec, RunFiles.read(folder.path))
            except CcvrError as error:
                yield Unusable(str(error))


def _recorded(results: Path) -> Iterator[Trained | Unusable]:
    for path in sorted(results.rglob("*.json")):
        if not is_record(path):
            if NAME.fullmatch(path.name):
                yield Unusable(f"{path} has the name of a record and is none. Record the run again, or delete it.")
            continue
        try:
            files = read_record(path)
            yield Trained(from_mapping(files.spec), files)
        except CcvrError as error:
            yield Unusable(str(error) if str(path) in str(error) else f"{path}: {error}")


class RunIndex:
    """Finished trainings by cell, scale and seed.

    Files about one training are taken together. Of two trainings of one cell, scale and seed that came out differently
    the earlier one in the list counts.
    """

    def __init__(self, found: Sequence[Trained | Unusable]) -> None:
        self.unusable = [each.reason for each in found if isinstance(each, Unusable)]
        self._by_key: dict[Key, Trained] = {}
        for each in found:
            if isinstance(each, Trained):
                self._add(each)

    def _add(self, new: Trained) -> None:
        first = self._by_key.setdefault(key_of(new.spec), new)
        if first is not new and same_training(first.files, new.files):
            self._by_key[key_of(new.spec)] = Trained(first.spec, united(first.files, new.files))
        elif first is not new:
            paths = first.files.folder.path, new.files.folder.path
            self.unusable.append(f"{paths[1]} is another training of the spec of {paths[0]}, which counts.")

    @classmethod
    def read(cls, out: Path | None, results: Path | None, *, trust: Trust = False) -> "RunIndex":
        """Run folders below ``out`` first, then records below ``results``; without one of them the other alone."""
        return cls([*(_finished(out, trust) if out else ()), *(_recorded(results) if results else ())])

    def __iter__(self) -> Iterator[Trained]:
        return iter(self._by_key.values())

    def get(self, spec: Spec) -> Trained | None:
        """The training of a spec."""
        return self._by_key.get(key_of(spec))

    def scales(self, cell: Cell) -> list[Scale]:
        """Scales at which a cell was trained, the largest first."""
        wanted = identity(cell.spec)
        return sorted({scale for key, scale, _ in self._by_key if key == wanted}, key=lambda each: (-each.size, each))

    def whole(self, cell: Cell, heads: Collection[HeadName]) -> "RunIndex":
        """Those of a cell that have all of these heads that any of the same scale has: all numbers are of one set of
        seeds. Where none has all, the seeds that have the most.
        """
        kept: list[Trained] = []
        for scale in self.scales(cell):
            every = self.seeds(cell, scale).values()
            has = [{head for head in heads if each.accuracy(head, cell) is not None} for each in every]
            most = max(has, key=len)
            kept += [each for each, own in zip(every, has, strict=True) if own >= most]
        return RunIndex(kept)

    def seeds(self, cell: Cell, scale: Scale) -> dict[int, Trained]:
        """The trainings of a cell at a scale, by seed."""
        wanted = identity(cell.spec), scale
        return dict(sorted((key[2], each) for key, each in self._by_key.items() if key[:2] == wanted))
