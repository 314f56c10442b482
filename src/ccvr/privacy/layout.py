"""Class statistics as one vector of integers modulo 2⁶⁴, and back. Nothing else in this folder knows what they hold.

The vector is count [C], clients [C], withheld [1], total [C d], and of the second moments what differs: the upper
triangle of each symmetric matrix. All of it adds up, so a sum of vectors is the vector of the sum.
"""

import hashlib
import json
import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ccvr.core.errors import SecureAggregationError
from ccvr.privacy.settings import FixedPoint, Settings
from ccvr.statistics.kinds import Kind, find_kind
from ccvr.statistics.moments import ClassStatistics
from ccvr.statistics.source import identity

Vector: TypeAlias = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Encoded:
    """The vector of one client, and how many of its numbers were clipped."""

    vector: Vector
    clipped: int


def digest(statistics: ClassStatistics) -> bytes:
    """32 bytes that differ where statistics do not add up."""
    names = identity(statistics.kind, statistics.source, statistics.num_classes, statistics.num_features)
    return hashlib.sha256(json.dumps(names, sort_keys=True).encode()).digest()


def length(like: ClassStatistics) -> int:
    """How many numbers the vector has."""
    c, d, shape = like.num_classes, like.num_features, _shape(like)
    seconds = math.prod(shape[:-2]) * d * (d + 1) // 2 if find_kind(like.kind).square else math.prod(shape)
    return 2 * c + 1 + c * d + seconds


def _shape(like: ClassStatistics) -> tuple[int, ...]:
    """The shape of the second moments that are summed; clients send Σ n mu muᵀ where the server cannot make it."""
    c, d, kind = like.num_classes, like.num_features, find_kind(like.kind)
    return (c, d, d) if kind.made_of_means else kind.shape(c, d)


def to_vector(statistics: ClassStatistics, settings: Settings) -> Encoded:
    """The vector of one client's statistics.

    Raises:
        SecureAggregationError: more samples than the settings allow, or statistics of several clients.
    """
    kind = find_kind(statistics.kind)
    samples = int(statistics.count.sum() + statistics.withheld)
    if samples > settings.max_samples:
        raise SecureAggregationError(
            f"this client has {samples:,} samples, and max_samples is {settings.max_samples:,}. "
            "Collect from fewer, or agree on a larger max_samples."
        )
    if (statistics.clients > 1).any():
        raise SecureAggregationError("these are statistics of several clients. Mask those of each client.")
    second = statistics.second
    if not second.numel():  # one client's means have none
        second = kind.of_means(statistics.count, statistics.total)
    parts = [
        (statistics.count, settings.counts),
        (statistics.clients, settings.counts),
        (statistics.withheld, settings.counts),
        (statistics.total, settings.totals),
        (_triangles(kind, second), settings.seconds),
    ]
    encoded = [_to_integers(part, fixed) for part, fixed in parts]
    vector = np.concatenate([integers for integers, _ in encoded]).view(np.uint64)
    return Encoded(vector, sum(clipped for _, clipped in encoded))


def _triangles(kind: Kind, second: Tensor) -> Tensor:
    if not kind.square:
        return second
    d = second.shape[-1]
    rows, columns = torch.triu_indices(d, d)
    return second[..., rows, columns]


def _to_integers(part: Tensor, fixed: FixedPoint) -> tuple[npt.NDArray[np.int64], int]:
    numbers = part.detach().to(torch.float64).flatten().numpy()
    most = float(fixed.most)
    clipped = int((np.abs(numbers) > most * (1 + 1e-9)).sum())  # float32 features at the bound, rounded up, are at it
    integers = np.rint(np.ldexp(np.clip(numbers, -most, most), fixed.bits))
    return np.clip(integers.astype(np.int64), -fixed.limit, fixed.limit), clipped


def from_vector(vector: Vector, like: ClassStatistics, settings: Settings, num_clients: int) -> ClassStatistics:
    """The statistics of a sum of ``num_clients`` vectors.

    Raises:
        SecureAggregationError: numbers that no such sum has, as where masks were not taken off.
    """
    c, d, kind = like.num_classes, like.num_features, find_kind(like.kind)
    count, clients, withheld, total, second = np.split(vector.view(np.int64), np.cumsum([c, c, 1, c * d]))
    whole = np.concatenate([count, clients, withheld])
    parts = ((whole, settings.counts), (total, settings.totals), (second, settings.seconds))
    possible = all(_within(part, num_clients * fixed.limit) for part, fixed in parts)
    signs = kind.exact and (count.min() < 0 or (clients > count).any())
    if not possible or signs or clients.min() < 0 or clients.max() > num_clients or withheld[0] < 0:
        raise SecureAggregationError(
            "the sum holds numbers that no such clients have: some masks do not cancel. "
            "A client or the server did not follow the protocol. Begin again without it."
        )
    return ClassStatistics.of_sums(
        like.kind,
        like.source,
        torch.from_numpy(count.copy()),
        _to_floats(total, settings.totals).reshape(c, d),
        _matrices(_to_floats(second, settings.seconds), kind, _shape(like)),
        torch.from_numpy(clients.copy()),
        torch.tensor(int(withheld[0])),
        like.projection,
    )


def _within(integers: npt.NDArray[np.int64], most: int) -> bool:
    return not len(integers) or (int(integers.min()) >= -most and int(integers.max()) <= most)


def _to_floats(integers: npt.NDArray[np.int64], fixed: FixedPoint) -> Tensor:
    return torch.from_numpy(np.ldexp(integers.astype(np.float64), -fixed.bits))


def _matrices(numbers: Tensor, kind: Kind, shape: tuple[int, ...]) -> Tensor:
    if not kind.square:
        return numbers.reshape(shape)
    d = shape[-1]
    rows, columns = torch.triu_indices(d, d)
    matrices = torch.empty(shape, dtype=torch.float64)
    packed = numbers.reshape(*shape[:-2], -1)
    matrices[..., rows, columns] = packed
    matrices[..., columns, rows] = packed
    return matrices
