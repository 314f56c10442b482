"""What runs the steps of a run: compiled kernels, or torch."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from ccvr.core.errors import SpecError
from ccvr.experiment.events import Noted
from ccvr.experiment.spec import Spec
from ccvr.kernels.machine import is_installed
from ccvr.models.blocks import suits_kernels
from ccvr.models.split import SplitModel

MISSING = 'the extra "fast" is not installed. Install it: pip install "ccvr[fast]"'
LONG = 2_000_000
"""Training samples from which on it is worth saying that a run could be faster: some minutes of two cores."""


def runs_kernels(spec: Spec) -> bool:
    """Whether compiled kernels run the model of a run; torch looks at it where they are not installed."""
    return spec.training.step == "halide" and is_installed()


def decided(spec: Spec, model: SplitModel) -> Spec:
    """The spec with its step decided; an error where it asks for kernels that cannot run here."""
    step, obstacle = spec.training.step, _obstacle(spec, model)
    if step == "halide" and obstacle:
        raise SpecError(f'training.step is "halide", but {obstacle}, or start a new run with training.step = "torch".')
    chosen: Literal["halide", "torch"] = "torch" if step == "torch" or obstacle else "halide"
    return replace(spec, training=replace(spec.training, step=chosen))


def _obstacle(spec: Spec, model: SplitModel) -> str:
    """Why kernels cannot run this model here; empty if they can."""
    if spec.device != "cpu":
        return f'device is "{spec.device}". Use the CPU'
    if not suits_kernels(model):
        return "the model has no blocks that the kernels take. Build it of ccvr.models.blocks.ConvBlock"
    return "" if is_installed() else MISSING


def notes(asked: Spec, now: Spec, model: SplitModel, images: int) -> Iterator[Noted]:
    """What a user should know about the step of a run with so many training images."""
    training = now.training
    samples = images * training.client_fraction * training.local_epochs * training.rounds
    if now.training.step == "halide":
        yield Noted("step: halide; each process compiles its kernels first, about 2 s")
    elif asked.training.step == "auto" and _obstacle(asked, model) == MISSING and samples > LONG:
        yield Noted(
            'step: torch; with the extra "fast" this run would take less than half the time (docs/benchmarks.md)'
        )
