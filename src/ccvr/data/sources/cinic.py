"""CINIC-10 (Darlow et al. 2018): PNG files in train, valid and test, one folder a class; train and test are used."""

import io
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from ccvr.data.samples import Dataset, Samples
from ccvr.data.sources.class_names import CINIC10_NAMES
from ccvr.data.sources.folder import list_tree, read_tree
from ccvr.data.sources.labels import check_census
from ccvr.data.sources.members import archive_files
from ccvr.data.sources.pictures import Look, Pixels, decode
from ccvr.data.sources.source import Census, Form, Place

PARTS = ("train", "test")
MAX_BYTES = 1 << 20  # of one PNG; the official ones have some 3,000
MEMBER = re.compile(r"(?:CINIC-10/)?(train|test)/([a-z]+)/([^/]+\.png)")


@dataclass(frozen=True)
class Cinic:
    """What the tree holds."""

    name: str
    class_names: tuple[str, ...]
    census: Census
    look: Look


CINIC10 = Cinic("cinic10", CINIC10_NAMES, Census(train=(9000,) * 10, test=(9000,) * 10), Look("RGB", (32, 32)))


def cinic_form(cinic: Cinic) -> Form:
    folders = tuple(f"{part}/{name}/" for part in PARTS for name in cinic.class_names)
    names, hint = (
        ("CINIC-10", "cinic-10", "CINIC-10.tar.gz"),
        "CINIC-10.tar.gz (or unpacked: its folders train and test)",
    )
    return Form(names, partial(read_cinic, cinic), folders, hint)


def read_cinic(cinic: Cinic, path: Path) -> Dataset:
    """The data set from the unpacked tree or the archive; both give the same order, by class and file name."""
    place = Place(cinic.name, path)
    parts = _from_tree(cinic, place) if path.is_dir() else _from_archive(cinic, place)
    for part, expected in zip(PARTS, (cinic.census.train, cinic.census.test), strict=True):
        check_census(parts[part].labels.numpy(), expected, place, part)
    return Dataset(parts["train"], parts["test"], cinic.class_names, augment=True)


def _from_tree(cinic: Cinic, place: Place) -> dict[str, Samples]:
    for part in PARTS:
        if not (place.path / part).is_dir():
            raise place.damaged("is missing", part)
    return {part: read_tree(list_tree(place.path / part, cinic.class_names), cinic.look) for part in PARTS}


def _from_archive(cinic: Cinic, place: Place) -> dict[str, Samples]:
    sizes = dict(zip(PARTS, cinic.census.sizes, strict=True))
    images = {part: cinic.look.empty(size) for part, size in sizes.items()}
    keys: dict[str, list[tuple[int, str]]] = {part: [] for part in PARTS}  # (label, file name) of each row
    for member, raw in archive_files(place, lambda name, size: bool(MEMBER.fullmatch(name)) and size <= MAX_BYTES):
        part, label, file = _parse(cinic, place, member)
        if len(keys[part]) == sizes[part]:
            raise place.damaged(f"has more than {sizes[part]} {part} images")
        decode(io.BytesIO(raw), f"{place.path}: {member}", cinic.look, images[part][len(keys[part])])
        keys[part].append((label, file))
    return {part: _sorted(images[part], keys[part]) for part in PARTS}


def _parse(cinic: Cinic, place: Place, member: str) -> tuple[str, int, str]:
    match = MEMBER.fullmatch(member)
    if match is None or match[2] not in cinic.class_names:
        raise place.damaged("is in no folder of a class", member)
    return match[1], cinic.class_names.index(match[2]), match[3]


def _sorted(images: Pixels, keys: list[tuple[int, str]]) -> Samples:
    order = sorted(range(len(keys)), key=keys.__getitem__)
    labels = np.array([keys[row][0] for row in order], np.int64)
    return Samples(torch.from_numpy(images[order]), torch.from_numpy(labels))
