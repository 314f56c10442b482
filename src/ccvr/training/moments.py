"""Running moments of batch normalisation from all clients' samples: sums that merge by addition.

Averaged running moments are those of no model: each client's belong to its own weights, and their average leaves out
how far the clients' means lie apart. Sums over the activations of the global model have neither fault.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ccvr.core.errors import TrainingError
from ccvr.data.batches import Batch
from ccvr.models.modes import buffers_kept, evaluating
from ccvr.models.split import SplitModel
from ccvr.models.state import Tensors

COUNT, TOTAL, SECOND = "count", "total", "second"
"""Sums of a layer: how many numbers each channel has, [1]; their sum and the sum of their squares, [C]."""


def batch_norms(model: nn.Module) -> dict[str, _BatchNorm]:
    """The layers that keep running moments, by path."""
    layers = {path: part for path, part in model.named_modules() if isinstance(part, _BatchNorm)}
    return {path: layer for path, layer in layers.items() if layer.running_mean is not None}


def moment_sums(model: SplitModel, batches: Iterable[Batch]) -> Tensors:
    """Sums over what enters each layer of ``batch_norms``: "path/count", "path/total", "path/second", in float64.

    One pass, as in precise batch normalisation (Wu and Johnson 2021): each layer normalises by its batch's own moments,
    as in training; everything else is in eval mode. The model is left as it was. A batch of a single sample is left
    out, because it need not have moments.
    """
    layers = batch_norms(model)
    sums: Tensors = {}
    for path, layer in layers.items():
        zeros = torch.zeros(layer.num_features, dtype=torch.float64)
        sums |= {f"{path}/{COUNT}": zeros[:1].clone(), f"{path}/{TOTAL}": zeros, f"{path}/{SECOND}": zeros.clone()}
    hooks = [layer.register_forward_pre_hook(_adding(sums, path)) for path, layer in layers.items()]
    try:
        with evaluating(model), buffers_kept(model):
            for layer in layers.values():
                layer.training = True
            for batch in batches:
                if len(batch.labels) > 1:
                    model.features(model.inputs(batch.inputs))
    finally:
        for hook in hooks:
            hook.remove()
    return sums


def _adding(sums: Tensors, path: str) -> Callable[[nn.Module, Any], None]:
    """A hook that adds what enters a layer, [B, C, …], to its sums."""

    def hook(layer: nn.Module, given: Any) -> None:
        values = given[0].double().transpose(0, 1).flatten(1).cpu()
        sums[f"{path}/{COUNT}"] += values.shape[1]
        sums[f"{path}/{TOTAL}"] += values.sum(1)
        sums[f"{path}/{SECOND}"] += values.square().sum(1)

    return hook


def require_sums(sums: Tensors, one: Tensors, num_samples: int) -> None:
    """Refuse sums of other layers than those of a single sample, of more samples, or that cannot be moments.

    Raises:
        TrainingError: which it is. Counts are weights in the merged moments, so a client must not invent them.
    """
    forms, wanted = ({name: (t.dtype, t.shape) for name, t in each.items()} for each in (sums, one))
    if forms != wanted:
        raise TrainingError("its sums are not those of the model's batch normalisation.")
    for name, tensor in sums.items():
        path, _, part = name.rpartition("/")
        n, total = sums[f"{path}/{COUNT}"], sums[f"{path}/{TOTAL}"]
        if not tensor.isfinite().all():
            raise TrainingError(f"{name} is not finite.")
        if part == COUNT and not 0 <= n.item() <= num_samples * one[name].item():
            raise TrainingError(f"{name} is {n.item():g}; its {num_samples} samples have less.")
        if part == SECOND and (tensor * n * (1 + 1e-6) < total.square()).any():
            raise TrainingError(f"{name} is less than any numbers with these sums can have.")


def merged_sums(parts: Iterable[Tensors]) -> Tensors:
    """The sums of all clients together."""
    total: Tensors = {}
    for part in parts:
        total = {name: tensor + total[name] if total else tensor for name, tensor in part.items()}
    return total


def moments_of(sums: Tensors, buffers: Mapping[str, Tensor]) -> Tensors:
    """The running means and unbiased variances, as torch keeps them, by their names and of the types in ``buffers``."""
    moments: Tensors = {}
    for name in sums:
        path, _, part = name.rpartition("/")
        if part != COUNT:
            continue
        n, total, second = (sums[f"{path}/{each}"] for each in (COUNT, TOTAL, SECOND))
        if n.item() < 2:
            raise TrainingError("no client has two samples, from which batch normalisation could take moments.")
        mean = total / n
        moments[f"{path}.running_mean"] = mean
        moments[f"{path}.running_var"] = (second - total * mean).clamp(min=0) / (n - 1)
    return {name: moment.to(buffers[name].dtype) for name, moment in moments.items()}
