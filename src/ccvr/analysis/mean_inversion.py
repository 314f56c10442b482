"""What means of features give away: the more images a mean is of, the less it shows of one of them."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from ccvr.analysis.inversion import DESCENT, Descent, Inversion, invert
from ccvr.analysis.similarity import ssim
from ccvr.core.errors import AnalysisError
from ccvr.models.modes import evaluating
from ccvr.models.split import SplitModel

BATCH = 500
OTHERS = 32
"""Images that a reconstruction is not of and is compared with."""


@dataclass(frozen=True)
class MeanInversion:
    """R reconstructions from means of n features, and how alike each is to the picture it is most alike to."""

    n: int
    groups: Tensor
    """[R, n]: which images each mean is of."""
    images: Tensor
    """[R, C, H, W] uint8."""
    error: Tensor
    """[R]: ‖f(x) − z‖² / ‖z‖² that is left."""
    weight: Tensor
    """[R]: that of the total variation."""
    similarity: Tensor
    """[R]: the largest structural similarity with one of the n."""
    closest: Tensor
    """[R]: which image that is."""
    chance: Tensor
    """[R]: the same with n images that the mean is not of, on average over as many such groups as there are, up to 32
    images; nan where there are too few."""


def invert_means(
    model: SplitModel,
    images: Tensor,
    *,
    numbers: Sequence[int] = (1, 3, 10),
    repeats: int = 16,
    rng: torch.Generator,
    descent: Descent = DESCENT,
) -> list[MeanInversion]:
    """What a client gives away with the mean feature of n of its images [N, C, H, W] uint8 of one class, for each n.

    The best of n similarities grows with n by itself: compare with ``chance``.
    """
    if images.dim() != 4 or images.dtype != torch.uint8 or not all(1 <= n <= len(images) for n in numbers):
        raise AnalysisError(
            f"images are {images.dtype} of shape {list(images.shape)} for means of {list(numbers)}; "
            "give uint8 [N, C, H, W], and numbers from 1 to N."
        )
    device = next(model.parameters()).device
    with evaluating(model):
        z = torch.cat([model.features(batch.to(device)).cpu() for batch in images.split(BATCH)])
    orders = [torch.stack([torch.randperm(len(images), generator=rng) for _ in range(repeats)]) for _ in numbers]
    means = torch.cat([z[order[:, :n]].mean(1) for n, order in zip(numbers, orders, strict=True)])
    every = invert(model, means, _shape(images), rng=rng, descent=descent)  # all at once is fastest
    return [
        _compared(n, order, images, Inversion(*(part[i * repeats : (i + 1) * repeats] for part in astuple(every))))
        for i, (n, order) in enumerate(zip(numbers, orders, strict=True))
    ]


def _compared(n: int, order: Tensor, images: Tensor, inversion: Inversion) -> MeanInversion:
    groups = order[:, :n]
    others = order[:, n : n + max(n, OTHERS)].split(n, dim=1)
    similarity, closest = _best(inversion.images, images, groups)
    whole = [_best(inversion.images, images, other)[0] for other in others if other.shape[1] == n]
    chance = torch.stack(whole).mean(0) if whole else similarity * torch.nan
    return MeanInversion(n, groups, inversion.images, inversion.error, inversion.weight, similarity, closest, chance)


def _shape(images: Tensor) -> tuple[int, int, int]:
    channels, height, width = images.shape[1:]
    return channels, height, width


def _best(found: Tensor, images: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """The similarity with the image of each group that is most alike, and which it is."""
    repeated = found.repeat_interleave(groups.shape[1], dim=0)
    best, place = ssim(repeated, images[groups.flatten()]).view(groups.shape).max(1)
    return best, groups.gather(1, place.unsqueeze(1)).squeeze(1)
