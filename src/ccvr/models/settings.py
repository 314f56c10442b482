"""Torch's standard settings around our own arithmetic, whatever the caller has set.

Autocast, a default type or device and inference mode change what a tensor operation computes. A calibration under
autocast, for example, gives a head that is worse without a sign of it. So functions of the library run under the
settings that torch starts with.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

import torch

from ccvr.core.errors import UsageError

DEVICES = ("cpu", "cuda", "xpu", "mps", "hpu")
"""Device types that have an autocast of their own."""

PRODUCTS = ("mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn", "cuda.matmul")
"""Operations of float32 numbers in torch.backends whose precision can be lowered."""

P = ParamSpec("P")
R = TypeVar("R")


class _OfProcess:
    """Settings that all threads share: the first call that needs the standard ones sets them, the last restores."""

    def __init__(self) -> None:
        self._lock, self._users = threading.Lock(), 0
        self._restore = ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            if not self._users:
                if (before := torch.get_default_dtype()) != torch.float32:
                    self._restore.callback(torch.set_default_dtype, before)
                    torch.set_default_dtype(torch.float32)
                _compute_in_float32(self._restore)
            self._users += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._restore.close()


def _compute_in_float32(restore: ExitStack) -> None:
    """Products of float32 numbers are not rounded to shorter ones; ``restore`` brings back what was set."""
    with suppress(RuntimeError):  # torch's older setting cannot be read once one of its newer ones was changed
        if (before := torch.get_float32_matmul_precision()) != "highest":
            restore.callback(torch.set_float32_matmul_precision, before)
            torch.set_float32_matmul_precision("highest")
    for part in _products():
        if (found := part.fp32_precision) not in ("ieee", "none"):
            restore.callback(setattr, part, "fp32_precision", found)
            part.fp32_precision = "ieee"


@cache
def _products() -> list[Any]:
    """The settings of ``PRODUCTS``; torch before 2.9 has none."""
    found: list[Any] = []
    for name in PRODUCTS:
        part: Any = torch.backends
        for step in name.split("."):
            part = getattr(part, step, None)
        found += [part] if hasattr(part, "fp32_precision") else []
    return found


_of_process = _OfProcess()


@contextmanager
def standard_settings(device: torch.device | str = "cpu") -> Iterator[None]:
    """Compute without autocast, gradients and inference mode; float32 and ``device`` are the defaults of new tensors.

    ``device`` matters only where the caller has set a default device.
    """
    with ExitStack() as stack:
        stack.enter_context(_of_process)
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(mode=False))
        stack.enter_context(torch.no_grad())
        for kind in DEVICES:
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        if torch.empty(0).device.type != "cpu":  # torch.get_default_device() takes many times as long
            stack.enter_context(torch.device(device))
        yield


def eager(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function as it is written: torch.compile leaves it alone, and transforms such as torch.vmap are refused.

    Raises:
        UsageError: it is called inside a transform of torch.func, which knows no single result.
    """

    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch._C._functorch.peek_interpreter_stack() is not None:
            raise UsageError(
                f"{function.__name__} was called inside a transform of torch.func, such as vmap or grad. "
                "Call it outside of the transform."
            )
        return function(*args, **kwargs)

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if "torch._dynamo" not in sys.modules:  # then nothing is compiled, and importing it takes seconds
            return checked(*args, **kwargs)
        found: R = torch.compiler.disable(checked)(*args, **kwargs)
        return found

    return run


def settled(function: Callable[P, R]) -> Callable[P, R]:
    """``eager``, under the standard settings. Not for functions that read a caller's batches."""

    @eager
    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with standard_settings():
            return function(*args, **kwargs)

    return run
