"""Encoded pictures (PNG, JPEG, ...) into one array of pixels."""

import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ccvr.core.errors import DataError

# What Pillow's decoders let through for a damaged picture; UnidentifiedImageError is an OSError.
PICTURE_ERRORS = (OSError, EOFError, SyntaxError, ValueError, struct.error, zlib.error, Image.DecompressionBombError)
GREY_MODES = {"1", "L", "LA"}
COLOUR_MODES = {"P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr"}
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
def _opened(file: Path | IO[bytes], name: Path | str) -> Iterator[Image.Image]:
    """A picture of 8 bits a channel; an error while it is read names it."""
    try:
        with Image.open(file) as picture:
            if picture.mode not in GREY_MODES | COLOUR_MODES:
                raise DataError(
                    f"{name} has pixels of kind {picture.mode}. Convert it to 8 bits a channel, grey or RGB."
                )
            yield picture
    except PICTURE_ERRORS as error:
        raise DataError(
            f"{name} cannot be read as an image ({type(error).__name__}). Replace it or remove it."
        ) from error


def look_of(path: Path) -> Look:
    """The look of one picture, which the others of its data set must share."""
    with _opened(path, path) as picture:
        return Look("L" if picture.mode in GREY_MODES else "RGB", picture.size)


def decode(file: Path | IO[bytes], name: Path | str, look: Look, out: Pixels) -> None:
    """Write the pixels of one picture into ``out`` [channels, height, width]."""
    with _opened(file, name) as picture:
        if picture.size != look.size:
            found, wanted = ("{} x {}".format(*size) for size in (picture.size, look.size))
            raise DataError(
                f"{name} is {found} pixels, expected {wanted} like the others. Scale all images to one size."
            )
        pixels = np.asarray(picture.convert(look.mode))
    out[:] = pixels if look.mode == "L" else pixels.transpose(2, 0, 1)


def decode_all(paths: Sequence[Path], look: Look) -> Pixels:
    """All pictures in one array; threads help, since Pillow decodes outside of the interpreter lock."""
    images = look.empty(len(paths))

    def chunk(start: int) -> None:
        for row, path in enumerate(paths[start : start + CHUNK], start):
            decode(path, path, look, images[row])

    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        for _ in pool.map(chunk, range(0, len(paths), CHUNK)):
            pass
    return images
