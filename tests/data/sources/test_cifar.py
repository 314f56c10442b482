"""CIFAR in its four official shapes, and every way in which it can be broken."""

import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ccvr.core.errors import DataError
from ccvr.data.catalogue import load
from ccvr.data.samples import Dataset

REMEDY = "Replace it with the official file, or move {place} away and run `ccvr data get {name}`."


def expected(batches) -> tuple[torch.Tensor, torch.Tensor, list[int], list[int]]:
    """Images and labels as they were written, in the order of the official file names."""
    layout = batches.layout

    def images(files):
        return torch.from_numpy(np.concatenate([batches.pixels[file] for file in files]).reshape(-1, 3, 32, 32))

    def labels(files):
        return [label for file in files for label in batches.labels[file]]

    return images(layout.train_files), images(layout.test_files), labels(layout.train_files), labels(layout.test_files)


def assert_holds(dataset: Dataset, batches) -> None:
    train, test, train_labels, test_labels = expected(batches)
    assert torch.equal(dataset.train.inputs, train)
    assert torch.equal(dataset.test.inputs, test)
    assert dataset.train.labels.tolist() == train_labels
    assert dataset.test.labels.tolist() == test_labels
    assert dataset.augment


def refused(name: str, root: Path) -> str:
    with pytest.raises(DataError) as caught:
        load(name, root)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("packed", [False, True])
def test_cifar10_binary(small10, cifar10_name, tmp_path, write, packed):
    folder = small10.write_binary(tmp_path / ("elsewhere" if packed else "") / "cifar-10-batches-bin")
    if packed:
        write.pack(folder, tmp_path / "cifar-10-binary.tar.gz")
    assert_holds(load(cifar10_name, tmp_path), small10)


@pytest.mark.parametrize("protocol", [None, 0, 2, 3, 4, 5])
def test_cifar10_python_of_every_protocol(small10, cifar10_name, tmp_path, protocol):
    small10.write_python(tmp_path / "cifar-10-batches-py", protocol)
    assert_holds(load(cifar10_name, tmp_path), small10)


def test_cifar10_python_packed(small10, cifar10_name, tmp_path, write):
    folder = small10.write_python(tmp_path / "elsewhere" / "cifar-10-batches-py")
    write.pack(folder, tmp_path / "cifar-10-python.tar.gz")
    assert_holds(load(cifar10_name, tmp_path), small10)


@pytest.mark.parametrize(("packed", "kind"), [(False, "binary"), (True, "binary"), (False, "python"), (True, "python")])
def test_cifar100_fine_labels(small100, cifar100_name, tmp_path, write, packed, kind):
    folder = tmp_path / ("elsewhere" if packed else "") / f"cifar-100-{kind}"
    small100.write_binary(folder) if kind == "binary" else small100.write_python(folder)
    if packed:
        write.pack(folder, tmp_path / f"cifar-100-{kind}.tar.gz")
    assert_holds(load(cifar100_name, tmp_path), small100)


@pytest.mark.parametrize("place", ["cifar10/cifar-10-batches-bin", "cifar10", "cifar-10-batches-bin", "here"])
def test_found_in_its_own_folder_the_shared_one_or_loose(small10, cifar10_name, tmp_path, place):
    small10.write_binary(tmp_path / place)
    root = tmp_path / "here" if place == "here" else tmp_path
    assert_holds(load(cifar10_name, root), small10)


def test_a_batch_repacked_with_label_arrays_is_read(small10, cifar10_name, tmp_path):
    small10.labels = {file: np.array(labels) for file, labels in small10.labels.items()}
    small10.write_python(tmp_path / "cifar-10-batches-py", protocol=4)
    small10.labels = {file: labels.tolist() for file, labels in small10.labels.items()}
    assert_holds(load(cifar10_name, tmp_path), small10)


def test_missing(cifar10_name, tmp_path):
    assert refused(cifar10_name, tmp_path) == (
        f"cifar10 is neither in {tmp_path}/cifar10 nor in {tmp_path}. Run `ccvr data get cifar10`, or put there "
        "cifar-10-binary.tar.gz (or unpacked: cifar-10-batches-bin), "
        "or cifar-10-python.tar.gz (or unpacked: cifar-10-batches-py)."
    )


def test_one_file_missing(small10, cifar10_name, tmp_path):
    folder = small10.write_binary(tmp_path / "cifar-10-batches-bin")
    (folder / "data_batch_3.bin").unlink()
    remedy = REMEDY.format(place=folder, name="cifar10")
    assert refused(cifar10_name, tmp_path) == f"{folder}/data_batch_3.bin is missing. {remedy}"


def test_one_member_missing(small10, cifar10_name, tmp_path, write):
    folder = small10.write_binary(tmp_path / "elsewhere" / "cifar-10-batches-bin")
    (folder / "test_batch.bin").unlink()
    archive = write.pack(folder, tmp_path / "cifar-10-binary.tar.gz")
    remedy = REMEDY.format(place=archive, name="cifar10")
    assert refused(cifar10_name, tmp_path) == f"{archive}: test_batch.bin is missing. {remedy}"


