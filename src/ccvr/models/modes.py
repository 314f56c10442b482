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
