"""Look at a model without leaving a trace, and without another thread of ours at work on it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

_changed = threading.Condition()
_owners: dict[int, int] = {}
"""The thread that uses each module, by the module's id."""


@contextmanager
def alone_with(model: nn.Module) -> Iterator[None]:
    """Wait until no other thread is in such a block with the model, or with one that shares modules with it.

    A block inside a block of the same thread does not wait. Do not yield to other code in between.
    """
    me = threading.get_ident()
    modules = {id(module) for module in model.modules()}
    with _changed:
        _changed.wait_for(lambda: all(_owners.get(module, me) == me for module in modules))
        mine = [module for module in modules if module not in _owners]
        _owners.update(dict.fromkeys(mine, me))
    try:
        yield
    finally:
        with _changed:
            for module in mine:
                del _owners[module]
            _changed.notify_all()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode without gradients, alone with the model; afterwards every module is in the mode it was in."""
    with alone_with(model):
        modes = [(module, module.training) for module in model.modules()]
        model_was = model.training
        try:
            model.eval()
            with torch.no_grad():
                yield
        finally:
            model.train(model_was)  # a module may do more than set its flag, as LoRA layers do; the flags follow
            for module, mode in modes:
                module.training = mode


@contextmanager
def buffers_kept(model: nn.Module) -> Iterator[None]:
    """The buffers as they were, also of a model that changes or replaces them in eval mode.

    On other devices than the CPU those are compared that torch saw changing: each comparison waits for the device.
    """
    with alone_with(model):
        before = [
            (module._buffers, name, buffer, buffer.clone(), 0 if buffer.is_inference() else buffer._version)
            for module in model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        try:
            yield
        finally:
            with torch.no_grad():
                for table, name, buffer, numbers, version in before:
                    table[name] = buffer
                    is_suspect = buffer.is_cpu or buffer.is_inference() or buffer._version != version
                    if is_suspect and not torch.equal(buffer, numbers):
                        buffer.copy_(numbers)
