"""Warnings that point at the user's own code."""

import contextlib
import sys
import sysconfig
import warnings
from pathlib import Path

PACKAGE = str(Path(__file__).parents[1])
BETWEEN = (
    PACKAGE,
    str(contextlib.__file__),
    *(f"{sysconfig.get_paths()[name]}/torch/" for name in ("purelib", "platlib")),
)
"""Where code lies that stands between a user's call and a warning."""


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line of the user's that called the library, however many of our functions lie in between."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(BETWEEN):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
