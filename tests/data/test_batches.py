"""Batches: each image once a pass, augmented to one of its shifts and mirrors, or left exactly as it is."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ccvr.core.errors import DataError
from ccvr.data.augment import PAD, ShiftAndMirror
from ccvr.data.batches import TrainingSamples, epoch, in_order
from ccvr.data.samples import Samples

laws = settings(deadline=None)


def numbered(n: int) -> Samples:
    """Image i is told by its label, and by its pixels."""
    pixels = torch.arange(n, dtype=torch.int64).view(n, 1, 1, 1).expand(n, 1, 5, 5).to(torch.uint8).contiguous()
    return Samples(pixels, torch.arange(n))


def photographs(n: int, shape: tuple[int, int, int] = (3, 9, 7)) -> Samples:
    rng = np.random.default_rng(0)
    pixels = torch.from_numpy(rng.integers(0, 256, (n, *shape), dtype=np.uint8))
    return Samples(pixels, torch.arange(n))


# --- one pass ---------------------------------------------------------------------------------------------------------


@laws
@given(
    indices=st.lists(st.integers(0, 199), unique=True, max_size=60),
    batch_size=st.integers(1, 20),
    augment=st.booleans(),
    seed=st.integers(0, 999),
)
def test_an_epoch_has_each_index_once(indices, batch_size, augment, seed):
    images = TrainingSamples.prepare(numbered(200), ShiftAndMirror() if augment else None)
    batches = list(epoch(images, np.array(indices, np.int64), batch_size, rng=np.random.default_rng(seed)))
    seen = [label for _, labels in batches for label in labels.tolist()]
    sizes = [len(labels) for _, labels in batches]
    left_out = len(indices) > batch_size > 1 and len(indices) % batch_size == 1
    assert len(seen) == len(set(seen)) == len(indices) - left_out
    assert set(seen) <= set(indices)
    assert sizes[:-1] == [batch_size] * (len(sizes) - 1)
    for crops, labels in batches:
        pixels = crops.images
        assert (pixels.dtype, pixels.shape[1:], labels.dtype) == (torch.uint8, (1, 5, 5), torch.int64)
        assert pixels[:, 0, 0, 0].tolist() == labels.tolist(), "image and label belong together"


@pytest.mark.parametrize(
    ("num_images", "batch_size", "sizes"),
    [
        (0, 4, []),
        (1, 4, [1]),  # one image alone is all that there is
        (4, 4, [4]),
        (5, 4, [4]),  # a last batch of one is left out
        (9, 4, [4, 4]),
        (10, 4, [4, 4, 2]),
        (3, 1, [1, 1, 1]),  # unless single images were asked for
    ],
)
def test_a_trailing_single_image_is_left_out(num_images, batch_size, sizes):
    images = TrainingSamples.prepare(numbered(20), None)
    batches = epoch(images, np.arange(num_images), batch_size, rng=np.random.default_rng(0))
    assert [len(labels) for _, labels in batches] == sizes


def test_the_image_left_out_is_another_one_each_time():
    images = TrainingSamples.prepare(numbered(5), None)
    rng = np.random.default_rng(0)
    left_out = set()
    for _ in range(60):
        ((_, labels),) = epoch(images, np.arange(5), 4, rng=rng)
        left_out |= set(range(5)) - set(labels.tolist())
    assert left_out == set(range(5))


@pytest.mark.parametrize("augment", [False, True])
def test_the_generator_alone_decides(augment):
    images = TrainingSamples.prepare(photographs(30), ShiftAndMirror() if augment else None)

    def run(seed: int) -> torch.Tensor:
        batches = epoch(images, np.arange(30), 8, rng=np.random.default_rng(seed))
        return torch.cat([crops.images for crops, _ in batches])

    np.random.seed(1)  # noqa: NPY002 — the global generators must not matter
    torch.manual_seed(1)
    first = run(7)
    np.random.seed(2)  # noqa: NPY002
    torch.manual_seed(2)
    assert torch.equal(first, run(7))
    assert not torch.equal(first, run(8))


def test_orders_differ_from_pass_to_pass():
    images, rng = TrainingSamples.prepare(numbered(50), None), np.random.default_rng(0)
    first, second = (torch.cat([labels for _, labels in epoch(images, np.arange(50), 8, rng=rng)]) for _ in range(2))
    assert not torch.equal(first, second)


# --- augmentation -----------------------------------------------------------------------------------------------------


def variants(image: np.ndarray) -> dict[bytes, list[tuple[int, int, bool]]]:
    """Every shift and mirror of one image [C, H, W], padded by reflection: its bytes → which."""
    height, width = image.shape[1:]
    padded = np.pad(image, ((0, 0), (PAD, PAD), (PAD, PAD)), mode="reflect")
    found: dict[bytes, list[tuple[int, int, bool]]] = {}
    for row in range(9):
        for column in range(9):
            crop = padded[:, row : row + height, column : column + width]
            for mirror in (False, True):
                key = (crop[:, :, ::-1] if mirror else crop).tobytes()
                found.setdefault(key, []).append((row, column, mirror))
    return found


@pytest.mark.parametrize("shape", [(3, 9, 7), (1, 5, 5), (3, 32, 32)])
def test_each_crop_is_a_shift_and_mirror_of_its_image(shape):
    source = photographs(6, shape)
    known = [variants(image) for image in source.inputs.numpy()]
    images, rng = TrainingSamples.prepare(source, ShiftAndMirror()), np.random.default_rng(0)
    for _ in range(30):
        indices = rng.integers(0, 6, 16)
        crops, labels = images.take(indices, rng=rng)
        pixels = crops.images
        assert (pixels.dtype, tuple(pixels.shape)) == (torch.uint8, (16, *shape))
        assert labels.tolist() == indices.tolist()
        for crop, index in zip(pixels.numpy(), indices, strict=True):
            assert crop.tobytes() in known[index]


def test_all_shifts_and_mirrors_occur_equally_often():
    source = photographs(1, (3, 16, 16))
    known = variants(source.inputs[0].numpy())
    assert len(known) == 162, "all differ, so each crop tells its shift and mirror"
    images, rng = TrainingSamples.prepare(source, ShiftAndMirror()), np.random.default_rng(0)
    n = 16_200
    pixels = images.take(np.zeros(n, np.int64), rng=rng).inputs.images
    counts = np.zeros((9, 9, 2))
    for crop in pixels.numpy():
        ((row, column, mirror),) = known[crop.tobytes()]
        counts[row, column, int(mirror)] += 1
    assert counts.min() > 0
    # χ² with 161 degrees of freedom: mean 161, standard deviation √322 ≈ 18; five of them.
    assert ((counts - 100) ** 2 / 100).sum() < 161 + 5 * 18


def test_images_of_a_batch_are_augmented_one_by_one():
    images = TrainingSamples.prepare(photographs(1, (1, 16, 16)), ShiftAndMirror())
    pixels = images.take(np.zeros(64, np.int64), rng=np.random.default_rng(0)).inputs.images
    assert len(pixels.flatten(1).unique(dim=0)) > 30


def test_without_augmentation_images_are_exact():
    source = photographs(20)
    images = TrainingSamples.prepare(source, None)
    for crops, labels in epoch(images, np.arange(20), 6, rng=np.random.default_rng(0)):
        assert torch.equal(crops.images, source.inputs[labels])


@pytest.mark.parametrize("augment", [False, True])
def test_a_batch_is_the_caller_s_to_change(augment):
    source = photographs(20)
    pixels_before, labels_before = source.inputs.clone(), source.labels.clone()
    images, rng = TrainingSamples.prepare(source, ShiftAndMirror() if augment else None), np.random.default_rng(0)
    first = [crops.images.clone() for crops, _ in epoch(images, np.arange(20), 5, rng=np.random.default_rng(1))]
    for crops, labels in epoch(images, np.arange(20), 5, rng=rng):
        crops.images.fill_(0)
        labels.fill_(-1)
    assert torch.equal(source.inputs, pixels_before)
    assert torch.equal(source.labels, labels_before)
    again = [crops.images for crops, _ in epoch(images, np.arange(20), 5, rng=np.random.default_rng(1))]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("shape", [(3, 4, 9), (3, 9, 4)])
def test_images_too_small_to_be_shifted(shape):
    source = photographs(2, shape)
    with pytest.raises(DataError) as refused:
        TrainingSamples.prepare(source, ShiftAndMirror())
    size = f"{shape[1]} x {shape[2]}"
    assert str(refused.value) == (
        f"images of {size} pixels are too small to be shifted by 4. Use --data.augment False."
    )
    TrainingSamples.prepare(source, None)


def test_many_images_are_padded_in_parts_and_stay_themselves():
    source = photographs(4100, (1, 5, 5))  # more than one part
    images = TrainingSamples.prepare(source, ShiftAndMirror())
    assert torch.equal(images.samples.inputs[:, :, PAD:-PAD, PAD:-PAD], source.inputs), "the middle window is the image"


# --- in order ---------------------------------------------------------------------------------------------------------


@laws
@given(
    indices=st.none() | st.lists(st.integers(0, 49), max_size=60),
    batch_size=st.integers(1, 70),
)
def test_in_order_is_every_image_once_as_it_is(indices, batch_size):
    source = photographs(50)
    batches = list(in_order(source, None if indices is None else np.array(indices, np.int64), batch_size))
    wanted = list(range(50)) if indices is None else indices
    assert torch.equal(torch.cat([pixels for pixels, _ in batches]), source.inputs[wanted])
    assert torch.cat([labels for _, labels in batches]).tolist() == wanted
    assert all(len(labels) == batch_size for _, labels in batches[:-1])


def test_in_order_gives_copies():
    source = photographs(3)
    before = source.inputs.clone()
    for pixels, _ in in_order(source):
        pixels.fill_(0)
    assert torch.equal(source.inputs, before)


def test_large_images_come_in_smaller_batches():
    images = Samples(torch.zeros(40, 3, 700, 700, dtype=torch.uint8), torch.zeros(40, dtype=torch.int64))
    sizes = [len(labels) for _, labels in in_order(images)]
    assert sizes == [11, 11, 11, 7]
