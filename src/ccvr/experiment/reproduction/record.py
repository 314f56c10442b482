"""Finished runs → small files in results/."""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from ccvr.core.run import write_atomically
from ccvr.experiment.reproduction.cells import CELLS, Scale, identity, scale_of
from ccvr.experiment.reproduction.trained import run_folders
from ccvr.experiment.spec import Spec, read_spec
from ccvr.report.records import record_bytes
from ccvr.report.runs import RunFiles


def record(out: Path, results: Path, patterns: tuple[str, ...], scale: Scale | None) -> Iterator[Path]:
    """Record the finished runs below ``out`` that match; a record of the same cell, scale and seed is replaced."""
    for folder in run_folders(out):
        spec = read_spec(folder.spec)
        name = cell_name(spec) or folder.path.name
        matches = not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)
        if folder.results.is_file() and matches and scale in (None, scale_of(spec)):
            own = scale_of(spec)
            path = results / own.folder / f"{name.removesuffix(f'-s{spec.seed}')}-s{spec.seed}.json"
            content = record_bytes(RunFiles.read(folder.path), scale=own.label)
            write_atomically(path, content, remedy="See to its disk and permissions, or use another --results")
            yield path


def cell_name(spec: Spec) -> str | None:
    """The cell that a run belongs to, whatever it is called; None if it is none of ours."""
    wanted = identity(spec)
    return next((cell.name for cell in CELLS.values() if identity(cell.spec) == wanted), None)
