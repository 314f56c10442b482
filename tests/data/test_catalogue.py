"""The table of data sets: where they are looked for, what is told about them, and users' own."""

import gzip
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ccvr.core.errors import DataError, UnknownName
from ccvr.data.catalogue import CheckedFile, DatasetCheck, Listing, check, listing, load
from ccvr.data.digests import Record, digest
from ccvr.data.samples import Dataset, Samples
from ccvr.data.sources.cifar import CIFAR10, CIFAR100
from ccvr.data.sources.digits import DIGITS
from ccvr.data.sources.idx import FASHION, MNIST
from ccvr.data.sources.rows import ROWS
from ccvr.data.sources.source import Stored, data_root
from ccvr.models.preprocess import channel_moments


def test_digits_are_embedded_and_split_alike_each_time():
    dataset = load("digits")
    assert (len(dataset.train), len(dataset.test), dataset.train.inputs.shape[1:]) == (1442, 355, (1, 8, 8))
    assert dataset.train.labels.bincount().tolist() == [143, 146, 142, 147, 145, 146, 145, 144, 140, 144]
    assert dataset.test.labels.bincount().tolist() == [35, 36, 35, 36, 36, 36, 36, 35, 34, 36]
    assert (int(dataset.train.inputs.min()), int(dataset.train.inputs.max())) == (0, 255)
    assert dataset.train.inputs[0, 0, 0].tolist() == [0, 0, 80, 207, 143, 16, 0, 0]  # 0 0 5 13 9 1 0 0 of 16
    assert torch.equal(load("digits").test.inputs, dataset.test.inputs)
    assert not dataset.augment


def test_class_names():
    names = CIFAR100.class_names
    assert len(set(names)) == 100
    assert list(names) == sorted(names)
    assert (names[0], names[19], names[49], names[99]) == ("apple", "cattle", "mountain", "worm")
    assert (CIFAR10.class_names[3], CIFAR10.class_names[6]) == ("cat", "frog")
    assert FASHION.class_names[9] == "Ankle boot"


def test_what_is_published_about_digits_is_true():
    dataset = load("digits")
    for samples, counts in ((dataset.train, DIGITS.train_counts), (dataset.test, DIGITS.test_counts)):
        assert samples.labels.bincount().tolist() == list(counts)
        assert samples.inputs.shape[1:] == DIGITS.shape


def test_the_folder_given_then_the_environment_then_the_cache(monkeypatch):
    monkeypatch.setenv("CCVR_DATA", "/named")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert data_root(Path("/given")) == Path("/given")
    assert data_root() == Path("/named")
    monkeypatch.delenv("CCVR_DATA")
    assert data_root() == Path("/cache/ccvr")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert data_root() == Path("/home/me/.cache/ccvr")
    assert data_root(Path("~/data")) == Path("/home/me/data")


def test_the_environment_is_used(small10, cifar10_name, tmp_path, monkeypatch):
    small10.write_binary(tmp_path / "cifar10")
    monkeypatch.setenv("CCVR_DATA", str(tmp_path))
    assert len(load(cifar10_name).train) == 20


def test_an_unknown_name_suggests_a_known_one():
    with pytest.raises(UnknownName) as caught:
        load("cifar")
    assert str(caught.value) == (
        'no data set "cifar". Did you mean "cifar10"? Known: cifar10, cifar100, cinic10, digits, fashion-mnist, mnist.'
    )


def test_own_function(register, tmp_path):
    part = Samples(torch.zeros(2, 1, 3, 3, dtype=torch.uint8), torch.tensor([0, 1]))
    asked = []

    def mine(root):
        asked.append(root)
        return Dataset(part, part, ("a", "b"))

    assert load(register("mine", mine), tmp_path).class_names == ("a", "b")
    assert asked == [tmp_path]
    assert check(register("mine", mine)) == DatasetCheck("my_data_sets:mine", (), 2, 2, "1 x 3 x 3", 2)


def read_missing(root):
    return Path("/no/such/file").read_bytes()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, 'data set "my_data_sets:wrong" is a int; it must be a function (root) -> Dataset.'),
        (lambda root: None, 'data set "my_data_sets:wrong" gave a NoneType; its function must return a Dataset.'),
        (
            read_missing,
            "data set \"my_data_sets:wrong\": [Errno 2] No such file or directory: '/no/such/file'. "
            "Make its files readable.",
        ),
    ],
)
def test_own_that_is_no_source(register, value, message):
    with pytest.raises(DataError) as caught:
        load(register("wrong", value))
    assert str(caught.value) == message


def test_listing(tmp_path):
    (tmp_path / "cifar-10-batches-bin").mkdir()
    rows = {row.name: row for row in listing(tmp_path)}
    assert list(rows) == ["digits", "cifar10", "cifar100", "cinic10", "mnist", "fashion-mnist"]
    assert rows["digits"].where == "in scikit-learn"
    assert rows["cifar10"] == Listing(
        "cifar10", "32 x 32 photographs, 10 classes", 50000, 10000, f"{tmp_path}/cifar-10-batches-bin"
    )
    assert rows["cinic10"].where is None


