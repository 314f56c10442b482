"""Features of any model: what enters its head, or several layers' outputs together (taps), read through hooks."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ccvr.core.errors import ModelError
from ccvr.core.tables import suggestion
from ccvr.kernels.inputs import Inputs, call, num_rows
from ccvr.models.passes import layer_at, outputs_of

AUTO = "auto"
MAX_TAPS = 5
MAX_NUMBERS = 400
"""Numbers that a map of several places is averaged down to."""

Features = Callable[[Inputs], Tensor]


def flatten(t: Tensor, *, channels_first: bool = False) -> Tensor:
    """One layer's output as a vector per sample, [B, n].

    Maps [B, C, H, W] are averaged to p × p places with C p² of at most 400, by a p that divides where one does; volumes
    [B, C, D, H, W], and series [B, C, L] where ``channels_first``, over all their places; tokens [B, T, d] over T.
    """
    if t.dim() == 2:
        return t
    if t.dim() == 5 or (t.dim() == 3 and channels_first):
        return t.flatten(2).mean(2)
    if t.dim() == 4:
        height, width = (_places(side, t.shape[1]) for side in t.shape[2:])
        return functional.adaptive_avg_pool2d(t, (height, width)).flatten(1)
    return t.flatten(1, -2).mean(1)


def _places(side: int, channels: int) -> int:
    most = max(1, min(side, int((MAX_NUMBERS / channels) ** 0.5)))
    dividing = [places for places in range(most, 0, -1) if side % places == 0]
    return dividing[0] if dividing[0] > most // 2 else most


class Kept:
    """What hooks saw in the passes that are under way, one in each thread."""

    def __init__(self) -> None:
        self._seen: dict[int, dict[str, Any]] = {}

    def begin(self) -> None:
        self._seen[threading.get_ident()] = {}

    def end(self) -> dict[str, Any]:
        return self._seen.pop(threading.get_ident())

    def keep(self, name: str, value: object) -> None:
        seen = self._seen.get(threading.get_ident())
        if seen is None:
            return  # somebody runs the layer by itself
        if name in seen:
            raise ModelError(f'"{name}" is used twice in one pass; what is read must be used once.')
        seen[name] = value


class Capture(nn.Module):
    """Stands where the head was and keeps what enters it.

    Zeros of the head's shape go on: what the model does with its scores afterwards fits, and cannot change z in place.
    """

    def __init__(self, num_outputs: int) -> None:
        super().__init__()
        self.num_outputs = num_outputs
        self.kept = Kept()

    def forward(self, z: Tensor) -> Tensor:
        self.kept.keep("the head", z)
        return z.new_zeros(len(z), self.num_outputs)


class _Keep:
    """A hook that keeps what leaves a module, or what enters it. A class, so that a model with hooks can be saved."""

    def __init__(self, kept: Kept, name: str) -> None:
        self.kept, self.name = kept, name

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], *output: object) -> None:
        value = output[0] if output else inputs[0]
        if output and isinstance(value, Tensor) and value.dim() > 1:
            along_series = any(isinstance(part, nn.Conv1d) for part in module.modules())
            value = flatten(value.clone(), channels_first=along_series)  # now: what follows may work in place
        elif isinstance(value, Tensor):
            value = value.clone()  # so may what follows the head
        self.kept.keep(self.name, value)


def _joined(seen: dict[str, Any], taps: Sequence[str], z: Tensor) -> Tensor:
    """The taps' outputs and z side by side, [B, Σ n + d]."""
    parts = []
    for tap in taps:
        t = seen.get(tap)
        if not isinstance(t, Tensor) or t.shape[:1] != z.shape[:1] or t.dim() < 2:
            raise ModelError(f'the tap "{tap}" gives no tensor [B, …] for each of B samples. Choose another layer.')
        parts.append(t)
    return torch.cat([*parts, z], dim=1) if parts else z


