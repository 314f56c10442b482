"""One pass from uint8 to lanes gives what gathering, cutting out, mirroring and normalising give one by one."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ccvr.kernels import crops as module
from ccvr.kernels.crops import Crops, Shifts
from ccvr.kernels.lanes import Lanes
from ccvr.kernels.machine import this_machine
from ccvr.models.preprocess import Normalize

LANES = this_machine().lanes


def drawn(channels: int, size: tuple[int, int], number: int, *, shifted: bool, seed: int = 0) -> Crops:
    rng = np.random.default_rng(seed)
    border = 8 if shifted else 0
    pixels = rng.integers(0, 256, (20, channels, size[0] + border, size[1] + border), dtype=np.uint8)
    index = rng.integers(0, 20, number)
    if not shifted:
        return Crops(torch.from_numpy(pixels), index, size)
    row, column = rng.integers(0, 9, (2, number))
    shifts = Shifts(row, column, rng.integers(0, 2, number).astype(bool))
    return Crops(torch.from_numpy(pixels), index, size, shifts)


def one_by_one(crops: Crops) -> torch.Tensor:
    """Each image by itself, as the augmentation is described."""
    height, width = crops.size
    found = []
    for place, index in enumerate(crops.index):
        image = crops.whole[index]
        if crops.shifts is not None:
            row, column, mirrored = (values[place] for values in crops.shifts)
            image = image[:, row : row + height, column : column + width]
            image = image.flip(2) if mirrored else image
        found.append(image)
    return torch.stack(found)


@settings(deadline=None, max_examples=25)
@given(
    channels=st.integers(1, 4),
    size=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    number=st.integers(1, 2 * LANES + 3),
    shifted=st.booleans(),
)
def test_one_pass_is_all_of_it(channels, size, number, shifted):
    crops = drawn(channels, size, number, shifted=shifted)
    expected = one_by_one(crops)
    assert torch.equal(crops.images, expected)
    normalize = Normalize(torch.rand(channels), torch.rand(channels) + 0.1)
    lanes = crops.lanes(normalize.scale, normalize.shift)
    assert lanes.number == number
    assert torch.allclose(lanes.images(), normalize(expected), atol=1e-5)
    assert not Lanes(lanes.groups, -(-number // LANES) * LANES).images()[number:].any(), "what fills a group is zero"


def test_images_that_32_bits_do_not_reach_are_gathered_first(monkeypatch):
    crops, ones = drawn(2, (5, 6), 11, shifted=True), torch.ones(2)
    straight = crops.lanes(ones, ones)
    monkeypatch.setattr(module, "MAX_NUMBERS", 5000)  # fewer than all images have, more than the batch has
    assert torch.equal(crops.lanes(ones, ones).groups, straight.groups)


@pytest.mark.parametrize("wrong", ["floats", "many"])
def test_what_the_kernel_does_not_take_never_reaches_it(wrong, monkeypatch):
    crops, ones = drawn(2, (5, 6), 11, shifted=False), torch.ones(2)
    if wrong == "many":
        monkeypatch.setattr(module, "MAX_NUMBERS", 11 * 60)
    given_ = Crops(crops.whole.float(), crops.index, crops.size) if wrong == "floats" else crops
    with pytest.raises(ValueError, match=r"Expected uint8 images .*, got 11 of torch\..*smaller batches"):
        given_.lanes(ones, ones)


def test_one_number_may_stand_for_all_channels():
    crops, expected = drawn(3, (5, 6), 11, shifted=False), Normalize([0.4] * 3, [0.3] * 3)
    for one in (Normalize([0.4], [0.3]), Normalize(0.4, 0.3)):
        lanes = crops.lanes(one.scale, one.shift)
        assert torch.allclose(lanes.images(), expected(crops.images), atol=1e-5)
    strided = expected.scale[:1].expand(3, 1, 1)
    assert torch.equal(crops.lanes(strided, expected.shift).groups, crops.lanes(expected.scale, expected.shift).groups)
    with pytest.raises(ValueError, match="broadcast"):
        crops.lanes(torch.ones(2), torch.ones(3))


def test_images_that_lie_scattered_are_gathered_first():
    crops, ones = drawn(2, (5, 6), 11, shifted=False), torch.ones(2)
    scattered = Crops(crops.whole.to(memory_format=torch.channels_last), crops.index, crops.size)
    assert torch.equal(scattered.lanes(ones, ones).groups, crops.lanes(ones, ones).groups)


@pytest.mark.parametrize("index", [20, 2**32, -1, -2])
def test_an_index_of_no_image_is_an_error(index):
    crops, ones = drawn(1, (4, 4), 3, shifted=False), torch.ones(1)
    with pytest.raises(IndexError):
        Crops(crops.whole, np.array([0, index, 1]), crops.size).lanes(ones, ones)


@pytest.mark.parametrize("field", ["row", "column"])
@pytest.mark.parametrize("value", [9, -1])
def test_a_crop_that_reaches_beyond_its_image_is_an_error(field, value):
    crops, ones = drawn(1, (4, 4), 3, shifted=True), torch.ones(1)
    getattr(crops.shifts, field)[1] = value
    with pytest.raises(IndexError, match="outside of the 20 images of 12 x 12 pixels"):
        crops.lanes(ones, ones)


@settings(deadline=None, max_examples=25)
@given(number=st.integers(0, 20), lanes=st.sampled_from([4, 8, 16]), last=st.booleans())
def test_lanes_and_back(number, lanes, last):
    images = torch.arange(number * 2 * 3 * 5, dtype=torch.float32).view(number, 2, 3, 5)
    given_ = images.contiguous(memory_format=torch.channels_last) if last else images
    found = Lanes.of(given_, lanes)
    assert found.groups.shape == (-(-number // lanes), 2, 3, 5, lanes)
    assert found.groups.is_contiguous()
    assert torch.equal(found.images(), images)
    assert found.size == (2, 3, 5)
