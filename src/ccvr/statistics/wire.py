"""Class statistics as bytes: only the classes that are there, the scatter centred and as a factor.

Raw sums in float32 would cancel, so what travels is the mean (float64) and the centred scatter W = Σ (z − mu)(z − mu)ᵀ.
Of kinds of ours that hold matrices it travels as R of W = RᵀR, upper-trapezoidal with at most n − 1 rows: whatever the
numbers are, W is a scatter of n samples. Format 2, which is still read, held W itself; so do kinds of a user's own.

What arrives is untrusted: every number is looked at before it can reach a sum. Memory is asked for in proportion to the
bytes that came and, for counts, to the number of classes, at most 16 MB.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ccvr.core.errors import CcvrError, StatisticsError
from ccvr.models.random_features import Projection
from ccvr.models.tensor_file import read_header, require_checksum, tensors_from_bytes, with_checksum
from ccvr.models.transform import FeatureTransform
from ccvr.statistics.kinds import KINDS, Kind, find_kind
from ccvr.statistics.limits import (
    MAX_CLASSES,
    MAX_CLIENTS,
    MAX_COUNT,
    MAX_FEATURES,
    MAX_MAGNITUDE,
    require_numbers,
    require_possible,
)
from ccvr.statistics.packing import (
    ROUNDING,
    fits_float32,
    is_covariance,
    length_of_trapezoid,
    pack_trapezoid,
    pack_triangle,
    unpack_trapezoid,
    unpack_triangle,
)
from ccvr.statistics.source import Source

FORMAT = "ccvr-statistics/3"
BEFORE = "ccvr-statistics/2"
MAX_HEADER = 10**6
"""Bytes. Ours have some hundred, more where many layers are read."""


@dataclass(frozen=True)
class Parts:
    """What travels of each class that is there, [P] and [P, d]."""

    classes: Tensor
    count: Tensor
    mean: Tensor
    clients: Tensor
    withheld: int


def payload_bytes(
    kind: str, count: Tensor | Sequence[int], num_features: int, *, clients: Tensor | None = None, width: int = 4
) -> int:
    """Bytes of the tensors of one client with ``count`` [C] samples of each class.

    Label, count and mean are 8-byte numbers, those of the scatter have ``width`` bytes. ``clients`` [C]: how many
    clients gave samples of each class, of merged statistics.
    """
    counts = torch.as_tensor(count)
    present = counts != 0
    ones = torch.ones_like(counts)
    of = ones if clients is None else clients
    found, d, number = find_kind(kind), num_features, int(present.sum())
    if found.factored:
        scatter = sum(length_of_trapezoid(rank, d) for rank in ranks(found, counts[present], of[present], d))
    else:
        scatter = _num_rows(found, number) * _row_length(found, d)
    several = 8 * number if bool((of[present] > 1).any()) else 0
    return number * (8 + 8 + 8 * d) + several + width * scatter


def most_bytes(kind: str, num_samples: int, num_clients: int, num_classes: int, num_features: int) -> int:
    """The most that all clients together send of so many samples, however these are split."""
    found, d = find_kind(kind), num_features
    blocks = num_clients * (num_classes if found.by_class else 1)
    rows = float(_row_length(found, d))
    if found.factored:
        # A trapezoid grows more slowly with every row, so equal parts have the most numbers.
        rank = 0.0 if found.made_of_means else min(num_samples / blocks, d)
        rows = math.ceil(blocks * (rank * d - rank * (rank - 1) / 2)) / blocks
    return num_clients * num_classes * (8 + 8 + 8 * d) + round(4 * blocks * rows)


def ranks(kind: Kind, count: Tensor, clients: Tensor, d: int) -> list[int]:
    """The most directions that the scatter of each block can have: n − 1 of each class, at most d."""
    freedom = kind.spread_over(count, clients).clamp(min=1) - 1
    if not kind.by_class:
        freedom = freedom.sum(0, keepdim=True)[: len(count)]
    most: list[int] = freedom.clamp(max=d).tolist()
    return most


def _num_rows(kind: Kind, num_present: int) -> int:
    return num_present if kind.by_class else min(1, num_present)


def _row_length(kind: Kind, d: int) -> int:
    return length_of_trapezoid(d, d) if kind.square else d


# --- out ------------------------------------------------------------------------------------------------------------


def encode(
    kind: str,
    source: Source,
    num_classes: int,
    parts: Parts,
    blocks: Iterable[Tensor],
    projection: Projection | None,
    *,
    dtype: torch.dtype | None,
) -> bytes:
    """The blob; ``blocks`` are factors or scatters, which come one by one and are packed as they come."""
    found, d = find_kind(kind), parts.mean.shape[1]
    tensors = {"classes": parts.classes, "count": parts.count, "mean": parts.mean}
    if (parts.clients > 1).any():
        tensors["clients"] = parts.clients
    name, packed = _packed(found, blocks, _rounding(found, parts), dtype)
    if packed is not None:
        tensors[name] = packed
    header: dict[str, Any] = {"kind": kind, "num_classes": num_classes, "num_features": d, "withheld": parts.withheld}
    header |= {"model": source.model, "head": source.head, "taps": list(source.taps), "transform": source.transform}
    if projection is not None:
        tensors |= {"projection_mean": projection.mean, "projection_std": projection.std}
        header |= {"projection": source.projection, "bandwidth": projection.bandwidth, "seed": projection.seed}
    return with_checksum(tensors, format=FORMAT, **header)


def _packed(
    kind: Kind, blocks: Iterable[Tensor], rounding: Tensor, dtype: torch.dtype | None
) -> tuple[str, Tensor | None]:
    """All blocks in one tensor, in float32 unless some would lose by it."""
    packed, fits = [], True
    if kind.factored:
        for factor in blocks:
            fits = fits and (dtype is not None or fits_float32(factor))
            packed.append(pack_trapezoid(factor))
        whole = torch.cat(packed) if packed else torch.zeros(0, dtype=torch.float64)
        return "factor", whole.to(dtype or (torch.float32 if fits else torch.float64))
    for scatter, most in zip(blocks, rounding.tolist(), strict=True):
        packed.append(pack_triangle(scatter))
        fits = fits and (not kind.square or _survives(packed[-1], len(scatter), most))
    if not packed:
        return "scatter", None
    return "scatter", torch.stack(packed).to(dtype or (torch.float32 if fits else torch.float64))


def _survives(packed: Tensor, d: int, rounding: float) -> bool:
    """Whether a scatter is still one when it is rounded to float32."""
    return is_covariance(unpack_triangle(packed.float(), d), d, rounding)


def _rounding(kind: Kind, parts: Parts) -> Tensor:
    """What float64 may have left in each scatter: features that hardly vary leave little else."""
    of_classes = ROUNDING * parts.count * parts.mean.square().sum(1)
    return of_classes if kind.by_class else of_classes.sum(0, keepdim=True)[: len(of_classes)]


# --- in -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Decoded:
    """A blob whose every number was looked at."""

    kind: str
    source: Source
    num_classes: int
    num_features: int
    parts: Parts
    projection: Projection | None
    factors: Sequence[Tensor]
    """R [r, d] of each block, float64, where the scatter came as that."""
    scatters: Sequence[Tensor]
    """W [d, d] or its diagonal [d] of each block, float64, where it came as that."""


def decode(blob: bytes, *, kind: str = "") -> Decoded:
    """Read a blob; whatever ``encode`` never writes is refused with its reason.

    Kinds of ours are known, and the one that was asked for: what bytes name is never imported.
    """
    try:
        header, shapes = read_header(blob, format=(FORMAT, BEFORE), most=MAX_HEADER)
        _require_sizes(header, shapes, (*KINDS, kind))
        if header["format"] == FORMAT:
            require_checksum(blob, header)
        _, tensors = tensors_from_bytes(blob, format=header["format"])
        return _checked(header, tensors)
    except (LookupError, TypeError, ValueError, OverflowError, RuntimeError, MemoryError, CcvrError) as error:
        reason = str(error).partition("\n")[0].removesuffix(".")
        raise StatisticsError(f"these bytes are not class statistics ({reason}).") from error


def _require_sizes(header: dict[str, Any], shapes: dict[str, list[int]], known: tuple[str, ...]) -> None:
    """Refuse sizes that do not belong together before anything of that size is made."""
    name, num_classes, d = header["kind"], header["num_classes"], header["num_features"]
    if name not in known:
        raise ValueError(f"unknown kind {name!r}")
    whole = type(num_classes) is int and type(d) is int
    if not whole or not (0 < num_classes <= MAX_CLASSES and 0 < d < MAX_FEATURES):
        raise ValueError(f"{num_classes} classes of {d} features")
    if header["format"] == BEFORE and "checksum" in header:
        raise ValueError("a checksum in a format without")
    kind, present = find_kind(name), shapes["classes"][0] if len(shapes["classes"]) == 1 else -1
    expected = {"classes": [present], "count": [present], "mean": [present, d]}
    optional = {"clients": [present]}
    if kind.factored and header["format"] == FORMAT:
        expected["factor"] = shapes.get("factor", [])[:1]  # its length follows from the counts
    elif present:
        (optional if kind.made_of_means else expected)["scatter"] = [_num_rows(kind, present), _row_length(kind, d)]
    if kind.projected:
        p = shapes["projection_mean"]
        expected |= {"projection_mean": p, "projection_std": p}
        if len(p) != 1:
            raise ValueError(f"random features of layers of shape {p}")
    for name in {**expected, **shapes}:
        if shapes.get(name) != (expected | optional).get(name):
            raise ValueError(f"{present} of {num_classes} classes with {name} of shape {shapes.get(name)}")


DTYPES = dict.fromkeys(("classes", "count", "clients"), "int64") | dict.fromkeys(
    ("factor", "scatter"), "float32 or float64"
)


def _checked(header: dict[str, Any], tensors: dict[str, Tensor]) -> Decoded:
    for name, tensor in tensors.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in DTYPES.get(name, "float64").split(" or "):
            raise ValueError(f"{name} of type {dtype}, not {DTYPES.get(name, 'float64')}")
    kind, d = find_kind(header["kind"]), header["num_features"]
    parts = _parts(header, tensors, exact=kind.exact)
    source = _source(header)
    factors = _factors(tensors["factor"], ranks(kind, parts.count, parts.clients, d), d) if "factor" in tensors else []
    scatters = _scatters(kind, parts, tensors.get("scatter"), d)
    if kind.exact:
        spread = [factor.square().sum(0) for factor in factors] + [_diagonal(scatter) for scatter in scatters]
        squares = torch.stack(spread) if spread else torch.zeros(_num_rows(kind, len(parts.count)), d)
        require_possible(kind, source, parts.count, parts.mean, squares)
    projection = _projection(header, tensors) if kind.projected else None
    return Decoded(header["kind"], source, header["num_classes"], d, parts, projection, factors, scatters)


def _parts(header: dict[str, Any], tensors: dict[str, Tensor], *, exact: bool) -> Parts:
    num_classes = header["num_classes"]
    classes, count, mean = (tensors[name] for name in ("classes", "count", "mean"))
    clients = tensors.get("clients", torch.ones_like(count))
    if len(classes) and (classes[0] < 0 or classes[-1] >= num_classes or (classes.diff() <= 0).any()):
        raise ValueError(f"classes {classes[:10].tolist()} of {num_classes}: outside, twice or not in order")
    most = clients * MAX_COUNT
    if (clients < 1).any() or (clients > MAX_CLIENTS).any() or (exact and ((count < 1) | (clients > count)).any()):
        raise ValueError("a count that cannot be")
    if ((count > most) | (count < -most)).any():
        raise ValueError(f"more than {MAX_COUNT:,} samples of a class from one client")
    withheld = header["withheld"]
    most_clients = int(clients.max()) if len(clients) else 1
    if type(withheld) is not int or not 0 <= withheld <= most_clients * MAX_COUNT:
        raise ValueError(f"{withheld!r} samples withheld")
    require_numbers(mean, MAX_MAGNITUDE, "a mean")
    return Parts(classes, count, mean, clients, withheld)


def _factors(packed: Tensor, most: list[int], d: int) -> list[Tensor]:
    """R of each block, of the rank that its count allows."""
    lengths = [length_of_trapezoid(rank, d) for rank in most]
    if len(packed) != sum(lengths):
        raise ValueError(f"factors of {len(packed):,} numbers, where the counts allow {sum(lengths):,}")
    require_numbers(packed, 2 * MAX_MAGNITUDE * (MAX_CLIENTS * MAX_COUNT) ** 0.5, "a factor")
    if not len(packed):
        return []
    parts = packed.split(lengths)
    return [unpack_trapezoid(part, rank, d) for part, rank in zip(parts, most, strict=True)]


def _scatters(kind: Kind, parts: Parts, packed: Tensor | None, d: int) -> list[Tensor]:
    """W of each block, of format 2 and of kinds of a user's own; it is that of some samples."""
    if packed is None:
        return []
    counts = parts.count.abs().clamp(min=1)
    counts = counts if kind.by_class else counts.sum(0, keepdim=True)
    most, rounding = ranks(kind, parts.count, parts.clients, d), _rounding(kind, parts).tolist()
    found = []
    for block, row in enumerate(packed):
        where = f"the scatter of class {int(parts.classes[block])}" if kind.by_class else "the pooled scatter"
        require_numbers(row, MAX_MAGNITUDE**2 * float(counts[block]), where)
        scatter = unpack_triangle(row, d) if kind.square else row.to(torch.float64)
        found.append(scatter)
        if not kind.exact:
            continue
        if not (is_covariance(scatter, most[block], rounding[block]) if kind.square else (scatter >= 0).all()):
            raise ValueError(f"{where} is not that of any features: it is indefinite, or of too many directions")
        if not most[block] and row.any():
            raise ValueError(f"{where} is not zero for a single sample")
    return found


def _diagonal(scatter: Tensor) -> Tensor:
    return scatter if scatter.dim() == 1 else scatter.diagonal()


def _source(header: dict[str, Any]) -> Source:
    texts = [header["model"], header["head"], header["transform"], header.get("projection", ""), *header["taps"]]
    if not all(isinstance(text, str) and len(text) <= 1000 for text in texts) or len(texts) > 1000:
        raise ValueError("a source that is not text")
    FeatureTransform.parse(header["transform"])
    return Source(texts[0], texts[1], tuple(header["taps"]), texts[2], texts[3])


def _projection(header: dict[str, Any], tensors: dict[str, Tensor]) -> Projection:
    mean, std = tensors["projection_mean"], tensors["projection_std"]
    return Projection(mean, std, header["num_features"], header["bandwidth"], header["seed"])
