"""What a row of the table of data sets is, and how it is found on disk."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ccvr.core.errors import DataError
from ccvr.data.locate import search_folders
from ccvr.data.samples import Dataset


@dataclass(frozen=True)
class Census:
    """How many images of each class the train and the test part hold."""

    train: tuple[int, ...]
    test: tuple[int, ...]

    @property
    def sizes(self) -> tuple[int, int]:
        return sum(self.train), sum(self.test)


@dataclass(frozen=True)
class Form:
    """One layout of a data set: the names its folder or archive goes by, and the reader of what has such a name.

    ``files`` are what the folder holds, once unpacked; they may also lie directly in the folder that is searched.
    A name that ends with "/" is a folder.
    """

    names: tuple[str, ...]
    read: Callable[[Path], Dataset]
    files: tuple[str, ...]
    hint: str  # what a person puts there

    def find(self, folder: Path) -> Path | None:
        named = (folder / name for name in self.names if (folder / name).exists())
        return next(named, folder if self.files_in(folder) else None)

    def files_in(self, folder: Path) -> list[Path]:
        """Those of ``files`` that are there."""
        return [folder / file for file in self.files if _is_there(folder, file)]


def _is_there(folder: Path, file: str) -> bool:
    return (folder / file).is_dir() if file.endswith("/") else (folder / file).is_file()


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

    name: str
    description: str
    sizes: tuple[int, int]
    shape: tuple[int, int, int]
    num_classes: int
    package: str
    read: Callable[[], Dataset]

    def __call__(self, root: Path | None) -> Dataset:
        return self.read()


@dataclass(frozen=True)
class Stored:
    """A data set in files: its forms, best first, the addresses of the files of the first one, published MD5 sums."""

    name: str
    description: str
    sizes: tuple[int, int]
    shape: tuple[int, int, int]
    num_classes: int
    forms: tuple[Form, ...]
    urls: tuple[str, ...] = ()
    md5: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, root: Path | None) -> Dataset:
        found = self.find(root)
        if found is None:
            raise DataError(self._missing(root))
        return found.form.read(found.path)

    def find(self, root: Path | None) -> StoredFiles | None:
        """The best form that is there, in the data set's own folder before the shared one."""
        for folder in search_folders(self.name, root):
            for form in self.forms:
                if path := form.find(folder):
                    return StoredFiles(form, path)
        return None

    def _missing(self, root: Path | None) -> str:
        own, shared = search_folders(self.name, root)
        hints = ", or ".join(form.hint for form in self.forms)
        return (
            f"{self.name} is neither in {own} nor in {shared}. Run `ccvr data get {self.name}`, or put there {hints}."
        )


@dataclass(frozen=True)
class Place:
    """The folder, archive or file in which the data set ``name`` was found; what is wrong with it is said here."""

    name: str
    path: Path

    def damaged(self, fact: str, member: str = "") -> DataError:
        """The error about this place or a member of it; a fact that quotes a library may have many lines."""
        return DataError(
            f"{self._shown(member)} {' '.join(fact.split())}. "
            f"Replace it with the official file, or move {self.path} away and run `ccvr data get {self.name}`."
        )

    def _shown(self, member: str) -> str:
        if not member:
            return str(self.path)
        return str(self.path / member) if self.path.is_dir() else f"{self.path}: {member}"
