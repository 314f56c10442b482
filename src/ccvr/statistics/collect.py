"""Features of a client's images, and their statistics: eval mode, no augmentation, the global model."""

from collections.abc import Iterable, Iterator

from torch import Tensor

from ccvr.models.modes import evaluating
from ccvr.models.split import SplitModel
from ccvr.models.transform import FeatureTransform
from ccvr.statistics.moments import ClassStatistics

Batches = Iterable[tuple[Tensor, Tensor]]


def features_of(model: SplitModel, batches: Batches) -> Iterator[tuple[Tensor, Tensor]]:
    """Features z [B, d] before any transform, and labels [B], batch by batch, on the CPU."""
    device = model.head.weight.device
    for images, labels in batches:
        with evaluating(model):
            z = model.features(images.to(device)).cpu()
        yield z, labels.cpu()


def collect(
    model: SplitModel, batches: Batches, num_classes: int, *, transform: FeatureTransform, digest: str | None = None
) -> ClassStatistics:
    """What one client sends: the statistics of its transformed features. ``digest`` spares computing it again."""
    statistics = ClassStatistics.zeros(
        num_classes,
        model.head.weight.shape[1],
        transform=str(transform),
        digest=model.digest() if digest is None else digest,
    )
    for z, y in features_of(model, batches):
        statistics.update(transform(z), y)
    return statistics
