"""What a row of the table of data sets is, and how it is found on disk."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ccvr.core.arrays import IntArray
from ccvr.core.errors import DataError
from ccvr.data.samples import Dataset


def data_root(root: Path | None = None) -> Path:
    """The folder of all data sets: the one given, else ``$CCVR_DATA``, else ``ccvr`` in the user's cache."""
    if root is not None:
        return root.expanduser()
    if named := os.environ.get("CCVR_DATA"):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "ccvr"


@dataclass(frozen=True)
class Contents:
    """What is published about a data set: its classes, how many samples of each the parts hold, the shape of one."""

    name: str
    class_names: tuple[str, ...]
    train_counts: tuple[int, ...]
    test_counts: tuple[int, ...]
    shape: tuple[int, int, int]

    @property
    def sizes(self) -> tuple[int, int]:
        """Samples of the train and the test part."""
        return sum(self.train_counts), sum(self.test_counts)


@dataclass(frozen=True)
class Form:
    """One layout of a data set: the names its folder or archive goes by, and the reader of what has such a name.

    ``files`` are what the folder holds, once unpacked; they may also lie directly in the folder that is searched.
    A name that ends with "/" is a folder.
    """

    names: tuple[str, ...]
    read: Callable[[Path], Dataset]
    files: tuple[str, ...]
    hint: str
    """What a person puts into the data folder."""

    def find(self, folder: Path) -> Path | None:
        named = (folder / name for name in self.names if (folder / name).exists())
        return next(named, folder if self.files_in(folder) else None)

    def files_in(self, folder: Path) -> list[Path]:
        """Those of ``files`` that exist."""
        paths = ((folder / file, file.endswith("/")) for file in self.files)
        return [path for path, is_folder in paths if (path.is_dir() if is_folder else path.is_file())]


@dataclass(frozen=True)
class StoredFiles:
    """A data set on disk: the form that reads it, and the folder or archive it is in."""

    form: Form
    path: Path

    def files(self) -> list[Path]:
        return self.form.files_in(self.path) if self.path.is_dir() else [self.path]


@dataclass(frozen=True)
class Embedded:
    """A data set that an installed package brings along."""

    contents: Contents
    description: str
    package: str
    read: Callable[[], Dataset]

    def __call__(self, root: Path | None) -> Dataset:
        return self.read()


@dataclass(frozen=True)
class Stored:
    """A data set in files: its forms, best first, the addresses of the files of the first one, published MD5 sums."""

    contents: Contents
    description: str
    forms: tuple[Form, ...]
    urls: tuple[str, ...] = ()
    md5: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, root: Path | None) -> Dataset:
        found = self.find(root)
        if found is None:
            name, hints = self.contents.name, ", or ".join(form.hint for form in self.forms)
            raise DataError(
                f"{name} is neither in {self.folder(root)} nor in {data_root(root)}. "
                f"Run `ccvr data get {name}`, or put there {hints}."
            )
        return found.form.read(found.path)

    def folder(self, root: Path | None) -> Path:
        """The folder of this data set alone, into which it is downloaded."""
        return data_root(root) / self.contents.name

    def find(self, root: Path | None) -> StoredFiles | None:
        """The best form that exists.

        The data set's own folder comes before the shared one: MNIST and Fashion-MNIST have the same file names.
        """
        for folder in (self.folder(root), data_root(root)):
            for form in self.forms:
                if path := form.find(folder):
                    return StoredFiles(form, path)
        return None


@dataclass(frozen=True)
class Place:
    """The folder, archive or file in which the data set ``name`` was found, and the errors about it."""

    name: str
    path: Path

    def damaged(self, fact: str, member: str = "") -> DataError:
        """The error about this place or a member of it; a fact that quotes a library may have many lines."""
        inside = str(self.path / member) if self.path.is_dir() else f"{self.path}: {member}"
        return DataError(
            f"{inside if member else self.path} {' '.join(fact.split())}. "
            f"Replace it with the official file, or move {self.path} away and run `ccvr data get {self.name}`."
        )

    def check_range(self, labels: IntArray, num_classes: int, member: str = "") -> None:
        """Refuse a label that is no class."""
        wrong = np.flatnonzero((labels < 0) | (labels >= num_classes))
        if wrong.size:
            fact = f"has label {labels[wrong[0]]} at image {wrong[0]}, expected 0 to {num_classes - 1}"
            raise self.damaged(fact, member)

    def check_counts(self, labels: IntArray, expected: tuple[int, ...], part: str) -> None:
        """Refuse labels whose class counts are not the published ones: damaged, or those of another data set."""
        counts = np.bincount(labels, minlength=len(expected))
        for label, (found, wanted) in enumerate(zip(counts, expected, strict=True)):
            if found != wanted:
                fact = f"has {found} {part} images of class {label}, expected {wanted}"
                raise self.damaged(f"{fact}; it is damaged or not {self.name}")
