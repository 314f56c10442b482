"""MNIST and Fashion-MNIST as IDX files."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ccvr.core.errors import DataError
from ccvr.data.catalogue import load
from ccvr.data.sources.idx import MNIST

REMEDY = "Replace it with the official file, or move {place} away and run `ccvr data get mnist`."
IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
ONE_FOLDER = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)


def compress(folder: Path) -> None:
    for file in list(folder.iterdir()):
        (folder / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes(), 1))
        file.unlink()


def refused(name: str, root: Path) -> str:
    with pytest.raises(DataError) as caught:
        load(name, root)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("place", ["", "mnist", "MNIST/raw", "mnist/MNIST/raw"])
@pytest.mark.parametrize("packed", [False, True])
def test_found_and_read(mnist_name, tmp_path, write, place, packed):
    folder = write.mnist(tmp_path / place, write.small_mnist)
    images = np.frombuffer((folder / IMAGES).read_bytes()[16:], np.uint8).reshape(-1, 1, 28, 28)
    labels = np.frombuffer((folder / LABELS).read_bytes()[8:], np.uint8)
    if packed:
        compress(folder)
    dataset = load(mnist_name, tmp_path)
    assert torch.equal(dataset.train.inputs, torch.from_numpy(images.copy()))
    assert dataset.train.labels.tolist() == labels.tolist()
    assert len(dataset.test) == 10
    assert not dataset.augment


def test_one_file_missing(mnist_name, tmp_path, write):
    write.mnist(tmp_path, write.small_mnist)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    assert refused(mnist_name, tmp_path) == (
        f"{tmp_path}/t10k-labels-idx1-ubyte.gz is missing, and so is the same without .gz. "
        + REMEDY.format(place=tmp_path)
    )


def test_labels_in_place_of_images(mnist_name, tmp_path, write):
    write.mnist(tmp_path, write.small_mnist)
    (tmp_path / IMAGES).write_bytes((tmp_path / LABELS).read_bytes() + bytes(16))
    begin = (tmp_path / IMAGES).read_bytes()[:16].hex()
    assert refused(mnist_name, tmp_path) == (
        f"{tmp_path}/{IMAGES} begins with {begin}, expected 000008030000000d0000001c0000001c "
        "(IDX, shape (13, 28, 28)). " + REMEDY.format(place=tmp_path / IMAGES)
    )


def test_another_number_of_images(mnist_name, tmp_path, write):
    write.mnist(tmp_path, write.small_mnist)
    write.idx(tmp_path / IMAGES, np.zeros((12, 28, 28), np.uint8))
    assert "begins with 000008030000000c0000001c0000001c, expected 000008030000000d" in refused(mnist_name, tmp_path)


def test_more_bytes_than_announced(mnist_name, tmp_path, write):
    write.mnist(tmp_path, write.small_mnist)
    with (tmp_path / LABELS).open("ab") as file:
        file.write(b"\0\0")
    assert refused(mnist_name, tmp_path) == (
        f"{tmp_path}/{LABELS} holds more than 21 bytes, expected 21. {REMEDY.format(place=tmp_path / LABELS)}"
    )


def test_a_label_that_is_no_class(mnist_name, tmp_path, write):
    write.mnist(tmp_path, write.small_mnist)
    write.idx(tmp_path / LABELS, np.full(13, 200, np.uint8))
    assert refused(mnist_name, tmp_path) == (
        f"{tmp_path}/{LABELS} has label 200 at image 0, expected 0 to 9. {REMEDY.format(place=tmp_path / LABELS)}"
    )


def test_a_truncated_gzip_file(mnist_name, tmp_path, write):
    compress(write.mnist(tmp_path, write.small_mnist))
    file = tmp_path / f"{IMAGES}.gz"
    file.write_bytes(file.read_bytes()[:100])
    assert refused(mnist_name, tmp_path) == (
        f"{file} cannot be read (it ends before the end-of-stream marker). " + REMEDY.format(place=file)
    )


def test_a_wrong_gzip_checksum(mnist_name, tmp_path, write):
    compress(write.mnist(tmp_path, write.small_mnist))
    file = tmp_path / f"{LABELS}.gz"
    raw = bytearray(file.read_bytes())
    raw[-8] ^= 1
    file.write_bytes(raw)
    assert f"{file} cannot be read (Error -3 while decompressing data: incorrect data check)" in refused(
        mnist_name, tmp_path
    )


def test_a_gzip_bomb_is_read_only_as_far_as_needed(mnist_name, tmp_path, write):
    write.mnist(tmp_path, write.small_mnist)
    (tmp_path / LABELS).unlink()
    header = struct.pack(">HBBI", 0, 8, 1, 13)
    (tmp_path / f"{LABELS}.gz").write_bytes(gzip.compress(header + bytes(50_000_000), 1))
    assert f"{LABELS}.gz holds more than 21 bytes, expected 21. " in refused(mnist_name, tmp_path)


def test_mnist_is_not_taken_for_fashion_mnist(tmp_path, write):
    """Both have the same file names; their class counts differ."""
    write.mnist(tmp_path, MNIST)
    assert load("mnist", tmp_path).train.labels.bincount().tolist() == list(MNIST.train_counts)
    assert refused("fashion-mnist", tmp_path) == (
        f"{tmp_path}/{LABELS} has 5923 train images of class 0, expected 6000; it is damaged or not fashion-mnist. "
        f"Replace it with the official file, or move {tmp_path}/{LABELS} away and run `ccvr data get fashion-mnist`."
    )


@ONE_FOLDER
@given(keep=st.integers(0, 16 + 13 * 784 - 1))
def test_every_truncation_is_refused(mnist_name, tmp_path, write, keep):
    whole = tmp_path / "whole"
    if not whole.exists():
        write.mnist(whole, write.small_mnist)
        write.mnist(tmp_path, write.small_mnist)
    (tmp_path / IMAGES).write_bytes((whole / IMAGES).read_bytes()[:keep])
    assert f"{IMAGES} holds {keep} bytes, expected 10208. " in refused(mnist_name, tmp_path)


@ONE_FOLDER
@given(keep=st.floats(0, 1, exclude_max=True))
def test_every_truncation_of_a_gzip_file_is_refused(mnist_name, tmp_path, write, keep):
    whole = tmp_path / "whole"
    if not whole.exists():
        compress(write.mnist(whole, write.small_mnist))
        compress(write.mnist(tmp_path / "mnist", write.small_mnist))
    raw = (whole / f"{LABELS}.gz").read_bytes()
    (tmp_path / "mnist" / f"{LABELS}.gz").write_bytes(raw[: int(keep * len(raw))])
    refused(mnist_name, tmp_path)
