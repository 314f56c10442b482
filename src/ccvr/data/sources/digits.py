"""The 8 x 8 digits that scikit-learn brings along (UCI Optical Recognition of Handwritten Digits, its test part)."""

import numpy as np
import torch

from ccvr.data.samples import Dataset, Samples
from ccvr.data.sources.source import Contents

DIGITS = Contents(
    "digits",
    tuple("0123456789"),
    train_counts=(143, 146, 142, 147, 145, 146, 145, 144, 140, 144),
    test_counts=(35, 36, 35, 36, 36, 36, 36, 35, 34, 36),
    shape=(1, 8, 8),
)


def read_digits() -> Dataset:
    """1,442 train and 355 test images; without an official split every fifth image of each class is for the test."""
    from sklearn.datasets import load_digits  # here, because it takes a second and other data sets do not need it

    found = load_digits()
    images = torch.from_numpy(np.rint(found.images * (255 / 16)).astype(np.uint8)).unsqueeze(1)
    labels = torch.from_numpy(found.target.astype(np.int64))
    test = torch.zeros(len(labels), dtype=torch.bool)
    for label in range(10):
        test[(labels == label).nonzero().flatten()[4::5]] = True
    return Dataset(Samples(images[~test], labels[~test]), Samples(images[test], labels[test]), DIGITS.class_names)
