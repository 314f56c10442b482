"""Labelled images and data sets: what is refused, and in which words; the moments of their channels."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ccvr.core.errors import DataError
from ccvr.data.images import Dataset, LabelledImages, channel_moments


def images(n: int = 4, shape: tuple[int, int, int] = (1, 2, 3), labels: list[int] | None = None) -> LabelledImages:
    return LabelledImages(
        torch.zeros(n, *shape, dtype=torch.uint8), torch.tensor(labels if labels is not None else [0] * n).long()
    )


def message_of(call) -> str:
    with pytest.raises(DataError) as refused:
        call()
    return str(refused.value)


def test_labelled_images():
    some = images(4, (3, 5, 7))
    assert (len(some), some.shape) == (4, (3, 5, 7))


@pytest.mark.parametrize(
    ("pixels", "labels", "message"),
    [
        (
            torch.zeros(2, 1, 3, 3),
            torch.zeros(2, dtype=torch.int64),
            "images are torch.float32 of shape [2, 1, 3, 3]; give uint8 of shape [N, C, H, W].",
        ),
        (
            torch.zeros(2, 3, 3, dtype=torch.uint8),
            torch.zeros(2, dtype=torch.int64),
            "images are torch.uint8 of shape [2, 3, 3]; give uint8 of shape [N, C, H, W].",
        ),
        (
            torch.zeros(2, 1, 3, 3, dtype=torch.uint8),
            torch.zeros(2, dtype=torch.int32),
            "labels are torch.int32 of shape [2] for 2 images; give int64 of shape [N].",
        ),
        (
            torch.zeros(2, 1, 3, 3, dtype=torch.uint8),
            torch.zeros(3, dtype=torch.int64),
            "labels are torch.int64 of shape [3] for 2 images; give int64 of shape [N].",
        ),
        (
            torch.zeros(2, 1, 3, 3, dtype=torch.uint8),
            torch.zeros(2, 1, dtype=torch.int64),
            "labels are torch.int64 of shape [2, 1] for 2 images; give int64 of shape [N].",
        ),
    ],
)
def test_images_that_are_none(pixels, labels, message):
    assert message_of(lambda: LabelledImages(pixels, labels)) == message


def test_a_dataset():
    dataset = Dataset(images(4, labels=[0, 1, 1, 0]), images(2, labels=[1, 1]), ("cat", "dog", "nobody"))
    assert (dataset.num_classes, dataset.shape, dataset.augment) == (3, (1, 2, 3), False)


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        (images(0), images(), "the train part has no images."),
        (images(), images(0), "the test part has no images."),
        (images(), images(2, (3, 2, 3)), "train images are (1, 2, 3), test images (3, 2, 3); they must agree."),
        (
            images(2, labels=[0, 2]),
            images(),
            "the train labels run from 0 to 2, but there are 2 classes (0 to 1). "
            "The file is not this data set, or its labels are damaged.",
        ),
        (
            images(),
            images(2, labels=[-1, 0]),
            "the test labels run from -1 to 0, but there are 2 classes (0 to 1). "
            "The file is not this data set, or its labels are damaged.",
        ),
    ],
)
def test_datasets_that_are_none(train, test, message):
    assert message_of(lambda: Dataset(train, test, ("cat", "dog"))) == message


@settings(deadline=None)
@given(st.integers(1, 30), st.integers(1, 3), st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**31))
def test_channel_moments_are_numpy_s(n, channels, height, width, seed):
    rng = np.random.default_rng(seed)
    low, high = sorted(rng.integers(0, 257, 2).tolist())
    pixels = rng.integers(low, max(high, low + 1), (n, channels, height, width)).astype(np.uint8)
    mean, std = channel_moments(torch.from_numpy(pixels))
    assert mean.dtype == std.dtype == torch.float64
    scaled = pixels.astype(np.float64) / 255
    np.testing.assert_allclose(mean, scaled.mean((0, 2, 3)), rtol=0, atol=1e-13)
    np.testing.assert_allclose(std, np.maximum(scaled.std((0, 2, 3)), 1 / 255), rtol=0, atol=1e-13)


def test_channels_are_kept_apart():
    pixels = torch.tensor([0, 100, 255], dtype=torch.uint8).view(1, 3, 1, 1).repeat(5, 1, 4, 4)
    pixels[0, 1] = 200
    mean, std = channel_moments(pixels)
    np.testing.assert_allclose(mean, [0, 120 / 255, 1], atol=1e-14)
    np.testing.assert_allclose(std, [1 / 255, 40 / 255, 1 / 255], atol=1e-14)  # a constant channel: one level


def test_channel_moments_do_not_depend_on_the_number_of_threads():
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3000, 3, 16, 16), dtype=np.uint8))
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(torch.stack(channel_moments(pixels)))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
