"""The 8 x 8 digits that scikit-learn brings along (UCI Optical Recognition of Handwritten Digits, its test part)."""

import numpy as np
import torch
from numpy.typing import NDArray

from ccvr.core.arrays import IntArray
from ccvr.data.samples import Dataset, Samples
from ccvr.data.sources.class_names import DIGIT_NAMES


def read_digits() -> Dataset:
    """1,442 train and 355 test images; without an official split every fifth image of each class is for the test."""
    from sklearn.datasets import load_digits  # here, because it takes a second and other data sets do not need it

    found = load_digits()
    images = torch.from_numpy(np.rint(found.images * (255 / 16)).astype(np.uint8)).unsqueeze(1)
    labels = torch.from_numpy(found.target.astype(np.int64))
    test = torch.from_numpy(every_fifth(found.target))
    train = Samples(images[~test], labels[~test])
    return Dataset(train, Samples(images[test], labels[test]), DIGIT_NAMES)


def every_fifth(labels: IntArray) -> NDArray[np.bool_]:
    """True for the fifth, tenth, ... image of each class."""
    chosen = np.zeros(len(labels), np.bool_)
    for label in np.unique(labels):
        chosen[np.flatnonzero(labels == label)[4::5]] = True
    return chosen
