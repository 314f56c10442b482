"""Encoded pictures (PNG, JPEG, ...) into one array of pixels."""

import io
import os
import struct
import warnings
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ccvr.core.errors import DataError
from ccvr.core.files import read_bytes, require_file

# What Pillow's decoders let through for a damaged picture; UnidentifiedImageError is an OSError.
PICTURE_ERRORS = (OSError, EOFError, SyntaxError, ValueError, struct.error, zlib.error, Image.DecompressionBombError)
GREY_MODES = {"1", "L", "LA"}
COLOUR_MODES = {"P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr"}
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF")
"""Kinds of files that are read; some of the others that Pillow knows call programs."""
MAX_BYTES = 2**25
"""Of the file of one picture."""
MAX_PIXELS = 2**22
"""Of one picture."""
SCAN, MAX_SCANS = b"\xff\xda", 100
"""The mark of a scan in a JPEG: each is another pass over all pixels."""
ROOM, RATIO = 2**26, 200
"""Pictures may take so many bytes, and so many more for each byte of their files."""
CHUNK = 256

Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Look:
    """What all pictures of a data set are: grey ("L") or "RGB", and (width, height)."""

    mode: str
    size: tuple[int, int]

    def empty(self, count: int) -> Pixels:
        """Room for ``count`` pictures, [count, channels, height, width]."""
        width, height = self.size
        return np.empty((count, 1 if self.mode == "L" else 3, height, width), np.uint8)


@contextmanager
def quiet() -> Iterator[None]:
    """Without Pillow's warnings of what it reads all the same. Not for threads: all share one list of filters."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _opened(content: bytes, name: Path | str) -> Iterator[Image.Image]:
    """A picture of 8 bits a channel; an error while it is read names it."""
    try:
        if content.count(SCAN) > MAX_SCANS:
            raise ValueError(f"it has more than {MAX_SCANS} scans")
        with Image.open(io.BytesIO(content), formats=FORMATS) as picture:
            if picture.mode not in GREY_MODES | COLOUR_MODES:
                raise DataError(
                    f"{name} has pixels of kind {picture.mode}. Convert it to 8 bits a channel, grey or RGB."
                )
            width, height = picture.size
            if width * height > MAX_PIXELS:
                raise DataError(f"{name} is {width} x {height} pixels, at most {MAX_PIXELS:,} in all. Scale it down.")
            yield picture
    except PICTURE_ERRORS as error:
        raise DataError(
            f"{name} cannot be read as an image ({type(error).__name__}). Replace it or remove it."
        ) from error


def _content(path: Path) -> bytes:
    try:
        return read_bytes(path, MAX_BYTES)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as an image ({error}). Replace it or remove it.") from error


def look_of(path: Path) -> Look:
    """The look of one picture, which the others of its data set must share."""
    with quiet(), _opened(_content(path), path) as picture:
        return Look("L" if picture.mode in GREY_MODES else "RGB", picture.size)


def decode(content: bytes, name: Path | str, look: Look, out: Pixels) -> None:
    """Write the pixels of one picture into ``out`` [channels, height, width]."""
    with _opened(content, name) as picture:
        if picture.size != look.size:
            found, wanted = ("{} x {}".format(*size) for size in (picture.size, look.size))
            raise DataError(
                f"{name} is {found} pixels, expected {wanted} like the others. Scale all images to one size."
            )
        pixels = np.asarray(picture.convert(look.mode))
    out[:] = pixels if look.mode == "L" else pixels.transpose(2, 0, 1)


def decode_all(paths: Sequence[Path], look: Look) -> Pixels:
    """All pictures in one array; threads help, since Pillow decodes outside of the interpreter lock."""
    _require_plausible(paths, look)
    images = look.empty(len(paths))

    def chunk(start: int) -> None:
        for row, path in enumerate(paths[start : start + CHUNK], start):
            decode(_content(path), path, look, images[row])

    fitting = max(1, ROOM // (4 * look.size[0] * look.size[1]))  # pictures that are decoded at a time
    with quiet(), ThreadPoolExecutor(min(16, os.cpu_count() or 1, fitting)) as pool:
        for _ in pool.map(chunk, range(0, len(paths), CHUNK)):
            pass
    return images


def _require_plausible(paths: Sequence[Path], look: Look) -> None:
    """Refuse small files that claim large pictures, before there is room for all of them."""
    width, height = look.size
    channels = 1 if look.mode == "L" else 3
    wanted = len(paths) * width * height * channels
    stored = 0
    for path in paths:
        try:
            stored += require_file(path).st_size
        except (OSError, ValueError) as error:
            raise DataError(f"{path} cannot be read as an image ({error}). Replace it or remove it.") from error
    if wanted > ROOM + RATIO * stored:
        raise DataError(
            f"{len(paths):,} images of {width} x {height} pixels as in {paths[0]} take {wanted:,} bytes, their files "
            f"have {stored:,}. Scale the images down, or store them with less compression."
        )
