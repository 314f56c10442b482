"""Small data sets in each official layout, written as their authors write them."""

import pickle
import struct
import sys
import tarfile
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ccvr.data.sources import cifar, cinic, idx
from ccvr.data.sources.rows import SOURCES
from ccvr.data.sources.source import Contents, Stored

SMALL10 = replace(cifar.CIFAR10, train_counts=(2,) * 10, test_counts=(1,) * 10)
SMALL100 = replace(cifar.CIFAR100, train_counts=(2,) * 100, test_counts=(1,) * 100)
SMALL_MNIST = replace(idx.MNIST, train_counts=(3, 1, 2, 1, 1, 1, 1, 1, 1, 1), test_counts=(1,) * 10)
SMALL_CINIC = replace(cinic.CINIC10, train_counts=(2,) * 10, test_counts=(1,) * 10)


def python2_pickle(pixels: np.ndarray, labels: list[int], label_key: bytes) -> bytes:
    """A batch as Python 2 and its NumPy pickled it, which is what the official archives hold."""
    rows, columns = pixels.shape
    u1 = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    shape = struct.pack("<BiBi", ord("J"), rows, ord("J"), columns) + b"\x86"
    raw = struct.pack("<Bi", ord("T"), pixels.size) + pixels.tobytes()
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01" + shape + u1
    items = b"U\x04data" + array + b"\x89" + raw + b"tb"
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(" + items + b"U" + bytes([len(label_key)]) + label_key + numbers + b"u."


class Batches:
    """Random images of a small CIFAR, by file, and writers of its official layouts."""

    def __init__(self, layout: cifar.Cifar) -> None:
        rng = np.random.default_rng(7)
        self.layout = layout
        self.pixels = {file: rng.integers(0, 256, (n, 3072), np.uint8) for file, n in layout.records().items()}
        self.labels = self._labels(rng)

    def _labels(self, rng: np.random.Generator) -> dict[str, list[int]]:
        found = {}
        for files in (self.layout.train_files, self.layout.test_files):
            count = sum(self.layout.records()[file] for file in files)
            shuffled = rng.permutation(np.arange(count) % len(self.layout.class_names))
            found |= {f: part.tolist() for f, part in zip(files, np.split(shuffled, len(files)), strict=True)}
        return found

    def write_binary(self, folder: Path) -> Path:
        folder.mkdir(parents=True)
        for file, pixels in self.pixels.items():
            labels = np.array(self.labels[file], np.uint8)[:, None]
            coarse = [np.zeros_like(labels)] * (self.layout.label_bytes - 1)
            (folder / f"{file}.bin").write_bytes(np.hstack([*coarse, labels, pixels]).tobytes())
        return folder

    def write_python(self, folder: Path, protocol: int | None = None) -> Path:
        folder.mkdir(parents=True)
        key = self.layout.label_key
        for file, pixels in self.pixels.items():
            if protocol is None:
                raw = python2_pickle(pixels, self.labels[file], key.encode())
            else:
                raw = pickle.dumps({"data": pixels, key: self.labels[file]}, protocol=protocol)
            (folder / file).write_bytes(raw)
        return folder


def pack(folder: Path, archive: Path, name: str | None = None) -> Path:
    """``folder`` as a .tar.gz."""
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        tar.add(folder, arcname=name or folder.name)
    return archive


def write_idx(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape) + values.tobytes())


def write_mnist(folder: Path, layout: Contents) -> Path:
    """The four IDX files, unpacked."""
    rng = np.random.default_rng(3)
    for stem, counts in (("train", layout.train_counts), ("t10k", layout.test_counts)):
        labels = rng.permutation(np.repeat(np.arange(10, dtype=np.uint8), counts))
        write_idx(folder / f"{stem}-labels-idx1-ubyte", labels)
        write_idx(folder / f"{stem}-images-idx3-ubyte", rng.integers(0, 256, (len(labels), 28, 28), np.uint8))
    return folder


def write_cinic(folder: Path) -> Path:
    """The official tree, two train images a class, one of all other parts; one of them is grey, as a few are."""
    rng = np.random.default_rng(5)
    for part, count in (("train", 2), ("valid", 1), ("test", 1)):
        for name in SMALL_CINIC.class_names:
            (folder / part / name).mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 256, (32, 32, 3), np.uint8)
                Image.fromarray(pixels).save(folder / part / name / f"cifar10-{part}-{number}.png")
    Image.fromarray(np.full((32, 32), 9, np.uint8)).save(folder / "test" / "truck" / "cifar10-test-0.png")
    return folder


WRITERS = types.SimpleNamespace(
    pack=pack,
    idx=write_idx,
    mnist=write_mnist,
    cinic=write_cinic,
    small_mnist=SMALL_MNIST,
    python2_pickle=python2_pickle,
)


@pytest.fixture(scope="session")
def write() -> types.SimpleNamespace:
    """The writers above; test modules cannot import a conftest."""
    return WRITERS


def stored(name: str) -> Stored:
    row = SOURCES[name]
    assert isinstance(row, Stored)
    return row


@pytest.fixture
def small10() -> Batches:
    return Batches(SMALL10)


@pytest.fixture
def small100() -> Batches:
    return Batches(SMALL100)


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, object], str]:
    """Make an object importable; gives the name under which the table finds it."""
    module = types.ModuleType("my_data_sets")
    monkeypatch.setitem(sys.modules, "my_data_sets", module)

    def add(attribute: str, value: object) -> str:
        setattr(module, attribute, value)
        return f"my_data_sets:{attribute}"

    return add


@pytest.fixture
def cifar10_name(register: Callable[[str, object], str]) -> str:
    """The official row of cifar10, but with few images."""
    forms = (
        cifar.binary_form(SMALL10, "cifar-10-binary.tar.gz"),
        cifar.python_form(SMALL10, "cifar-10-python.tar.gz"),
    )
    return register("cifar10", replace(stored("cifar10"), forms=forms, md5={}))


@pytest.fixture
def cifar100_name(register: Callable[[str, object], str]) -> str:
    forms = (
        cifar.binary_form(SMALL100, "cifar-100-binary.tar.gz"),
        cifar.python_form(SMALL100, "cifar-100-python.tar.gz"),
    )
    return register("cifar100", replace(stored("cifar100"), forms=forms, md5={}))


@pytest.fixture
def mnist_name(register: Callable[[str, object], str]) -> str:
    return register("mnist", replace(stored("mnist"), forms=(idx.idx_form(SMALL_MNIST, "MNIST/raw"),), md5={}))


@pytest.fixture
def cinic_name(register: Callable[[str, object], str]) -> str:
    return register("cinic10", replace(stored("cinic10"), forms=(cinic.cinic_form(SMALL_CINIC),)))
