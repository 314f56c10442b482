"""Features of a client's images, and their statistics: eval mode, no augmentation, the global model."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from ccvr.models.split import SplitModel
from ccvr.models.transform import FeatureTransform
from ccvr.statistics.moments import ClassStatistics

Batches = Iterable[tuple[Tensor, Tensor]]


@torch.no_grad()
def features_of(model: SplitModel, batches: Batches) -> Iterator[tuple[Tensor, Tensor]]:
    """Features z [B, d] before any transform, and labels [B], batch by batch, on the CPU."""
    device = model.head.weight.device
    modes = [(module, module.training) for module in model.modules()]  # one by one: some may be frozen in eval mode
    model.eval()
    try:
        for images, labels in batches:
            yield model.features(images.to(device)).cpu(), labels.cpu()
    finally:
        for module, mode in modes:
            module.training = mode


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
