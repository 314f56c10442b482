"""Pictures in folders, one folder a class: PATH/train/CLASS/* and PATH/test/CLASS/*."""

from pathlib import Path

import numpy as np
import torch

from ccvr.core.errors import DataError
from ccvr.data.samples import Dataset, Samples
from ccvr.data.sources.pictures import Look, decode_all, look_of


def read_folder(path: Path) -> Dataset:
    """A user's own pictures; the first one decides size and whether all are grey or RGB."""
    for part in ("train", "test"):
        if not (path / part).is_dir():
            raise DataError(f"there is no folder {path / part}. {_wanted(path)}")
    class_names = tuple(folder.name for folder in _visible(path / "train") if folder.is_dir())
    train = list_tree(path / "train", class_names)
    if not train:
        raise DataError(f"{path / 'train'} holds no images in folders of classes. {_wanted(path)}")
    look, test = look_of(train[0][0]), list_tree(path / "test", class_names)
    return Dataset(read_tree(train, look), read_tree(test, look), class_names, augment=True)


def list_tree(part: Path, class_names: tuple[str, ...]) -> list[tuple[Path, int]]:
    """Every picture with its label, sorted by class, then by name."""
    labels = {name: label for label, name in enumerate(class_names)}
    tree = []
    for folder in _visible(part):
        if folder.is_dir() and folder.name not in labels:
            known = ", ".join(class_names[:10]) + (", ..." if len(class_names) > 10 else "")
            raise DataError(f"{folder} is not a class of the train part ({known}). Rename it or remove it.")
        if folder.is_dir():
            tree += [(file, labels[folder.name]) for file in _visible(folder)]
    return tree


def read_tree(tree: list[tuple[Path, int]], look: Look) -> Samples:
    """The pictures of `list_tree` as one tensor."""
    images = decode_all([path for path, _ in tree], look)
    labels = np.array([label for _, label in tree], np.int64)
    return Samples(torch.from_numpy(images), torch.from_numpy(labels))


def _visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def _wanted(path: Path) -> str:
    return f"Lay the images out as {path}/train/CLASS/*.png and {path}/test/CLASS/*.png, one folder a class."
