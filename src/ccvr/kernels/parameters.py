"""Arrays that a kernel is given."""

from typing import Any

import halide as hl


def array(name: str, *extents: int | None, kind: Any = None) -> Any:
    """A contiguous input, innermost dimension first; None is an extent that is not known when the kernel compiles."""
    parameter, stride = hl.ImageParam(kind or hl.Float(32), len(extents), name), 1
    for number, extent in enumerate(extents):
        dimension = parameter.dim(number)
        dimension.set_min(0)
        if extent is not None:
            dimension.set_extent(extent)
        if number:
            dimension.set_stride(stride)
        stride *= extent or 1
    return parameter
