"""MNIST and Fashion-MNIST: IDX files, gzipped or not."""

import gzip
import struct
import zlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ccvr.data.samples import Dataset, Samples
from ccvr.data.sources.class_names import DIGIT_NAMES, FASHION_NAMES
from ccvr.data.sources.labels import check_census, check_range
from ccvr.data.sources.source import Census, Form, Place

PARTS = {"train": "train", "test": "t10k"}
STEMS = tuple(f"{part}-{kind}" for part in PARTS.values() for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"))
FILES = tuple(f"{stem}{ending}" for stem in STEMS for ending in ("", ".gz"))


@dataclass(frozen=True)
class Idx:
    """What the four files of such a data set hold; the images are [side, side] grey pixels."""

    name: str
    class_names: tuple[str, ...]
    census: Census
    side: int = 28


MNIST = Idx(
    name="mnist",
    class_names=DIGIT_NAMES,
    census=Census(
        train=(5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
        test=(980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
    ),
)
FASHION = Idx(name="fashion-mnist", class_names=FASHION_NAMES, census=Census(train=(6000,) * 10, test=(1000,) * 10))


def idx_form(idx: Idx, *folders: str) -> Form:
    return Form(folders, partial(read_idx, idx), FILES, f"the four files {', '.join(STEMS)} (.gz or unpacked)")


def read_idx(idx: Idx, folder: Path) -> Dataset:
    """The data set from the four IDX files in ``folder``."""
    train = _part(idx, folder, "train", idx.census.train)
    return Dataset(train, _part(idx, folder, "test", idx.census.test), idx.class_names)


def _part(idx: Idx, folder: Path, part: str, expected: tuple[int, ...]) -> Samples:
    count, stem = sum(expected), PARTS[part]
    images = parse(_place(idx, folder, f"{stem}-images-idx3-ubyte"), (count, idx.side, idx.side))
    place = _place(idx, folder, f"{stem}-labels-idx1-ubyte")
    labels = parse(place, (count,)).astype(np.int64)
    check_range(labels, len(idx.class_names), place)
    check_census(labels, expected, place, part)
    return Samples(torch.from_numpy(images[:, None].copy()), torch.from_numpy(labels))


def _place(idx: Idx, folder: Path, stem: str) -> Place:
    for file in (stem, f"{stem}.gz"):
        if (folder / file).is_file():
            return Place(idx.name, folder / file)
    raise Place(idx.name, folder).damaged("is missing, and so is the same without .gz", f"{stem}.gz")


def parse(place: Place, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """The array in an IDX file of bytes: two zeros, the type 8, the number of dimensions, each of them, the values."""
    header = struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape)
    size = len(header) + int(np.prod(shape))
    raw = _read(place, size + 1)
    if raw[: len(header)] != header[: len(raw)]:
        raise place.damaged(f"begins with {raw[: len(header)].hex()}, expected {header.hex()} (IDX, shape {shape})")
    if len(raw) != size:
        more = "more than " if len(raw) > size else ""
        raise place.damaged(f"holds {more}{min(len(raw), size)} bytes, expected {size}")
    return np.frombuffer(raw, np.uint8, offset=len(header)).reshape(shape)


def _read(place: Place, limit: int) -> bytes:
    """At most ``limit`` bytes, however far a gzip file would inflate."""
    try:
        with gzip.open(place.path) if place.path.suffix == ".gz" else place.path.open("rb") as file:
            return file.read(limit)
    except (OSError, EOFError, zlib.error) as error:
        raise place.damaged(f"cannot be read ({error})") from error
