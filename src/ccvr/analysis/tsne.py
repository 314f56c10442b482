"""Features in the plane (van der Maaten & Hinton 2008; openTSNE)."""

import importlib
from typing import Any

import torch
from torch import Tensor

from ccvr.core.errors import AnalysisError

NUM_COMPONENTS = 50
OVERSAMPLED, ITERATIONS = 20, 6
"""Directions beyond those asked for, and steps in which they turn towards the first."""
PERPLEXITY = 30
EXAGGERATED_STEPS, STEPS = 150, 350
MAX_BARNES_HUT = 4000
"""From more points on, interpolation (FIt-SNE) is the faster way."""


def embed(features: Tensor, *, num_threads: int = 1, rng: torch.Generator) -> Tensor:
    """Points [N, 2] float64 in the plane for features [N, d]; 10,000 of them take about half a minute.

    t-SNE of the first 50 principal components, with exact neighbours, from the first two: the same features and the
    same ``rng`` give the same points.
    """
    tsne = _tsne()
    if features.dim() != 2 or len(features) < 4:
        raise AnalysisError(f"features have the shape {list(features.shape)}; give [N, d] of at least 4 samples.")
    if not features.isfinite().all():
        raise AnalysisError("some features are not finite. Check the model: its training may have diverged.")
    components = principal_components(features, NUM_COMPONENTS, rng=rng)
    size = components[:, 0].std()
    if not size > 0:
        raise AnalysisError(f"all {len(features)} features are the same. Check the model: its training may be stuck.")
    start = torch.nn.functional.pad(components[:, :2], (0, max(0, 2 - components.shape[1]))) * (1e-4 / size)
    fit = tsne.TSNE(
        perplexity=min(PERPLEXITY, (len(features) - 1) / 3),
        neighbors="exact",
        initialization=start.numpy(),
        negative_gradient_method="bh" if len(features) <= MAX_BARNES_HUT else "fft",
        early_exaggeration_iter=EXAGGERATED_STEPS,
        n_iter=STEPS,
        n_jobs=num_threads,
        random_state=0,
    )
    return torch.tensor(fit.fit(components.numpy()))


def principal_components(x: Tensor, number: int, *, rng: torch.Generator) -> Tensor:
    """The first components of x [N, d] in float64, at most ``number``; the largest entry of a direction is positive.

    By subspace iteration from random directions (Halko et al. 2011): all eigenvectors of d² numbers would take minutes.
    """
    centred = x.detach().cpu().double()
    centred = centred - centred.mean(0)
    width = min(number + OVERSAMPLED, *x.shape)
    basis = torch.randn(x.shape[1], width, dtype=torch.float64, generator=rng)
    for _ in range(ITERATIONS):
        basis = torch.linalg.qr(centred.T @ (centred @ basis)).Q
    rotation = torch.linalg.svd(centred @ basis, full_matrices=False).Vh.T
    directions = (basis @ rotation)[:, :number]
    largest = directions.gather(0, directions.abs().argmax(0, keepdim=True))
    components: Tensor = centred @ (directions * largest.sign())
    return components


def _tsne() -> Any:
    try:
        return importlib.import_module("openTSNE")
    except ImportError as error:
        raise AnalysisError('t-SNE needs openTSNE, which is not installed. Run: pip install "ccvr[tsne]"') from error