@pytest.mark.parametrize("row", [row for row in ROWS if isinstance(row, Stored)], ids=lambda row: row.contents.name)
def test_every_stored_row_can_be_downloaded_and_found_afterwards(row, tmp_path):
    assert row.urls
    for url in row.urls:
        (tmp_path / row.contents.name).mkdir(exist_ok=True)
        (tmp_path / row.contents.name / url.rsplit("/", 1)[1]).touch()
    found = row.find(tmp_path)
    assert found is not None
    assert found.form is row.forms[0]
    assert all(len(md5) == 32 for md5 in row.md5.values())


def test_check_of_unpacked_files(small10, cifar10_name, tmp_path):
    folder = small10.write_binary(tmp_path / "cifar-10-batches-bin")
    found = check(cifar10_name, tmp_path)
    assert (found.train, found.test, found.inputs, found.classes) == (20, 10, "3 x 32 x 32", 10)
    assert found.files[0] == CheckedFile(folder / "data_batch_1.bin", 12292, "unpacked, lengths verified")
    assert len(found.files) == 6


def test_check_compares_with_the_published_checksum(small10, register, cifar10_name, tmp_path, write):
    folder = small10.write_binary(tmp_path / "elsewhere" / "cifar-10-batches-bin")
    archive = write.pack(folder, tmp_path / "cifar-10-binary.tar.gz")
    row, right = sys.modules["my_data_sets"].cifar10, digest(archive, "md5")
    name = register("right", replace(row, md5={archive.name: right}))
    assert check(name, tmp_path).files == (CheckedFile(archive, archive.stat().st_size, "verified"),)
    name = register("wrong", replace(row, md5={archive.name: "0" * 32}))
    with pytest.raises(DataError) as caught:
        check(name, tmp_path)
    assert str(caught.value) == (
        f"{archive} has MD5 {right}, published is {'0' * 32}. Delete it and download it again."
    )


def test_check_compares_with_the_record_where_nothing_is_published(cinic_name, tmp_path, write):
    archive = write.pack(write.cinic(tmp_path / "elsewhere"), tmp_path / "CINIC-10.tar.gz", name=".")
    assert check(cinic_name, tmp_path).files[0].status == "unverified (no record)"
    right = digest(archive, "sha256")
    Record(right, "2024-05-06").write(archive)
    assert check(cinic_name, tmp_path).files[0].status == "unverified (recorded 2024-05-06)"
    Record("f" * 64, "2024-05-06").write(archive)
    with pytest.raises(DataError) as caught:
        check(cinic_name, tmp_path)
    assert str(caught.value) == (
        f"{archive} has SHA-256 {right}, but {'f' * 64} was recorded on 2024-05-06. Delete it and download it again, "
        f"or delete {archive}.sha256.json if its publisher has changed it."
    )


def test_a_broken_record_is_refused(cinic_name, tmp_path, write):
    archive = write.pack(write.cinic(tmp_path / "elsewhere"), tmp_path / "CINIC-10.tar.gz", name=".")
    Record.path(archive).write_text("[]")
    with pytest.raises(DataError, match=r"sha256\.json is not a record of a checksum\. Delete it"):
        check(cinic_name, tmp_path)


def test_check_of_a_tree(cinic_name, tmp_path, write):
    folder = write.cinic(tmp_path / "CINIC-10")
    files = check(cinic_name, tmp_path).files
    assert [file.path for file in files[:2]] == [folder / "train/airplane", folder / "train/automobile"]
    assert {file.status for file in files} == {"unpacked, every image decoded"}


def test_official_sizes_are_read_through_the_table(tmp_path):
    """A full-size CIFAR-10 of black images."""
    folder = tmp_path / "cifar10" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    records = np.zeros((10000, 3073), np.uint8)
    records[:, 0] = np.arange(10000) % 10
    for name in ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"):
        (folder / f"{name}.bin").write_bytes(records.tobytes())
    dataset = load("cifar10", tmp_path)
    assert (len(dataset.train), len(dataset.test), dataset.num_classes) == (50000, 10000, 10)


def test_official_checksums_are_compared(tmp_path, write):
    folder = write.mnist(tmp_path / "mnist", MNIST)
    file = folder / "train-images-idx3-ubyte"
    Path(f"{file}.gz").write_bytes(gzip.compress(file.read_bytes(), 1))
    file.unlink()
    load("mnist", tmp_path)
    with pytest.raises(DataError, match="published is f68b3c2dcbeaaa9fbdd348bbdeb94873"):
        check("mnist", tmp_path)


@pytest.mark.slow  # for who has them packed: unpacking takes most of a minute
def test_the_real_images(real_data):
    found = {row.name: row.where for row in listing(real_data)}
    for name, train, test, mean in (
        ("cifar10", [6, 9, 9, 4, 1], [3, 8, 8, 0, 6], (0.4914, 0.4822, 0.4465)),
        ("cifar100", [19, 29, 0, 11, 1], [49, 33, 72, 51, 71], (0.5071, 0.4865, 0.4409)),
    ):
        assert found[name] is not None
        dataset = load(name, real_data)
        assert dataset.train.labels[:5].tolist() == train
        assert dataset.test.labels[:5].tolist() == test
        found_mean, _ = channel_moments(dataset.train.inputs)
        assert torch.allclose(found_mean, torch.tensor(mean, dtype=torch.float64), atol=1e-4)