@contextmanager
def reading(model: nn.Module, head: str, taps: Sequence[str] = ()) -> Iterator[Features]:
    """A function x → features [B, d]: what enters the head at that path, behind the outputs of ``taps``.

    The model runs as it is, with hooks that are gone afterwards; be alone with it (``models/modes.py``).
    """
    kept, entrance = Kept(), f"{head} (input)"

    def features(x: Inputs) -> Tensor:
        kept.begin()
        try:
            outputs_of(model, x)
        finally:
            seen = kept.end()
        if entrance not in seen:
            raise ModelError("the model did not reach its head in this pass; the head must be used in every pass.")
        order = list(seen)
        for tap in order[order.index(entrance) + 1 :]:
            raise ModelError(f'the tap "{tap}" does not come before the head. Choose a layer that the head reads.')
        return _joined(seen, taps, seen[entrance])

    modules, door = [layer_at(model, tap) for tap in taps], layer_at(model, head)
    with ExitStack() as hooks:
        for module, tap in zip(modules, taps, strict=True):
            hooks.callback(module.register_forward_hook(_Keep(kept, tap)).remove)
        hooks.callback(door.register_forward_pre_hook(_Keep(kept, entrance)).remove)
        yield features


class TappedBackbone(nn.Module):
    """A backbone that gives several layers' outputs beside its own. The backbone keeps the hooks: give it a copy."""

    def __init__(self, backbone: nn.Module, taps: Sequence[str]) -> None:
        super().__init__()
        self.backbone, self.taps = backbone, tuple(taps)
        self._kept = Kept()
        for tap in self.taps:
            backbone.get_submodule(tap).register_forward_hook(_Keep(self._kept, tap))

    def forward(self, x: Inputs) -> Tensor:
        self._kept.begin()
        try:
            z = self.backbone(x)
        finally:
            seen = self._kept.end()
        return _joined(seen, self.taps, z)


def find_taps(model: nn.Module, head: str, example: Inputs, taps: str | Sequence[str] | None) -> tuple[str, ...]:
    """Module paths of the taps: those that are named, by path or by its end; ``auto`` chooses; None is none.

    ``auto``: a stage is a layer with parameters and what follows it without any; the outputs of at most five stages
    before the head, evenly from the first to the last, and of no more than 2,000 numbers.
    """
    if not taps:
        return ()
    if taps == AUTO:
        return _choose(stages(model, head, example)[:-1])  # z stands for the last
    names = taps.split("+") if isinstance(taps, str) else taps
    return tuple(_resolve(model, name) for name in names)


def _resolve(model: nn.Module, name: str) -> str:
    paths: list[str] = [path for path, _ in model.named_modules() if path]
    found = [path for path in paths if path == name] or [path for path in paths if path.endswith(f".{name}")]
    if len(found) != 1:
        fact = f"is {', '.join(found)}" if found else "is none of its modules"
        raise ModelError(f'the tap "{name}" of the model {fact}.{"" if found else suggestion(name, paths)}')
    return found[0]


def stages(model: nn.Module, head: str, example: Inputs) -> list[tuple[str, Tensor]]:
    """The path and output of the last module of each stage before the head, in the order of a pass."""
    ran: list[tuple[str, nn.Module, Tensor]] = []

    def remember(path: str) -> Callable[..., None]:
        return lambda module, inputs, output: ran.append((path, module, output))

    hooks = [module.register_forward_hook(remember(path)) for path, module in model.named_modules() if path]
    try:
        call(model, example)
    finally:
        for hook in hooks:
            hook.remove()
    names = [path for path, _, _ in ran]
    found: list[tuple[str, Tensor]] = []
    for path, module, output in ran:
        if path == head or isinstance(module, Capture):
            break
        inner = any(other.startswith(f"{path}.") for other in names)  # its parts ran, so they speak for it
        usable = isinstance(output, Tensor) and output.is_floating_point() and output.shape[:1] == (num_rows(example),)
        if inner or not usable or output.dim() < 2 or names.count(path) > 1:
            continue
        if any(True for _ in module.parameters()):
            found.append((path, output))
        elif found and found[-1][1].dim() != 3:  # what follows a series or tokens does not say which it is
            found[-1] = (path, output)
    return found


def _choose(found: Sequence[tuple[str, Tensor]]) -> tuple[str, ...]:
    paths = [path for path, output in found if flatten(output).shape[1] <= 2000]
    if len(paths) > MAX_TAPS:
        paths = [paths[round(i * (len(paths) - 1) / (MAX_TAPS - 1))] for i in range(MAX_TAPS)]
    return tuple(paths)
