"""Folders of pictures: CINIC-10 and a user's own."""

import contextlib
import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from ccvr.core.errors import DataError
from ccvr.data.catalogue import load
from ccvr.data.sources.pictures import Look, decode

REMEDY = "Replace it with the official file, or move {place} away and run `ccvr data get cinic10`."


def refused(name: str, root: Path | None = None) -> str:
    with pytest.raises(DataError) as caught:
        load(name, root)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def save(path: Path, value: int = 0, *, size: tuple[int, int] = (6, 4), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode in {"L", "I;16"} else (value,) * 3).save(path)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Two classes of red, green and blue that differ, so that a wrong order of channels shows."""
    for part, count in (("train", 3), ("test", 1)):
        for label, name in enumerate(("ant", "bee")):
            for number in range(count):
                file = tmp_path / part / name / f"{number}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (6, 4), (label, 10 + number, 20)).save(file)
    return tmp_path


def test_cinic_from_the_tree(cinic_name, tmp_path, write):
    write.cinic(tmp_path / "CINIC-10")
    dataset = load(cinic_name, tmp_path)
    assert dataset.train.labels.tolist() == [label for label in range(10) for _ in range(2)]
    assert dataset.test.labels.tolist() == list(range(10))
    pixels = np.asarray(Image.open(tmp_path / "CINIC-10/train/bird/cifar10-train-1.png"))
    assert torch.equal(dataset.train.inputs[5], torch.from_numpy(pixels.transpose(2, 0, 1).copy()))
    assert dataset.test.inputs[9].unique().tolist() == [9], "the grey one becomes RGB"
    assert dataset.augment


@pytest.mark.parametrize("top", [".", "CINIC-10"])
def test_cinic_packed_equals_unpacked(cinic_name, tmp_path, write, top):
    write.cinic(tmp_path / "cinic10")
    unpacked = load(cinic_name, tmp_path)
    (tmp_path / "packed").mkdir()
    with tarfile.open(tmp_path / "packed" / "CINIC-10.tar.gz", "w:gz") as tar:
        for file in sorted((tmp_path / "cinic10").rglob("*.png"), reverse=True):  # any order
            tar.add(file, arcname=f"{top}/{file.relative_to(tmp_path / 'cinic10')}")
    packed = load(cinic_name, tmp_path / "packed")
    for part in ("train", "test"):
        assert torch.equal(getattr(packed, part).inputs, getattr(unpacked, part).inputs)
        assert torch.equal(getattr(packed, part).labels, getattr(unpacked, part).labels)


def test_cinic_with_an_image_too_few(cinic_name, tmp_path, write):
    folder = write.cinic(tmp_path / "CINIC-10")
    (folder / "train" / "cat" / "cifar10-train-0.png").unlink()
    assert refused(cinic_name, tmp_path) == (
        f"{folder} has 1 train images of class 3, expected 2; it is damaged or not cinic10. "
        + REMEDY.format(place=folder)
    )


def test_cinic_with_an_image_too_many_packed(cinic_name, tmp_path, write):
    folder = write.cinic(tmp_path / "elsewhere")
    save(folder / "test" / "cat" / "more.png", size=(32, 32))
    archive = write.pack(folder, tmp_path / "CINIC-10.tar.gz", name=".")
    assert refused(cinic_name, tmp_path) == f"{archive} has more than 10 test images. {REMEDY.format(place=archive)}"


def test_cinic_without_its_test_part(cinic_name, tmp_path, write):
    folder = write.cinic(tmp_path / "CINIC-10")
    (folder / "test").rename(folder / "elsewhere")
    assert refused(cinic_name, tmp_path) == f"{folder}/test is missing. {REMEDY.format(place=folder)}"


def test_cinic_with_an_unknown_class_packed(cinic_name, tmp_path, write):
    folder = write.cinic(tmp_path / "elsewhere")
    (folder / "train" / "cat").rename(folder / "train" / "dragon")
    archive = write.pack(folder, tmp_path / "CINIC-10.tar.gz", name=".")
    assert f"{archive}: train/dragon/" in refused(cinic_name, tmp_path)


def test_cinic_with_a_broken_member(cinic_name, tmp_path):
    archive = tmp_path / "CINIC-10.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        member = tarfile.TarInfo("./train/cat/x.png")
        member.size = 3
        tar.addfile(member, io.BytesIO(b"no!"))
    assert refused(cinic_name, tmp_path) == (
        f"{archive}: train/cat/x.png cannot be read as an image (UnidentifiedImageError). Replace it or remove it."
    )


def test_own_folder(tree):
    (tree / "train" / "ant" / ".DS_Store").write_bytes(b"?")
    dataset = load(f"folder:{tree}")
    assert dataset.class_names == ("ant", "bee")
    assert dataset.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert dataset.train.inputs.shape[1:] == (3, 4, 6)
    assert dataset.train.inputs[4].amax((1, 2)).tolist() == [1, 11, 20]
    assert dataset.augment


def test_own_folder_of_grey_pictures_in_many_chunks(tmp_path):
    for part in ("train", "test"):
        for number in range(600):
            save(tmp_path / part / "a" / f"{number:03}.png", number % 256, size=(2, 2), mode="L")
    dataset = load(f"folder:{tmp_path}")
    assert dataset.train.inputs.shape[1:] == (1, 2, 2)
    assert dataset.train.inputs[:, 0, 1, 1].tolist() == [number % 256 for number in range(600)]


@pytest.mark.parametrize("part", ["train", "test"])
def test_own_folder_without_its_parts(tree, part):
    (tree / part).rename(tree / "elsewhere")
    assert refused(f"folder:{tree}") == (
        f"there is no folder {tree}/{part}. Lay the images out as {tree}/train/CLASS/*.png and "
        f"{tree}/test/CLASS/*.png, one folder a class."
    )


def test_own_folder_without_images(tmp_path):
    (tmp_path / "train" / "ant").mkdir(parents=True)
    (tmp_path / "test").mkdir()
    assert refused(f"folder:{tmp_path}").startswith(f"{tmp_path}/train holds no images in folders of classes. Lay ")


def test_own_folder_without_test_images(tree):
    for file in (tree / "test").rglob("*.png"):
        file.unlink()
    assert refused(f"folder:{tree}") == "the test part has no samples."


def test_a_picture_of_another_size(tree):
    save(tree / "test" / "bee" / "wide.png", size=(7, 4))
    assert refused(f"folder:{tree}") == (
        f"{tree}/test/bee/wide.png is 7 x 4 pixels, expected 6 x 4 like the others. Scale all images to one size."
    )


@pytest.mark.parametrize("file", ["train/ant/0.png", "train/bee/1.png"])
def test_a_picture_of_16_bits(tree, file):
    save(tree / file, 700, mode="I;16")
    assert refused(f"folder:{tree}") == (
        f"{tree}/{file} has pixels of kind I;16. Convert it to 8 bits a channel, grey or RGB."
    )


@pytest.mark.parametrize("file", ["train/ant/0.png", "train/bee/2.png"])
def test_a_file_that_is_no_picture(tree, file):
    (tree / file).write_text("text")
    assert refused(f"folder:{tree}") == (
        f"{tree}/{file} cannot be read as an image (UnidentifiedImageError). Replace it or remove it."
    )


def test_a_class_that_only_the_test_part_has(tree):
    save(tree / "test" / "wasp" / "0.png")
    assert refused(f"folder:{tree}") == (
        f"{tree}/test/wasp is not a class of the train part (ant, bee). Rename it or remove it."
    )


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::PIL.Image.DecompressionBombWarning")  # before it refuses
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"])
def test_every_damage_to_a_picture_is_refused_or_harmless(kind):
    buffer = io.BytesIO()
    noise = np.random.default_rng(1).integers(0, 256, (8, 8, 3), np.uint8)
    Image.fromarray(noise).save(buffer, kind)
    whole, look = buffer.getvalue(), Look("RGB", (8, 8))

    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(keep=st.integers(0, len(whole)), at=st.integers(0, len(whole) - 1), junk=st.binary(max_size=4))
    def holds(keep: int, at: int, junk: bytes) -> None:
        damaged = (whole[:at] + junk + whole[at + len(junk) :])[:keep]
        with contextlib.suppress(DataError):
            decode(damaged, "x", look, look.empty(1)[0])

    holds()
