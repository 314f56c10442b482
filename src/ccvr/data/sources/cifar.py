"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009) from the official binary or Python archives, packed or unpacked."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ccvr.core.arrays import IntArray
from ccvr.data.samples import Dataset, Samples
from ccvr.data.sources.class_names import CIFAR10_NAMES, CIFAR100_NAMES
from ccvr.data.sources.labels import check_census, check_range
from ccvr.data.sources.members import read_members
from ccvr.data.sources.pickles import unpickle
from ccvr.data.sources.source import Census, Form, Place

PIXELS = 3 * 32 * 32
Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Cifar:
    """What the archives of one CIFAR hold; a file of the binary one has the same name as in the Python one, plus .bin.

    A binary record is ``label_bytes`` labels, the class last, then the pixels [3, 32, 32].
    """

    name: str
    class_names: tuple[str, ...]
    census: Census
    train: tuple[str, ...]
    test: tuple[str, ...]
    label_bytes: int
    label_key: str

    def records(self) -> dict[str, int]:
        """How many images each file holds."""
        num_train, num_test = self.census.sizes
        train = dict.fromkeys(self.train, num_train // len(self.train))
        return train | dict.fromkeys(self.test, num_test // len(self.test))


CIFAR10 = Cifar(
    name="cifar10",
    class_names=CIFAR10_NAMES,
    census=Census(train=(5000,) * 10, test=(1000,) * 10),
    train=tuple(f"data_batch_{number}" for number in range(1, 6)),
    test=("test_batch",),
    label_bytes=1,
    label_key="labels",
)
CIFAR100 = Cifar(
    name="cifar100",
    class_names=CIFAR100_NAMES,
    census=Census(train=(500,) * 100, test=(100,) * 100),
    train=("train",),
    test=("test",),
    label_bytes=2,
    label_key="fine_labels",
)


def binary_form(cifar: Cifar, folder: str, archive: str) -> Form:
    files = tuple(f"{file}.bin" for file in cifar.records())
    return Form((folder, archive), partial(read_binary, cifar, folder), files, f"{archive} (or unpacked: {folder})")


def python_form(cifar: Cifar, folder: str, archive: str) -> Form:
    files = tuple(cifar.records())
    return Form((folder, archive), partial(read_python, cifar, folder), files, f"{archive} (or unpacked: {folder})")


def read_binary(cifar: Cifar, folder: str, path: Path) -> Dataset:
    """The data set from .bin files in ``path``, a folder or an archive that holds ``folder``."""
    place, record = Place(cifar.name, path), cifar.label_bytes + PIXELS
    lengths = {file: count * record for file, count in cifar.records().items()}
    raw = read_members(place, folder, {f"{file}.bin": range(size, size + 1) for file, size in lengths.items()})
    batches = {}
    for file in lengths:
        rows = np.frombuffer(raw.pop(f"{file}.bin"), np.uint8).reshape(-1, record)
        labels = rows[:, cifar.label_bytes - 1].astype(np.int64)
        check_range(labels, len(cifar.class_names), place, f"{file}.bin")
        batches[file] = rows[:, cifar.label_bytes :], labels
    return _join(cifar, place, batches)


def read_python(cifar: Cifar, folder: str, path: Path) -> Dataset:
    """The data set from pickled batches in ``path``, a folder or an archive that holds ``folder``."""
    place = Place(cifar.name, path)
    # Beside its pixels an image has a file name and labels; 256 bytes are ample.
    sizes = {file: range(n * PIXELS, n * (PIXELS + 256) + 65536) for file, n in cifar.records().items()}
    raw = read_members(place, folder, sizes)
    return _join(cifar, place, {file: _python_batch(cifar, place, file, raw.pop(file)) for file in sizes})


def _python_batch(cifar: Cifar, place: Place, file: str, raw: bytes) -> tuple[Pixels, IntArray]:
    batch, count = unpickle(raw, place, file), cifar.records()[file]
    pixels, labels = batch.get("data"), batch.get(cifar.label_key)
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape != (count, PIXELS):
        found = f"{pixels.dtype} of shape {pixels.shape}" if isinstance(pixels, np.ndarray) else "no array"
        raise place.damaged(f"has {found} as data, expected uint8 of shape {(count, PIXELS)}", file)
    if not _are_labels(labels, count):
        raise place.damaged(f"has no list of {count} whole numbers as {cifar.label_key}", file)
    whole = np.asarray(labels, np.int64)
    check_range(whole, len(cifar.class_names), place, file)
    return pixels, whole


def _are_labels(labels: object, count: int) -> bool:
    values = labels.tolist() if isinstance(labels, np.ndarray) else labels
    return isinstance(values, list) and len(values) == count and all(type(v) is int and abs(v) < 2**31 for v in values)


def _join(cifar: Cifar, place: Place, batches: dict[str, tuple[Pixels, IntArray]]) -> Dataset:
    def part(name: str, files: tuple[str, ...], expected: tuple[int, ...]) -> Samples:
        pixels, labels = zip(*(batches.pop(file) for file in files), strict=True)
        check_census(np.concatenate(labels), expected, place, name)
        images = np.concatenate(pixels).reshape(-1, 3, 32, 32)
        return Samples(torch.from_numpy(images), torch.from_numpy(np.concatenate(labels)))

    train = part("train", cifar.train, cifar.census.train)
    return Dataset(train, part("test", cifar.test, cifar.census.test), cifar.class_names, augment=True)
