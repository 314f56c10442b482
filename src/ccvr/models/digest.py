"""Which backbone made some features, as a SHA-256."""

import hashlib

import torch
from torch import nn

from ccvr.models.modes import alone_with
from ccvr.models.passes import layer_at, require_model
from ccvr.models.state import require_tensors


def backbone_digest(model: nn.Module, head: str) -> str:
    """SHA-256 of every tensor but those of the head at that path: names, types, shapes, values."""
    require_model(model)
    with alone_with(model):
        return _digest(model, head)


def _digest(model: nn.Module, head: str) -> str:
    module = layer_at(model, head)
    paths = [path for path, other in model.named_modules(remove_duplicate=False) if other is module]
    of_head = tuple(f"{path}." if path else "" for path in paths)
    state = model.state_dict(keep_vars=True)
    require_tensors(state)
    whole = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        if not name.startswith(of_head):
            whole.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
            whole.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()
