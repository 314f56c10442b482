"""Data sets by name: load one, check one, list them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ccvr.core.errors import DataError
from ccvr.core.trust import FOLDER
from ccvr.data.digests import verify
from ccvr.data.samples import Dataset
from ccvr.data.sources.folder import read_folder
from ccvr.data.sources.rows import ROWS, SOURCES
from ccvr.data.sources.source import Embedded, Stored
from ccvr.kernels.crops import is_images
from ccvr.kernels.inputs import Inputs, described, each

FEW = 32
"""Samples that represent a data set where only its shapes matter."""


@dataclass(frozen=True)
class CheckedFile:
    """A file or folder of a data set; ``status`` says how far it can be trusted."""

    path: Path
    size: int
    status: str


@dataclass(frozen=True)
class DatasetCheck:
    """What a data set holds, after all of it was read."""

    name: str
    files: tuple[CheckedFile, ...]
    train: int
    test: int
    inputs: str
    """Type and shape of one sample's inputs, or "C x H x W" of an image."""
    classes: int


@dataclass(frozen=True)
class Listing:
    """A row of `ccvr data list`; ``where`` is None if the data set is not on this computer."""

    name: str
    description: str
    train: int
    test: int
    where: str | None


def resolve(name: str) -> Callable[[Path | None], Dataset]:
    """The row of a data set: ours, ``folder:PATH``, or the user's own as ``package.module:name``."""
    if name.startswith(FOLDER):
        path = Path(name.removeprefix(FOLDER)).expanduser()
        return lambda root: read_folder(path)
    row = SOURCES[name]
    if not callable(row):
        raise DataError(f'data set "{name}" is a {type(row).__name__}; it must be a function (root) -> Dataset.')
    return row


def load(name: str, root: Path | None = None) -> Dataset:
    """The data set ``name``, from ``root``, else ``$CCVR_DATA``, else the user's cache folder."""
    row = resolve(name)
    try:
        dataset: object = row(root)
    except OSError as error:
        raise DataError(f'data set "{name}": {error}. Make its files readable.') from error
    if not isinstance(dataset, Dataset):
        raise DataError(f'data set "{name}" gave a {type(dataset).__name__}; its function must return a Dataset.')
    return dataset


@dataclass(frozen=True)
class Extent:
    """How large a data set is."""

    train: int
    test: int
    num_classes: int
    inputs: Inputs
    """Those of a few samples; random pixels for built-in data sets."""
    preprocess: str = "auto"


def extent(name: str, root: Path | None = None) -> Extent:
    """How large a data set is. Built-in data sets need no files for it."""
    row = resolve(name)
    if isinstance(row, Embedded | Stored):
        contents = row.contents
        pixels = np.random.default_rng(0).integers(0, 256, (FEW, *contents.shape), dtype=np.uint8)
        return Extent(*contents.sizes, len(contents.class_names), torch.from_numpy(pixels))
    data = load(name, root)
    return Extent(len(data.train), len(data.test), data.num_classes, data.train.first(FEW), data.preprocess)


def check(name: str, root: Path | None = None) -> DatasetCheck:
    """Read the whole data set and verify the checksums of its archives; an error if anything is wrong."""
    row = resolve(name)
    found = row.find(root) if isinstance(row, Stored) else None
    files = tuple(_check_file(row, path) for path in found.files()) if isinstance(row, Stored) and found else ()
    dataset = load(name, root)
    one = dataset.train.first(1)
    shown = " x ".join(map(str, one.shape[1:])) if is_images(one) else described(each(lambda t: t[0], one))
    return DatasetCheck(name, files, len(dataset.train), len(dataset.test), shown, dataset.num_classes)


def _check_file(source: Stored, path: Path) -> CheckedFile:
    if path.is_dir():
        size = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
        return CheckedFile(path, size, "unpacked, every image decoded")
    is_packed = path.suffix == ".gz"
    status = verify(path, path, source.md5.get(path.name)) if is_packed else "unpacked, lengths verified"
    return CheckedFile(path, path.stat().st_size, status)


def is_here(name: str, root: Path | None = None) -> bool:
    """Whether a built-in data set is on this computer; True for any other, which is looked for when it is loaded."""
    row = resolve(name)
    return _where(row, root) is not None if isinstance(row, Embedded | Stored) else True


def listing(root: Path | None = None) -> list[Listing]:
    """Every built-in data set, and where it lies; nothing is read."""
    return [Listing(row.contents.name, row.description, *row.contents.sizes, where=_where(row, root)) for row in ROWS]


def _where(row: Embedded | Stored, root: Path | None) -> str | None:
    if isinstance(row, Embedded):
        return f"in {row.package}"
    found = row.find(root)
    return str(found.path) if found else None
