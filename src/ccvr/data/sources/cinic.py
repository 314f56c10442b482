"""CINIC-10 (Darlow et al. 2018): PNG files in train, valid and test, one folder a class; train and test are used."""

import re
from functools import partial
from pathlib import Path

import numpy as np
import torch

from ccvr.data.samples import Dataset, Samples
from ccvr.data.sources.cifar import CIFAR10_NAMES
from ccvr.data.sources.folder import list_tree, read_tree
from ccvr.data.sources.members import archive_files
from ccvr.data.sources.pictures import Look, decode, quiet
from ccvr.data.sources.source import Contents, Form, Place

CINIC10 = Contents("cinic10", CIFAR10_NAMES, train_counts=(9000,) * 10, test_counts=(9000,) * 10, shape=(3, 32, 32))
LOOK = Look("RGB", (32, 32))
PARTS = ("train", "test")
MAX_BYTES = 1 << 15
"""Of one PNG; the official ones have some 3,000."""
MAX_OTHERS = 100_000
"""Members beside those that are read; the official archive has 90,000 of the part valid."""
MEMBER = re.compile(r"(?:CINIC-10/)?(train|test)/([a-z]+)/([^/]+\.png)")


def cinic_form(contents: Contents) -> Form:
    folders = tuple(f"{part}/{name}/" for part in PARTS for name in contents.class_names)
    hint = "CINIC-10.tar.gz (or unpacked: its folders train and test)"
    return Form(("CINIC-10", "cinic-10", "CINIC-10.tar.gz"), partial(read_cinic, contents), folders, hint)


def read_cinic(contents: Contents, path: Path) -> Dataset:
    """The data set from the unpacked tree or the archive; both give the same order, by class and file name."""
    place = Place(contents.name, path)
    with quiet():
        parts = _from_tree(contents, place) if path.is_dir() else _from_archive(contents, place)
    for part, expected in zip(PARTS, (contents.train_counts, contents.test_counts), strict=True):
        place.check_counts(parts[part].labels.numpy(), expected, part)
    return Dataset(parts["train"], parts["test"], contents.class_names, augment=True)


def _from_tree(contents: Contents, place: Place) -> dict[str, Samples]:
    for part in PARTS:
        if not (place.path / part).is_dir():
            raise place.damaged("is missing", part)
    return {part: read_tree(list_tree(place.path / part, contents.class_names), LOOK) for part in PARTS}


def _from_archive(contents: Contents, place: Place) -> dict[str, Samples]:
    sizes = dict(zip(PARTS, contents.sizes, strict=True))
    images = {part: LOOK.empty(size) for part, size in sizes.items()}
    keys: dict[str, list[tuple[int, str]]] = {part: [] for part in PARTS}  # (label, file name) of each row

    def is_wanted(name: str, size: int) -> bool:
        if MEMBER.fullmatch(name) and size > MAX_BYTES:
            raise place.damaged(f"has {size:,} bytes, expected at most {MAX_BYTES:,}", name)
        return bool(MEMBER.fullmatch(name))

    for member, raw in archive_files(place, is_wanted, others=MAX_OTHERS):
        match = MEMBER.fullmatch(member)
        if match is None or match[2] not in contents.class_names:
            raise place.damaged("is in no folder of a class", member)
        part, label, file = match[1], contents.class_names.index(match[2]), match[3]
        if len(keys[part]) == sizes[part]:
            raise place.damaged(f"has more than {sizes[part]} {part} images")
        decode(raw, f"{place.path}: {member}", LOOK, images[part][len(keys[part])])
        keys[part].append((label, file))
    found = {}
    for part, named in keys.items():
        order = sorted(range(len(named)), key=named.__getitem__)
        labels = np.array([named[row][0] for row in order], np.int64)
        found[part] = Samples(torch.from_numpy(images[part][order]), torch.from_numpy(labels))
    return found
