"""Class statistics as bytes: only the classes that are there, scatter centred and packed as a triangle.

Raw sums in float32 would cancel, so what travels is the mean (float64) and the centred scatter W = Σ (z − mu)(z − mu)ᵀ.
What arrives is untrusted: every number is looked at before it can reach a sum, and sizes before memory is asked for.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ccvr.core.errors import CcvrError, StatisticsError
from ccvr.models.random_features import Projection
from ccvr.models.tensor_file import read_header, tensors_from_bytes, tensors_to_bytes
from ccvr.models.transform import FeatureTransform
from ccvr.statistics.kinds import KINDS, find_kind
from ccvr.statistics.source import Source

FORMAT = "ccvr-statistics/2"
MAX_CLASSES = 10**6
MAX_NUMBERS = 2**31
"""Numbers of second moments in memory: 16 GiB in float64."""
MAX_COUNT = 10**9
"""Samples of a class that one client may have, and samples that it may withhold."""
MAX_CLIENTS = 10**6
"""Sums of so many clients' counts are read, whatever each may say, and float64 holds them exactly."""
MAX_MAGNITUDE = 1e9
"""Of a mean, and of a standard deviation: no trained feature comes near, and float64 sums of them stay exact enough."""
JITTER = 1e-5
ROUNDING = 4 * torch.finfo(torch.float64).eps
"""Of a scatter against n |mu|², of which it is what is left when the mean is taken away."""


@dataclass(frozen=True)
class Parts:
    """What travels of each class that is there, [P] and [P, d]."""

    classes: Tensor
    count: Tensor
    mean: Tensor
    clients: Tensor
    withheld: int


def payload_bytes(kind: str, num_present: int, num_features: int, *, width: int = 4) -> int:
    """Bytes of one client's tensors: label, count and mean in 8-byte numbers, the scatter in ``width``-byte ones."""
    scatter = 0 if find_kind(kind).made_of_means else _num_rows(kind, num_present) * _row_length(kind, num_features)
    return num_present * (8 + 8 + 8 * num_features) + width * scatter


def _num_rows(kind: str, num_present: int) -> int:
    return num_present if find_kind(kind).by_class else min(1, num_present)


def _row_length(kind: str, d: int) -> int:
    return d * (d + 1) // 2 if find_kind(kind).square else d


# --- out ------------------------------------------------------------------------------------------------------------


def encode(
    kind: str,
    source: Source,
    num_classes: int,
    parts: Parts,
    scatters: Iterable[Tensor],
    projection: Projection | None,
    *,
    dtype: torch.dtype | None,
) -> bytes:
    """The blob; ``scatters`` come row by row and are packed as they come."""
    d = parts.mean.shape[1]
    square = find_kind(kind).square
    packed, fits = _pack(scatters, d, _rounding(kind, parts), square=square)
    tensors = {"classes": parts.classes, "count": parts.count, "mean": parts.mean}
    if (parts.clients > 1).any():
        tensors["clients"] = parts.clients
    if packed is not None:
        tensors["scatter"] = packed.to(dtype or (torch.float32 if fits else torch.float64))
    header: dict[str, Any] = {"kind": kind, "num_classes": num_classes, "num_features": d, "withheld": parts.withheld}
    header |= {"model": source.model, "head": source.head, "taps": list(source.taps), "transform": source.transform}
    if projection is not None:
        tensors |= {"projection_mean": projection.mean, "projection_std": projection.std}
        header |= {"projection": source.projection, "bandwidth": projection.bandwidth, "seed": projection.seed}
    return tensors_to_bytes(tensors, format=FORMAT, **header)


def _pack(scatters: Iterable[Tensor], d: int, slack: Tensor, *, square: bool) -> tuple[Tensor | None, bool]:
    """All rows, and whether each is still a covariance when it is rounded to float32."""
    rows, columns = torch.triu_indices(d, d)
    packed, fits = [], True
    for scatter, most in zip(scatters, slack.tolist(), strict=False):  # of means there may be none
        row = scatter[rows, columns] if square else scatter
        fits = fits and _is_covariance(unpack(row.float(), d) if square else row, most)
        packed.append(row)
    return (torch.stack(packed) if packed else None), fits


