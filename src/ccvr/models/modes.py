"""Look at a model without leaving a trace."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode without gradients; afterwards every module is in the mode it was in, some may be frozen in eval."""
    modes = [(module, module.training) for module in model.modules()]
    model_was = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(model_was)  # a module may do more than set its flag, as LoRA layers do; the flags follow
        for module, mode in modes:
            module.training = mode


@contextmanager
def buffers_kept(model: nn.Module) -> Iterator[None]:
    """The buffers as they were, also of a model that changes them in eval mode."""
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                if name in before and not torch.equal(buffer, before[name]):
                    buffer.copy_(before[name])
