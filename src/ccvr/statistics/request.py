"""What a server asks its clients for, and how that travels."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ccvr.core.arguments import shown
from ccvr.core.errors import StatisticsError
from ccvr.models.random_features import Projection, RandomFeatures
from ccvr.models.tensor_file import UnreadableTensors, tensors_from_bytes, tensors_to_bytes
from ccvr.models.transform import FeatureTransform
from ccvr.statistics.kinds import find_kind
from ccvr.statistics.limits import MAX_COUNT

FORMAT = "ccvr-request/1"
MIN_COUNT = 8
"""Where people connect: classes of fewer samples are withheld unless the caller says otherwise. In a simulation, 0."""


@dataclass(frozen=True)
class Request:
    """What all clients are asked for.

    Attributes:
        kind: kind of statistics, a row of ``KINDS``.
        transform: feature transform, as in ``tukey:0.5``.
        taps: layers that are read beside the head's input: module paths, or "auto".
        min_count: clients withhold classes of which they have fewer samples.
        projection: what makes random features, for kinds that are of those.
    """

    kind: str = "full"
    transform: str = "none"
    taps: str | Sequence[str] = ""
    min_count: int = 0
    projection: Projection | None = None

    def __post_init__(self) -> None:
        if type(self.min_count) is not int or not 0 <= self.min_count <= MAX_COUNT:
            raise StatisticsError(
                f"min_count is {shown(self.min_count)}; give a whole number of samples from 0 to {MAX_COUNT:,}."
            )

    def validate(self) -> None:
        """Refuse what does not go together.

        Raises:
            StatisticsError: a value of another type, an unknown kind, a kind of random features without
                a projection, or the reverse.
        """
        taps = (self.taps,) if isinstance(self.taps, str) else self.taps
        if not isinstance(taps, list | tuple) or not all(isinstance(tap, str) for tap in taps):
            raise StatisticsError(f"taps is {shown(self.taps)}; give names of layers.")
        for name in ("kind", "transform"):
            if not isinstance(getattr(self, name), str):
                raise StatisticsError(f"{name} is {shown(getattr(self, name))}; give a name.")
        if not isinstance(self.projection, Projection | None):
            raise StatisticsError(f"projection is {shown(self.projection)}; make one with ccvr.random_features.")
        if find_kind(self.kind).projected != (self.projection is not None):
            raise StatisticsError('kind "kernel" and a projection belong together. Make one with ccvr.random_features.')
        if self.projection is not None and FeatureTransform.parse(self.transform) != FeatureTransform():
            raise StatisticsError(
                f'kind "{self.kind}" takes no transform, but "{self.transform}" was given. Leave it out.'
            )

    @property
    def details(self) -> list[str]:
        """What tells it apart from other requests of its kind, in words."""
        words = [
            self.transform if self.transform != "none" else "",
            f"taps-{self.taps}" if self.taps else "",
            f"from-{self.min_count}" if self.min_count else "",
            self.projection.digest[:12] if self.projection else "",
        ]
        return [word for word in words if word]

    def features(self, z: Tensor) -> Tensor:
        """What statistics are of, from a model's features z [B, d]."""
        if self.projection is None:
            return FeatureTransform.parse(self.transform)(z)
        if z.shape[1:] != self.projection.mean.shape:
            width = len(self.projection.mean)
            raise StatisticsError(f"the projection is of {width} numbers, the model gives {z.shape[1]}. Give its taps.")
        found: Tensor = self._random_features(z)
        return found

    @cached_property
    def _random_features(self) -> RandomFeatures:
        assert self.projection is not None
        return RandomFeatures.of(self.projection)

    def to_bytes(self) -> bytes:
        """The request for a client on another machine."""
        taps = self.taps if isinstance(self.taps, str) else "+".join(self.taps)
        blob = b"" if self.projection is None else self.projection.to_bytes()
        return tensors_to_bytes(
            {"projection": torch.from_numpy(np.frombuffer(blob, np.uint8).copy())},
            format=FORMAT,
            kind=self.kind,
            transform=self.transform,
            taps=taps,
            min_count=self.min_count,
        )

    @classmethod
    def from_bytes(cls, blob: bytes) -> "Request":
        """The request in bytes of ``to_bytes``.

        Raises:
            StatisticsError: the bytes are no request of ours.
        """
        try:
            header, tensors = tensors_from_bytes(blob, format=FORMAT)
            kind, transform, taps = (_of_type(header, name, str) for name in ("kind", "transform", "taps"))
            projection = tensors["projection"].numpy().tobytes()
            request = cls(kind, transform, taps, _of_type(header, "min_count", int))
        except (UnreadableTensors, LookupError, TypeError) as error:
            raise StatisticsError(f"these bytes are not a request for statistics ({error}).") from error
        return request if not projection else replace(request, projection=Projection.from_bytes(projection))


def _of_type(header: dict[str, Any], name: str, kind: type) -> Any:
    if type(header[name]) is not kind:
        raise TypeError(f"expected {name} as {kind.__name__}, got {str(header[name])[:30]!r}")
    return header[name]
