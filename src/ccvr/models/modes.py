"""Look at a model without leaving a trace, and without another thread of ours at work on it."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

_changed = threading.Condition()
_owners: dict[int, int] = {}
"""The thread that uses each module, by the module's id."""


@contextmanager
def alone_with(model: nn.Module) -> Iterator[list[nn.Module]]:
    """Wait until no other thread is in such a block with one of the model's modules, which are given.

    A block inside a block of the same thread does not wait. A caller's code in it must not wait for another thread that
    needs the model.
    """
    me, modules = threading.get_ident(), list(model.modules())
    ids = set(map(id, modules))
    with _changed:
        _changed.wait_for(lambda: _owners.keys().isdisjoint(ids) or all(_owners.get(each, me) == me for each in ids))
        mine = ids - _owners.keys()
        _owners.update(dict.fromkeys(mine, me))
    try:
        yield modules
    finally:
        with _changed:
            for each in mine:
                del _owners[each]
            _changed.notify_all()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode without gradients, alone with the model; afterwards every module is in the mode it was in."""
    with alone_with(model) as modules, _in_eval_mode(model, modules):
        yield


@contextmanager
def buffers_kept(model: nn.Module) -> Iterator[None]:
    """The buffers as they were, also of a model that changes or replaces them in eval mode."""
    with alone_with(model) as modules, _with_buffers(modules):
        yield


@contextmanager
def _in_eval_mode(model: nn.Module, modules: Sequence[nn.Module]) -> Iterator[None]:
    trained = [module for module in modules if module.training]
    model_was = model.training
    try:
        if trained:
            model.eval()
        with torch.no_grad():
            yield
    finally:
        if trained:
            model.train(model_was)  # a module may do more than set its flag, as LoRA layers do; the flags follow
            for module in modules:
                module.training = False
            for module in trained:
                module.training = True


@contextmanager
def _with_buffers(modules: Sequence[nn.Module]) -> Iterator[None]:
    """On other devices than the CPU buffers are compared that torch saw changing: each comparison waits."""
    before = [
        (module._buffers, name, buffer, buffer.clone(), 0 if buffer.is_inference() else buffer._version)
        for module in modules
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