def unpack(row: Tensor, d: int) -> Tensor:
    """The symmetric matrix [d, d] of its packed upper triangle, float64."""
    rows, columns = torch.triu_indices(d, d)
    matrix = torch.empty(d, d, dtype=torch.float64)
    matrix[rows, columns] = matrix[columns, rows] = row.to(torch.float64)
    return matrix


def _rounding(kind: str, parts: Parts) -> Tensor:
    """What float64 may have left in each scatter: features that hardly vary leave little else."""
    of_classes = ROUNDING * parts.count * parts.mean.square().sum(1)
    return of_classes if find_kind(kind).by_class else of_classes.sum(0, keepdim=True)[: len(of_classes)]


def _is_covariance(scatter: Tensor, rounding: float) -> bool:
    """Whether Cholesky of S + (1e-5 tr(S)/d + rounding) I succeeds; a diagonal must not be negative; zeros are fine."""
    if scatter.dim() == 1:
        return bool((scatter >= 0).all())
    if not scatter.any():
        return True
    trace = scatter.trace()
    if not trace > 0:
        return False
    shift = JITTER * trace / len(scatter) + rounding
    shifted = scatter + shift * torch.eye(len(scatter), dtype=torch.float64)
    return int(torch.linalg.cholesky_ex(shifted / shifted.trace()).info) == 0


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
    packed: Tensor | None

    def scatters(self) -> Iterator[Tensor]:
        """Row by row, [d, d] or [d], float64."""
        for row in self.packed if self.packed is not None else ():
            yield unpack(row, self.num_features) if find_kind(self.kind).square else row.to(torch.float64)


def decode(blob: bytes, *, kind: str = "") -> Decoded:
    """Read a blob; whatever ``encode`` never writes is refused with its reason.

    Kinds of ours are known, and the one that was asked for: what bytes name is never imported.
    """
    try:
        header, shapes = read_header(blob, format=FORMAT)
        _require_sizes(header, shapes, (*KINDS, kind))
        _, tensors = tensors_from_bytes(blob, format=FORMAT)
        return _checked(header, tensors)
    except (LookupError, TypeError, ValueError, OverflowError, RuntimeError, MemoryError, CcvrError) as error:
        reason = str(error).partition("\n")[0].removesuffix(".")
        raise StatisticsError(f"these bytes are not class statistics ({reason}).") from error


def _require_sizes(header: dict[str, Any], shapes: dict[str, list[int]], known: tuple[str, ...]) -> None:
    """Refuse sizes that do not belong together, or to nothing that fits: before anything of that size is made."""
    kind, num_classes, d = header["kind"], header["num_classes"], header["num_features"]
    if kind not in known:
        raise ValueError(f"unknown kind {kind!r}")
    if type(num_classes) is not int or type(d) is not int or not (0 < num_classes <= MAX_CLASSES and 0 < d < 10**6):
        raise ValueError(f"{num_classes} classes of {d} features")
    row = find_kind(kind)
    shape = row.merged_shape(num_classes, d) if "scatter" in shapes else row.shape(num_classes, d)
    if math.prod(shape) > MAX_NUMBERS:
        raise ValueError(f"{kind} statistics of {num_classes} classes and {d} features are too large")
    present = shapes["classes"][0] if len(shapes["classes"]) == 1 else -1
    expected = {"classes": [present], "count": [present], "mean": [present, d]}
    optional = {"clients": [present], "scatter": [_num_rows(kind, present), _row_length(kind, d)]}
    if not row.made_of_means and present:
        expected["scatter"] = optional.pop("scatter")
    if row.projected:
        p = shapes["projection_mean"]
        expected |= {"projection_mean": p, "projection_std": p}
        if len(p) != 1 or p[0] * d > MAX_NUMBERS:
            raise ValueError(f"random features of shape {p}")
    wrong = [name for name, shape in shapes.items() if shape != {**optional, **expected}.get(name)]
    missing = expected.keys() - shapes.keys()
    if wrong or missing or present > num_classes:
        name = min(missing, default=None) or min(wrong, default="classes")
        raise ValueError(f"{present} of {num_classes} classes with {name} of shape {shapes.get(name)}")


