"""Features that many calibrators ask for: one pass over the images serves all that read the same layers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ccvr.data.batches import in_order
from ccvr.data.images import IntArray, LabelledImages
from ccvr.models.split import SplitModel
from ccvr.statistics.collect import Batches, read_features

MOST_BYTES = 1 << 30
"""Features of more are read again each time."""

Part = list[tuple[Tensor, Tensor]]


@dataclass
class FeatureStore:
    """Images in parts, and their features in the model that was asked for last."""

    images: LabelledImages
    shards: Sequence[IntArray]
    _of: tuple[str, tuple[str, ...]] = ("", ())
    _parts: list[Part] = field(default_factory=list)

    def read(self, model: SplitModel, taps: tuple[str, ...]) -> Iterator[Batches]:
        """The features [B, d] and labels [B] of each part, batch by batch, to be taken one part after the other."""
        asked = model.digest(), taps
        if asked == self._of:
            yield from self._parts
            return
        self._of, self._parts = ("", ()), []
        parts: list[Part] = [[] for _ in self.shards]
        for shard, part in zip(self.shards, parts, strict=True):
            yield self._keeping(read_features(model, in_order(self.images, shard), "head", taps), part)
        if sum(len(y) for part in parts for _, y in part) == self._number:  # nobody stopped half way
            self._of, self._parts = asked, parts

    @property
    def _number(self) -> int:
        return sum(map(len, self.shards))

    def _keeping(self, features: Batches, part: Part) -> Batches:
        for z, y in features:
            if self._number * z.shape[1] * z.element_size() <= MOST_BYTES:
                part.append((z, y))
            yield z, y
