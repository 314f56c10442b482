"""MNIST and Fashion-MNIST: IDX files, gzipped or not."""

import struct
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ccvr.core.files import require_file
from ccvr.data.samples import Dataset, Samples
from ccvr.data.sources.archives import ARCHIVE_ERRORS, Inflated
from ccvr.data.sources.source import Contents, Form, Place

MNIST = Contents(
    "mnist",
    tuple("0123456789"),
    train_counts=(5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
    test_counts=(980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
    shape=(1, 28, 28),
)
FASHION = Contents(
    "fashion-mnist",
    ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    train_counts=(6000,) * 10,
    test_counts=(1000,) * 10,
    shape=(1, 28, 28),
)
STEMS = tuple(f"{part}-{kind}" for part in ("train", "t10k") for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"))
FILES = tuple(f"{stem}{ending}" for stem in STEMS for ending in ("", ".gz"))


def idx_form(contents: Contents, folder: str) -> Form:
    hint = f"the four files {', '.join(STEMS)} (.gz or unpacked)"
    return Form((folder,), partial(read_idx, contents), FILES, hint)


def read_idx(contents: Contents, folder: Path) -> Dataset:
    """The data set from the four IDX files in ``folder``."""

    def part(name: str, stem: str, expected: tuple[int, ...]) -> Samples:
        images = parse(_place(contents, folder, f"{stem}-images-idx3-ubyte"), (sum(expected), *contents.shape[1:]))
        place = _place(contents, folder, f"{stem}-labels-idx1-ubyte")
        labels = parse(place, (sum(expected),)).astype(np.int64)
        place.check_range(labels, len(expected))
        place.check_counts(labels, expected, name)
        return Samples(torch.from_numpy(images[:, None].copy()), torch.from_numpy(labels))

    train = part("train", "train", contents.train_counts)
    return Dataset(train, part("test", "t10k", contents.test_counts), contents.class_names)


def _place(contents: Contents, folder: Path, stem: str) -> Place:
    for file in (stem, f"{stem}.gz"):
        if (folder / file).is_file():
            return Place(contents.name, folder / file)
    raise Place(contents.name, folder).damaged("is missing, and so is the same without .gz", f"{stem}.gz")


def parse(place: Place, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """The array in an IDX file of bytes: two zeros, the type 8, the number of dimensions, each of them, the values."""
    header = struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape)
    size = len(header) + int(np.prod(shape))
    try:
        require_file(place.path)
        with place.path.open("rb") as file:
            content = Inflated(file) if place.path.suffix == ".gz" else file
            raw = content.read(size + 1)  # no more, however far a gzip file would inflate
    except ARCHIVE_ERRORS as error:
        raise place.damaged(f"cannot be read ({error})") from error
    if raw[: len(header)] != header[: len(raw)]:
        raise place.damaged(f"begins with {raw[: len(header)].hex()}, expected {header.hex()} (IDX, shape {shape})")
    if len(raw) != size:
        more = "more than " if len(raw) > size else ""
        raise place.damaged(f"holds {more}{min(len(raw), size)} bytes, expected {size}")
    return np.frombuffer(raw, np.uint8, offset=len(header)).reshape(shape)