DTYPES = {"classes": "int64", "count": "int64", "clients": "int64", "scatter": "float32 or float64"}


def _checked(header: dict[str, Any], tensors: dict[str, Tensor]) -> Decoded:
    kind, num_classes, d = header["kind"], header["num_classes"], header["num_features"]
    for name, tensor in tensors.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in DTYPES.get(name, "float64").split(" or "):
            raise ValueError(f"{name} of type {dtype}, not {DTYPES.get(name, 'float64')}")
    classes, count, mean = (tensors[name] for name in ("classes", "count", "mean"))
    clients = tensors.get("clients", torch.ones_like(count))
    if len(classes) and (classes[0] < 0 or classes[-1] >= num_classes or (classes.diff() <= 0).any()):
        raise ValueError(f"classes {classes.tolist()} of {num_classes}: outside, twice or not in order")
    exact = find_kind(kind).exact
    if (clients < 1).any() or (clients > MAX_CLIENTS).any() or (exact and ((count < 1) | (clients > count)).any()):
        raise ValueError("a count that cannot be")
    if (count.abs() > clients * MAX_COUNT).any():
        raise ValueError(f"more than {MAX_COUNT:,} samples of a class from one client")
    withheld = header["withheld"]
    if type(withheld) is not int or not 0 <= withheld <= MAX_CLIENTS * MAX_COUNT:
        raise ValueError(f"{withheld!r} samples withheld")
    _require_numbers(mean, MAX_MAGNITUDE, "a mean")
    found = Decoded(
        kind,
        _source(header),
        num_classes,
        d,
        Parts(classes, count, mean, clients, withheld),
        _projection(header, tensors) if find_kind(kind).projected else None,
        tensors.get("scatter"),
    )
    _require_covariances(found)
    return found


def _require_numbers(numbers: Tensor, most: float, what: str) -> None:
    if not numbers.isfinite().all():
        raise ValueError(f"{what} is not finite")
    if numbers.numel() and numbers.abs().max() > most:
        raise ValueError(f"{what} is as large as {numbers.abs().max():.3g}; the most is {most:.3g}")


def _require_covariances(found: Decoded) -> None:
    if found.packed is None:
        return
    kind = find_kind(found.kind)
    by_class = kind.by_class
    counts = found.parts.count.abs().clamp(min=1)
    counts = counts if by_class else counts.sum().unsqueeze(0)
    singles = kind.spread_over(found.parts.count, found.parts.clients)
    rounding = _rounding(found.kind, found.parts).tolist()
    for index, (row, scatter) in enumerate(zip(found.packed, found.scatters(), strict=True)):
        where = f"the scatter of class {int(found.parts.classes[index])}" if by_class else "the pooled scatter"
        _require_numbers(row, MAX_MAGNITUDE**2 * float(counts[index]), where)
        if not kind.exact:
            continue
        if not _is_covariance(scatter, rounding[index]):
            raise ValueError(f"{where} is not that of any features: it is indefinite")
        alone = bool(singles[index] == 1) if by_class else bool((singles == 1).all())
        if alone and row.any():
            raise ValueError(f"{where} is not zero for a single sample")


def _source(header: dict[str, Any]) -> Source:
    texts = [header["model"], header["head"], header["transform"], header.get("projection", ""), *header["taps"]]
    if not all(isinstance(text, str) and len(text) <= 1000 for text in texts) or len(texts) > 1000:
        raise ValueError("a source that is not text")
    FeatureTransform.parse(header["transform"])
    return Source(texts[0], texts[1], tuple(header["taps"]), texts[2], texts[3])


def _projection(header: dict[str, Any], tensors: dict[str, Tensor]) -> Projection:
    mean, std = tensors["projection_mean"], tensors["projection_std"]
    _require_numbers(mean, MAX_MAGNITUDE, "the mean of a layer")
    _require_numbers(std, 2 * MAX_MAGNITUDE, "the deviation of a layer")  # within classes and between them
    if not (std > 0).all() or type(header["seed"]) is not int or not 0 <= header["seed"] < 2**63:
        raise ValueError("random features that cannot be")
    return Projection(mean, std, header["num_features"], float(header["bandwidth"]), header["seed"])