@pytest.mark.parametrize(("change", "size"), [(-1, 4 * 3073 - 1), (1, 4 * 3073 + 1)])
@pytest.mark.parametrize("packed", [False, True])
def test_wrong_length(small10, cifar10_name, tmp_path, write, change, size, packed):
    place = folder = small10.write_binary(tmp_path / ("elsewhere" if packed else "") / "cifar-10-batches-bin")
    file = folder / "data_batch_2.bin"
    file.write_bytes((file.read_bytes() + b"?")[:size])
    shown = f"{file}"
    if packed:
        place = write.pack(folder, tmp_path / "cifar-10-binary.tar.gz")
        shown = f"{place}: data_batch_2.bin"
    remedy = REMEDY.format(place=place, name="cifar10")
    assert refused(cifar10_name, tmp_path) == f"{shown} has {size} bytes, expected 12292. {remedy}"


def test_a_label_that_is_no_class(small10, cifar10_name, tmp_path):
    small10.labels["data_batch_4"][2] = 10
    folder = small10.write_binary(tmp_path / "cifar-10-batches-bin")
    remedy = REMEDY.format(place=folder, name="cifar10")
    assert refused(cifar10_name, tmp_path) == (
        f"{folder}/data_batch_4.bin has label 10 at image 2, expected 0 to 9. {remedy}"
    )


def test_labels_that_are_not_the_official_ones(small10, cifar10_name, tmp_path):
    small10.labels["test_batch"] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 8]
    folder = small10.write_python(tmp_path / "cifar-10-batches-py")
    remedy = REMEDY.format(place=folder, name="cifar10")
    assert refused(cifar10_name, tmp_path) == (
        f"{folder} has 2 test images of class 8, expected 1; it is damaged or not cifar10. {remedy}"
    )


@pytest.mark.parametrize(
    ("data", "fact"),
    [
        (np.zeros((4, 3073), np.uint8), "has uint8 of shape (4, 3073) as data"),
        (np.zeros((4, 3072), np.int16), "has int16 of shape (4, 3072) as data"),
        ([0] * 13000, "has no array as data"),
    ],
)
def test_wrong_data_in_a_python_batch(small10, cifar10_name, tmp_path, data, fact):
    small10.pixels["data_batch_1"] = data
    small10.write_python(tmp_path / "cifar-10-batches-py", protocol=4)
    assert f"data_batch_1 {fact}, expected uint8 of shape (4, 3072). " in refused(cifar10_name, tmp_path)


@pytest.mark.parametrize("labels", [[0, 1, 2], ["0", "1", "2", "3"], [0.0, 1.0, 2.0, 3.0], "0123", [0, 1, 2, 2**70]])
def test_wrong_labels_in_a_python_batch(small10, cifar10_name, tmp_path, labels):
    small10.labels["data_batch_1"] = labels
    small10.write_python(tmp_path / "cifar-10-batches-py", protocol=4)
    assert "data_batch_1 has no list of 4 whole numbers as labels. " in refused(cifar10_name, tmp_path)


def test_an_archive_that_is_something_else(cifar10_name, tmp_path):
    archive = tmp_path / "cifar-10-binary.tar.gz"
    archive.write_bytes(b"<html>404</html>")
    remedy = REMEDY.format(place=archive, name="cifar10")
    assert refused(cifar10_name, tmp_path) == (
        f"{archive} is not a whole .tar.gz archive (Error -3 while decompressing data: incorrect header check). "
        f"{remedy}"
    )


def test_a_link_instead_of_a_member_is_not_followed(cifar10_name, tmp_path):
    archive = tmp_path / "cifar-10-binary.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        link = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    assert f"{archive}: data_batch_1.bin is missing. " in refused(cifar10_name, tmp_path)


def test_a_member_that_would_escape_is_ignored(small10, cifar10_name, tmp_path, write):
    folder = small10.write_binary(tmp_path / "elsewhere" / "cifar-10-batches-bin")
    (tmp_path / "data").mkdir()
    archive = write.pack(folder, tmp_path / "data" / "cifar-10-binary.tar.gz", name="../cifar-10-batches-bin")
    assert f"{archive}: data_batch_1.bin is missing. " in refused(cifar10_name, tmp_path / "data")
    assert [path.name for path in (tmp_path / "data").iterdir()] == [archive.name]


ONE_FOLDER = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)


@ONE_FOLDER
@given(keep=st.integers(0, 4 * 3073 - 1))
def test_every_truncation_of_a_binary_file_is_refused(small10, cifar10_name, tmp_path, keep):
    folder = tmp_path / "cifar-10-batches-bin"
    file = folder / "data_batch_1.bin"
    if not folder.exists():
        small10.write_binary(folder)
    file.write_bytes(b"\1" * keep)
    assert f"has {keep} bytes, expected 12292. " in refused(cifar10_name, tmp_path)


@ONE_FOLDER
@given(keep=st.floats(0, 1, exclude_max=True))
def test_every_truncation_of_an_archive_is_refused(small10, cifar10_name, tmp_path, write, keep):
    whole = tmp_path / "whole.tar.gz"
    if not whole.exists():
        write.pack(small10.write_binary(tmp_path / "elsewhere" / "cifar-10-batches-bin"), whole)
    raw = whole.read_bytes()
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(raw[: int(keep * len(raw))])
    refused(cifar10_name, tmp_path)


@ONE_FOLDER
@given(where=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_a_flipped_byte_in_an_archive_is_refused_or_harmless(small10, cifar10_name, tmp_path, write, where, flip):
    whole = tmp_path / "whole.tar.gz"
    if not whole.exists():
        write.pack(small10.write_binary(tmp_path / "elsewhere" / "cifar-10-batches-bin"), whole)
    raw = bytearray(whole.read_bytes())
    raw[int(where * len(raw))] ^= flip
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(raw)
    try:
        dataset = load(cifar10_name, tmp_path)
    except DataError:
        return
    assert_holds(dataset, small10)
