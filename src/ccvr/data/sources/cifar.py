"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009) from the official binary or Python archives, packed or unpacked."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ccvr.core.arrays import IntArray
from ccvr.data.samples import Dataset, Samples
from ccvr.data.sources.members import read_members
from ccvr.data.sources.pickles import unpickle
from ccvr.data.sources.pictures import Pixels
from ccvr.data.sources.source import Contents, Form, Place

PIXELS = 3 * 32 * 32
OPCODES, MAX_OPCODES = 12, 20_000
"""Of a pickle for each image, which has a file name and two labels beside its pixels, and for the rest."""
CIFAR10_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR100_NAMES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm
"""


@dataclass(frozen=True)
class Cifar(Contents):
    """What the archives of one CIFAR hold; a file of the binary one has the same name as in the Python one, plus .bin.

    A binary record is ``label_bytes`` labels, the class last, then the pixels [3, 32, 32].
    """

    train_files: tuple[str, ...]
    test_files: tuple[str, ...]
    label_bytes: int
    label_key: str
    binary_folder: str
    python_folder: str

    def records(self) -> dict[str, int]:
        """How many images each file holds."""
        num_train, num_test = self.sizes
        train = dict.fromkeys(self.train_files, num_train // len(self.train_files))
        return train | dict.fromkeys(self.test_files, num_test // len(self.test_files))


CIFAR10 = Cifar(
    "cifar10",
    CIFAR10_NAMES,
    train_counts=(5000,) * 10,
    test_counts=(1000,) * 10,
    shape=(3, 32, 32),
    train_files=tuple(f"data_batch_{number}" for number in range(1, 6)),
    test_files=("test_batch",),
    label_bytes=1,
    label_key="labels",
    binary_folder="cifar-10-batches-bin",
    python_folder="cifar-10-batches-py",
)
CIFAR100 = Cifar(
    "cifar100",
    tuple(CIFAR100_NAMES.split()),
    train_counts=(500,) * 100,
    test_counts=(100,) * 100,
    shape=(3, 32, 32),
    train_files=("train",),
    test_files=("test",),
    label_bytes=2,
    label_key="fine_labels",
    binary_folder="cifar-100-binary",
    python_folder="cifar-100-python",
)


def binary_form(cifar: Cifar, archive: str) -> Form:
    """The binary layout: files of records."""
    record = cifar.label_bytes + PIXELS
    sizes = {f"{file}.bin": range(n * record, n * record + 1) for file, n in cifar.records().items()}

    def batch(raw: bytes, place: Place, file: str) -> tuple[Pixels, IntArray]:
        rows = np.frombuffer(raw, np.uint8).reshape(-1, record)
        return rows[:, cifar.label_bytes :], rows[:, cifar.label_bytes - 1].astype(np.int64)

    return _form(cifar, cifar.binary_folder, archive, sizes, batch)


def python_form(cifar: Cifar, archive: str) -> Form:
    """The Python layout: pickled batches."""
    # Beside its pixels an image has a file name and labels; 256 bytes are ample.
    sizes = {file: range(n * PIXELS, n * (PIXELS + 256) + 65536) for file, n in cifar.records().items()}

    def batch(raw: bytes, place: Place, file: str) -> tuple[Pixels, IntArray]:
        count = cifar.records()[file]
        found = unpickle(raw, place, file, opcodes=MAX_OPCODES + count * OPCODES)
        pixels, labels = found.get("data"), found.get(cifar.label_key)
        if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape != (count, PIXELS):
            kind = f"{pixels.dtype} of shape {pixels.shape}" if isinstance(pixels, np.ndarray) else "no array"
            raise place.damaged(f"has {kind} as data, expected uint8 of shape {(count, PIXELS)}", file)
        values = labels.tolist() if isinstance(labels, np.ndarray) else labels
        if not isinstance(values, list) or len(values) != count or not all(map(_is_label, values)):
            raise place.damaged(f"has no list of {count} whole numbers as {cifar.label_key}", file)
        return pixels, np.array(values, np.int64)

    return _form(cifar, cifar.python_folder, archive, sizes, batch)


def _is_label(value: object) -> bool:
    return type(value) is int and abs(value) < 2**31


def _form(
    cifar: Cifar,
    folder: str,
    archive: str,
    sizes: Mapping[str, range],
    batch: Callable[[bytes, Place, str], tuple[Pixels, IntArray]],
) -> Form:
    """A layout whose files, in a folder or in an archive that holds it, have these sizes and are read by ``batch``."""

    def read(path: Path) -> Dataset:
        place = Place(cifar.name, path)
        raw = read_members(place, folder, sizes)
        batches = [batch(raw.pop(file), place, file) for file in sizes]
        for file, (_, labels) in zip(sizes, batches, strict=True):
            place.check_range(labels, len(cifar.class_names), file)
        first_test = len(cifar.train_files)
        train = part("train", place, batches[:first_test], cifar.train_counts)
        test = part("test", place, batches[first_test:], cifar.test_counts)
        return Dataset(train, test, cifar.class_names, augment=True)

    def part(name: str, place: Place, batches: list[tuple[Pixels, IntArray]], counts: tuple[int, ...]) -> Samples:
        pixels, labels = (np.concatenate(column) for column in zip(*batches, strict=True))
        place.check_counts(labels, counts, name)
        return Samples(torch.from_numpy(pixels.reshape(-1, *cifar.shape)), torch.from_numpy(labels))

    return Form((folder, archive), read, tuple(sizes), f"{archive} (or unpacked: {folder})")
