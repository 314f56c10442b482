"""Data files of anybody: damaged ones in every layout, and such as are made to exhaust time or memory."""

import gzip
import io
import os
import pickle
import random
import shutil
import socket
import struct
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ccvr.core.errors import DataError
from ccvr.data.catalogue import load
from ccvr.data.samples import Dataset
from ccvr.data.sources import cifar, cinic, idx
from ccvr.data.sources.archives import tar_files
from ccvr.data.sources.pickles import unpickle
from ccvr.data.sources.source import Place
from tests.adversary.calling import measured
from tests.adversary.damage import OF_ANY, flip_bits, overwrite, truncate
from tests.data.conftest import SMALL10, SMALL_CINIC, SMALL_MNIST, Batches, pack, write_cinic, write_mnist

PLACE = Place("cifar10", Path("cifar-10-python.tar.gz"))
SIZE = 10_000 * (3072 + 256)
"""Bytes of a pickle that has the length of an official batch."""

# --- damaged ones -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small data sets in every layout, and a folder of pictures of every kind."""
    folder = tmp_path_factory.mktemp("whole")
    batches = Batches(SMALL10)
    pack(batches.write_binary(folder / "made" / "cifar-10-batches-bin"), folder / "binary.tar.gz")
    pack(batches.write_python(folder / "python" / "cifar-10-batches-py"), folder / "python.tar.gz")
    batches.write_python(folder / "protocol4", protocol=4)
    pack(write_cinic(folder / "cinic"), folder / "cinic.tar.gz", name="CINIC-10")
    write_mnist(folder / "mnist", SMALL_MNIST)
    for path in (folder / "mnist").iterdir():
        path.with_suffix(".gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    rng = np.random.default_rng(0)
    for part in ("train", "test"):
        for name in ("ant", "bee"):
            (folder / "own" / part / name).mkdir(parents=True)
            for kind in ("png", "jpg", "gif", "bmp", "tiff", "webp", "ppm"):
                pixels = rng.integers(0, 256, (8, 8, 3), np.uint8)
                Image.fromarray(pixels).save(folder / "own" / part / name / f"x.{kind}")
    return folder


LAYOUTS: dict[str, Callable[[Path], Dataset]] = {
    "binary.tar.gz": cifar.binary_form(SMALL10, "x").read,
    "python.tar.gz": cifar.python_form(SMALL10, "x").read,
    "python/cifar-10-batches-py": cifar.python_form(SMALL10, "x").read,
    "protocol4": cifar.python_form(SMALL10, "x").read,
    "cinic.tar.gz": cinic.cinic_form(SMALL_CINIC).read,
    "cinic": cinic.cinic_form(SMALL_CINIC).read,
    "mnist": idx.idx_form(SMALL_MNIST, "x").read,
    "own": lambda path: load(f"folder:{path}"),
}


def test_undamaged_ones_are_read(whole: Path) -> None:
    for name, read in LAYOUTS.items():
        done = measured(lambda read=read, name=name: read(whole / name))
        assert isinstance(done.found, Dataset), done


def damaged(path: Path, rng: random.Random) -> str:
    """Damage one file of a layout; archives are damaged inside, too, where their checksums do not tell."""
    files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    target = rng.choice(files)
    if target.suffix == ".gz" and rng.random() < 0.6:
        inside = target.with_suffix(".inside")
        inside.write_bytes(gzip.decompress(target.read_bytes()))
        way = rng.choice((truncate, flip_bits, overwrite))
        way(inside, rng)
        target.write_bytes(gzip.compress(inside.read_bytes(), 1))
        inside.unlink()
        return f"{target.name} inside: {way.__name__}"
    way = rng.choice((*OF_ANY, flip_bits, flip_bits, overwrite))
    way(target, rng)
    return f"{target.name}: {way.__name__}"


def storm(whole: Path, folder: Path, *, seed: int, number: int) -> None:
    faults, codes = [], Counter[bool]()
    for case in range(number):
        rng = random.Random(f"{seed}/{case}")
        name = rng.choice(list(LAYOUTS))
        target = folder / str(case) / name
        target.parent.mkdir(parents=True)
        source = whole / name
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
        words = damaged(target, rng)
        done = measured(lambda name=name, target=target: LAYOUTS[name](target))
        codes[done.error is None] += 1
        if found := done.faults(DataError, OSError):
            faults.append(f"{seed}/{case} {name}, {words}: {', '.join(found)}")
        shutil.rmtree(folder / str(case))
    assert not faults, f"{len(faults)} of {number}:\n" + "\n".join(faults[:20])
    assert codes[False] > number / 3, "the damage is too small to tell"


def test_no_damage_is_worse_than_one_error(whole: Path, tmp_path: Path) -> None:
    storm(whole, tmp_path, seed=0, number=80)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
def test_of_many_damages_none_is_worse_than_one_error(seed: int, whole: Path, tmp_path: Path) -> None:
    storm(whole, tmp_path, seed=seed, number=400)


# --- such as exhaust --------------------------------------------------------------------------------------------------


def refused(read: Callable[[], object], *allowed: type[Exception]) -> str:
    """The error of a reader that took little."""
    done = measured(read)
    assert done.error is not None
    assert done.faults(*(allowed or (DataError,))) == []
    return str(done.error)


def text(value: bytes) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value


LONG = b"a" * (SIZE // 3)
ENCODE, LATIN1 = b"c_codecs\nencode\n", b"X\x06\x00\x00\x00latin1\x86R"
SPELT = ENCODE + text(LONG) + LATIN1
PICKLES = {
    "one-byte opcodes": b"\x80\x02" + b"N" * (SIZE - 3) + b".",
    "empty dictionaries": b"\x80\x02](" + b"}" * (SIZE - 6) + b"e.",
    "lists in lists": b"\x80\x02" + b"](" * (SIZE // 4) + b"e" * (SIZE // 4) + b".",
    "a tuple of itself twice, 60 times": b"\x80\x02}(K\x00\x85q\x00" + b"h\x00h\x00\x86q\x00" * 60 + b"h\x00K\x01u.",
    "the same by DUP": b"\x80\x02}(K\x00\x85" + b"2\x86" * 60 + b"K\x01u.",
    "the same as frozen sets": b"\x80\x04}(K\x00\x85\x94" + b"(h\x00h\x00\x91\x94" * 60 + b"K\x01u.",
    "equal long keys": b"\x80\x02" + text(LONG) + b"q\x00" + text(LONG) + b"q\x01}(" + b"h\x00Nh\x01N" * 19_000 + b"u.",
    "copies of a long text": b"\x80\x02" + text(LONG) + b"q\x00](" + (ENCODE + b"h\x00" + LATIN1) * 9000 + b"e.",
    "equal long bytes": b"\x80\x02" + SPELT + b"q\x00" + SPELT + b"q\x01}(" + b"h\x00Nh\x01N" * 19_000 + b"u.",
    "a number of 30 MB": b"\x80\x02\x8b" + struct.pack("<I", SIZE - 10) + b"\x01" * (SIZE - 10) + b".",
    "a number of 30 million digits": b"L" + b"7" * (SIZE - 10) + b"L\n.",
    "a memo far away": b"\x80\x02Nr\xff\xff\xff\x7f.",
    "bytes that are not there": b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b"x.",
    "a frame that is not there": b"\x80\x04\x95" + struct.pack("<Q", 2**60) + b"N.",
    "a tower of tuples": b"\x80\x02}(" + b"K\x00" + b"\x85" * 100_000 + b"Nu.",
}  # fmt: skip


@pytest.mark.parametrize("name", PICKLES)
def test_a_hostile_pickle_of_official_length_takes_little(name: str) -> None:
    opcodes = cifar.MAX_OPCODES + 10_000 * cifar.OPCODES
    assert "is not a pickled batch of images" in refused(
        lambda: unpickle(PICKLES[name], PLACE, "batch", opcodes=opcodes)
    )


def test_an_honest_batch_of_official_length_has_fewer_opcodes_than_are_read() -> None:
    """Also pickled by Python 3 in a protocol before 3, which spells each file name as a call."""
    batch = {
        "batch_label": b"training batch 1 of 5",
        "labels": [7] * 10_000,
        "data": np.zeros((10_000, 3072), np.uint8),
        "filenames": [f"leptodactylus_pentadactylus_s_{number:06}.png".encode() for number in range(10_000)],
    }
    for protocol in (2, 4):
        raw = pickle.dumps(batch, protocol=protocol)
        done = measured(lambda raw=raw: unpickle(raw, PLACE, "x", opcodes=cifar.MAX_OPCODES + 10_000 * cifar.OPCODES))
        assert done.error is None
        assert done.seconds < 2


def header(name: bytes, size: int, kind: bytes = b"0") -> bytes:
    """A member's header with a right checksum."""
    block = bytearray(tarfile.TarInfo(name[:90].decode()).tobuf(tarfile.GNU_FORMAT))
    block[124:136] = b"%011o\0" % size if size < 8**11 else b"\x80" + size.to_bytes(11, "big")
    block[156:157] = kind
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def zeros(number: int) -> bytes:
    """A gzip file of zeros, made in pieces."""
    engine, piece = zlib.compressobj(1, wbits=31), bytes(2**20)
    return b"".join(engine.compress(piece) for _ in range(number // 2**20)) + engine.flush()


EMPTY, PAX = gzip.compress(b""), b"20 comment=aaaaaaaa\n" + bytes(492)
ARCHIVES: dict[str, Callable[[], bytes]] = {
    "a long name": lambda: gzip.compress(header(b"././@LongLink", 2**28, b"L") + b"a" * 2**27, 1),
    "a long link": lambda: gzip.compress(header(b"././@LongLink", 2**28, b"K") + b"a" * 2**27, 1),
    "a long extended header": lambda: gzip.compress(header(b"x", 2**28, b"x") + b"a" * 2**27, 1),
    "names upon names": lambda: gzip.compress((header(b"././@LongLink", 512, b"L") + b"a" * 512) * 50_000, 1),
    "many members": lambda: gzip.compress(header(b"x", 0) * 100_000, 1),
    "many extended headers": lambda: gzip.compress((header(b"x", 20, b"x") + PAX) * 9000, 1),
    "a member of 8 EB": lambda: gzip.compress(header(b"cifar-10-batches-bin/data_batch_1.bin", 2**63), 1),
    "a negative size": lambda: gzip.compress(header(b"x", 0).replace(b"00000000000\0", b"-0000000001\0", 1) * 9, 1),
    "an unwanted member that inflates": lambda: gzip.compress(header(b"x", 2**33), 1) + zeros(2**28),
    "zeros": lambda: zeros(2**28),
    "empty parts": lambda: EMPTY * 500_000,
    "padding": lambda: EMPTY + bytes(2**26),
    "a name without end in gzip": lambda: b"\x1f\x8b\x08\x08\0\0\0\0\0\0" + b"a" * 2**25,
    "a wanted member twice": lambda: gzip.compress(
        (header(b"cifar-10-batches-bin/data_batch_1.bin", 12292) + bytes(12800)) * 300, 1
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ARCHIVES)
def test_a_hostile_archive_takes_little(name: str, tmp_path: Path) -> None:
    path = tmp_path / "cifar-10-binary.tar.gz"
    path.write_bytes(ARCHIVES[name]())
    refused(lambda: cifar.binary_form(SMALL10, "x").read(path))


def test_a_hostile_archive_of_pictures_takes_little(tmp_path: Path) -> None:
    path = tmp_path / "CINIC-10.tar.gz"
    path.write_bytes(gzip.compress(header(b"valid/cat/x.png", 0) * 101_000, 1))
    assert "more members than this data set" in refused(lambda: cinic.cinic_form(SMALL_CINIC).read(path))
    path.write_bytes(gzip.compress(header(b"train/cat/x.png", 2**25) + bytes(2**25), 1))
    assert "expected at most 32,768" in refused(lambda: cinic.cinic_form(SMALL_CINIC).read(path))


def test_names_of_members_in_extended_headers_and_long_ones_are_read(tmp_path: Path) -> None:
    for number, form in enumerate((tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT)):
        path = tmp_path / f"{number}.tar.gz"
        names = ["short", f"{'d' * 90}/{'f' * 60}", "ünïcode" if form != tarfile.USTAR_FORMAT else "x"]
        with tarfile.open(path, "w:gz", format=form) as tar:
            for name in names:
                member = tarfile.TarInfo(name)
                member.size, member.mtime = 3, 1.5 if form == tarfile.PAX_FORMAT else 1
                tar.addfile(member, io.BytesIO(b"abc"))
        assert list(tar_files(path, lambda name, size: True, others=0)) == [(name, b"abc") for name in names]


# --- what lies in folders of pictures ------------------------------------------------------------------------------


def png(width: int, height: int, content: bytes = b"", kind: int = 2) -> bytes:
    """A PNG whose header claims a size."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    about = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", about) + chunk(b"IDAT", content) + chunk(b"IEND", b"")


def jpeg_of_scans(number: int) -> bytes:
    """A progressive JPEG whose last scan is there many times."""
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((2000, 2000, 3), np.uint8)).save(buffer, "JPEG", progressive=True)
    whole = buffer.getvalue()
    last = whole.rindex(b"\xff\xda")
    return whole[:last] + whole[last:-2] * number + whole[-2:]


def bound_socket(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path)


PICTURES: dict[str, Callable[[Path], object]] = {
    "a FIFO": os.mkfifo,
    "a folder": os.mkdir,
    "a link to itself": lambda path: path.symlink_to(path),
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a socket": lambda path: bound_socket(os.path.relpath(path)),
    "a huge header": lambda path: path.write_bytes(png(2**31 - 1, 2**31 - 1)),
    "a large header": lambda path: path.write_bytes(png(12_000, 12_000)),
    "a picture that inflates": lambda path: path.write_bytes(png(2048, 2048, zlib.compress(bytes(2**27), 1))),
    "a text that inflates": lambda path: path.write_bytes(
        png(8, 8)[:33] + b"\x00\x04\x00\x00zTXtx\0\0" + zlib.compress(bytes(2**27), 1)
    ),
    "a file of 10 GB": lambda path: (path.touch(), os.truncate(path, 10**10)),
    "many scans": lambda path: path.write_bytes(jpeg_of_scans(50_000)),
    "a program in PostScript": lambda path: path.write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n(x) print\n%%EOF\n"
    ),
    "nothing": lambda path: path.touch(),
}


@pytest.mark.parametrize("place", ["train/ant/0.png", "train/ant/y.png"])
@pytest.mark.parametrize("name", PICTURES)
def test_what_is_no_picture_is_named_in_one_line(
    name: str, place: str, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    shutil.copytree(whole / "own", tmp_path / "own")
    PICTURES[name](tmp_path / "own" / place)
    assert place in refused(lambda: load(f"folder:{tmp_path / 'own'}"))


def test_small_files_that_claim_large_pictures_are_refused_before_there_is_room(tmp_path: Path) -> None:
    black = io.BytesIO()
    Image.fromarray(np.zeros((2000, 2000, 3), np.uint8)).save(black, "PNG")
    for part in ("train", "test"):
        (tmp_path / part / "cat").mkdir(parents=True)
        for number in range(60):
            (tmp_path / part / "cat" / f"{number}.png").write_bytes(black.getvalue())
    assert "60 images of 2000 x 2000 pixels" in refused(lambda: load(f"folder:{tmp_path}"))


def test_links_in_a_circle_are_no_classes(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "test").mkdir()
    (tmp_path / "train" / "cat").symlink_to(tmp_path / "train")
    (tmp_path / "train" / "dog").symlink_to(tmp_path / "train" / "dog")
    refused(lambda: load(f"folder:{tmp_path}"))
