"""Class statistics as bytes: only the classes that are there, scatter centred and packed as a triangle.

Raw sums in float32 would cancel, so what travels is the mean (float64) and the centred scatter W = Σ (z − mu)(z − mu)ᵀ.
"""

from typing import Any

import torch
from torch import Tensor

from ccvr.core.errors import StatisticsError
from ccvr.models.tensor_file import tensors_from_bytes, tensors_to_bytes
from ccvr.statistics.moments import ClassStatistics

FORMAT = "ccvr-statistics/1"


def scatter(statistics: ClassStatistics) -> Tensor:
    """W_c = Q_c − s_c s_cᵀ / n_c, [C, d, d] float64; exactly 0 where n_c ≤ 1."""
    divisor = statistics.count.clamp(min=1).to(torch.float64).view(-1, 1, 1)
    centred = statistics.outer - statistics.total.unsqueeze(2) * statistics.total.unsqueeze(1) / divisor
    return torch.where((statistics.count > 1).view(-1, 1, 1), centred, 0.0)


def to_bytes(statistics: ClassStatistics, *, dtype: torch.dtype = torch.float32) -> bytes:
    """What a client sends; ``dtype`` is the scatter's."""
    classes = statistics.count.nonzero().squeeze(1)
    present = _of_classes(statistics, classes)
    d = statistics.num_features
    rows, columns = torch.triu_indices(d, d)
    tensors = {
        "classes": classes,
        "count": present.count,
        "mean": present.total / present.count.unsqueeze(1),
        "scatter": scatter(present)[:, rows, columns].to(dtype),
    }
    return tensors_to_bytes(
        tensors,
        format=FORMAT,
        transform=statistics.transform,
        digest=statistics.digest,
        num_classes=statistics.num_classes,
        num_features=d,
    )


def from_bytes(blob: bytes) -> ClassStatistics:
    """The statistics in a blob of ``to_bytes``; bytes that were cut, altered or never ours are a StatisticsError."""
    try:
        return _unpack(*tensors_from_bytes(blob, format=FORMAT))
    except (LookupError, TypeError, ValueError, OverflowError, RuntimeError, MemoryError) as error:
        reason = str(error).partition("\n")[0]
        raise StatisticsError(f"these bytes are not class statistics ({reason}).") from error


def _unpack(header: dict[str, Any], tensors: dict[str, Tensor]) -> ClassStatistics:
    num_classes, d = int(header["num_classes"]), int(header["num_features"])
    _require_sound(tensors, num_classes, d)
    whole = ClassStatistics.zeros(num_classes, d, transform=header["transform"], digest=header["digest"])
    rows, columns = torch.triu_indices(d, d)
    for label, count, mean, packed in zip(
        *(tensors[name] for name in ("classes", "count", "mean", "scatter")), strict=True
    ):
        whole.count[label] = count
        whole.total[label] = mean * count
        outer = whole.outer[label]
        outer[rows, columns] = packed.to(torch.float64)
        outer[columns, rows] = packed.to(torch.float64)
        outer.add_(torch.outer(mean, mean), alpha=int(count))
    return whole


def _require_sound(tensors: dict[str, Tensor], num_classes: int, d: int) -> None:
    """Refuse what ``to_bytes`` never writes: one bad client would spoil the merged statistics of all."""
    classes, count, mean, packed = (tensors[name] for name in ("classes", "count", "mean", "scatter"))
    present = len(classes)
    shapes = [list(tensor.shape) for tensor in (classes, count, mean, packed)]
    if shapes != [[present], [present], [present, d], [present, d * (d + 1) // 2]]:
        raise ValueError(f"{present} classes of {d} features in shapes {shapes}")
    if not (classes.dtype == count.dtype == torch.int64 and mean.dtype == torch.float64 and packed.is_floating_point()):
        raise ValueError("numbers of the wrong type")
    if not all(label in range(num_classes) for label in classes.tolist()) or (classes.diff() <= 0).any():
        raise ValueError(f"classes {classes.tolist()} of {num_classes}")
    if (count < 1).any() or not (mean.isfinite().all() and packed.isfinite().all()):
        raise ValueError("a count below 1, or a number that is not finite")


def _of_classes(statistics: ClassStatistics, classes: Tensor) -> ClassStatistics:
    return ClassStatistics(
        statistics.transform,
        statistics.digest,
        statistics.count[classes],
        statistics.total[classes],
        statistics.outer[classes],
    )


def class_bytes(num_features: int) -> int:
    """Bytes that ``to_bytes`` sends per class: label, count and mean in 8-byte numbers, a triangle of 4-byte ones."""
    return 8 + 8 + 8 * num_features + 4 * num_features * (num_features + 1) // 2
