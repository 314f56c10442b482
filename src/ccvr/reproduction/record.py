"""Finished runs → small files in results/."""

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from ccvr.core.run import write_atomically
from ccvr.experiment.spec import Spec
from ccvr.report.runs import RunFiles
from ccvr.reproduction.cells import CELLS, Scale, identity, scale_of
from ccvr.reproduction.merge_records import lost, same_training, united
from ccvr.reproduction.records import record_bytes
from ccvr.reproduction.run_index import RunIndex, Trained


@dataclass(frozen=True)
class Recorded:
    """A record that was written, and what of one of another training, whose place it took, is no more."""

    path: Path
    replaced: bool = False
    lost: tuple[str, ...] = ()


def record(runs: RunIndex, results: Path, patterns: tuple[str, ...], scale: Scale | None) -> Iterator[Recorded]:
    """Record the runs that match. What a record of the same training has beyond a run stays in it."""
    records = RunIndex.read(None, results)
    taken = {each.files.folder.path for each in records}
    for run in runs:
        name = cell_name(run.spec) or run.files.folder.path.name
        matches = not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)
        if matches and scale in (None, scale_of(run.spec)):
            before = records.get(run.spec)
            path = before.files.folder.path if before else _free(results, name, run.spec, taken)
            taken.add(path)
            yield _write(path, run, before.files if before else None)


def _write(path: Path, run: Trained, before: RunFiles | None) -> Recorded:
    is_same = before is not None and same_training(run.files, before)
    files = united(run.files, before) if before and is_same else run.files
    content = record_bytes(files, scale=scale_of(run.spec).label)
    write_atomically(path, content, remedy="See to its disk and permissions, or use another --results")
    if before is None or is_same:
        return Recorded(path)
    return Recorded(path, replaced=True, lost=tuple(lost(run.files, before)))


def _free(results: Path, name: str, spec: Spec, taken: set[Path]) -> Path:
    """Where a new record goes; runs of different specs may have folders of the same name."""
    stem, folder, number = name.removesuffix(f"-s{spec.seed}"), results / scale_of(spec).folder, 1
    path = folder / f"{stem}-s{spec.seed}.json"
    while path in taken:
        number += 1
        path = folder / f"{stem}-{number}-s{spec.seed}.json"
    return path


def cell_name(spec: Spec) -> str | None:
    """The cell that a run belongs to by its settings; None where there is none."""
    wanted = identity(spec)
    return next((cell.name for cell in CELLS.values() if identity(cell.spec) == wanted), None)
