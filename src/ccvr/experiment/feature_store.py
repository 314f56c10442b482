"""Features that many calibrators ask for: one pass over the samples serves all that read the same layers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from ccvr.core.arrays import IntArray
from ccvr.data.batches import in_order
from ccvr.data.samples import Samples
from ccvr.models.split import SplitModel
from ccvr.statistics.collect import FeatureBatches, read_features

MAX_BYTES = 1 << 30
"""Features of more are read again each time."""

Part = list[tuple[Tensor, Tensor]]


@dataclass
class FeatureStore:
    """Samples in parts, and their features in the model that was asked for last."""

    samples: Samples
    shards: Sequence[IntArray]
    _of: tuple[str, tuple[str, ...]] = ("", ())
    _parts: list[Part] = field(default_factory=list)

    def read(self, model: SplitModel, taps: tuple[str, ...]) -> Iterator[FeatureBatches]:
        """The features [B, d] and labels [B] of each part, batch by batch, to be taken one part after the other."""
        asked = model.digest(), taps
        if asked == self._of:
            yield from self._parts
            return
        self._of, self._parts = ("", ()), []
        whole: dict[int, Part] = {}
        for number, shard in enumerate(self.shards):
            features = read_features(model, in_order(self.samples, shard), "head", taps)
            yield self._keeping(features, number, whole)
        if len(whole) == len(self.shards) and model.digest() == asked[0]:  # nobody stopped half way, or trained on
            self._of, self._parts = asked, [whole[number] for number in range(len(whole))]

    def _keeping(self, features: FeatureBatches, number: int, whole: dict[int, Part]) -> FeatureBatches:
        """The same features; at their end they are part of the whole, if that is not too large."""
        part, fits = Part(), True
        for z, y in features:
            fits = self._total * z.shape[1] * z.element_size() <= MAX_BYTES
            if fits:
                part.append((z, y))
            yield z, y
        if fits:
            whole[number] = part

    @cached_property
    def _total(self) -> int:
        return sum(map(len, self.shards))
