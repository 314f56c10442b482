"""What runs the steps of a run: compiled kernels, or torch."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from ccvr.core.errors import SpecError
from ccvr.experiment.events import Noted
from ccvr.experiment.spec import Spec
from ccvr.kernels.machine import is_installed, this_machine
from ccvr.models.blocks import unsuited_block
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
        raise SpecError(f'training.step is "halide", but {obstacle}.')
    chosen: Literal["halide", "torch"] = "torch" if step == "torch" or obstacle else "halide"
    return replace(spec, training=replace(spec.training, step=chosen))


def _obstacle(spec: Spec, model: SplitModel) -> str:
    """Why kernels cannot run this model here, and what to do; empty if they can."""
    unsuited = unsuited_block(model)
    if spec.device != "cpu":
        return f'device is "{spec.device}". Use --device cpu'
    if unsuited == "":
        return "the model has no blocks that kernels run. Use --training.step torch, or build it of ConvBlock"
    if unsuited:
        return f'kernels do not take the block "{unsuited}" as it is. Use --training.step torch'
    return _defect() if is_installed() else MISSING


def _defect() -> str:
    """What is wrong with Halide on this machine; empty if it works."""
    try:
        this_machine()
    except Exception as error:  # a library that does not load may raise anything
        reason = str(error).strip().partition("\n")[0]
        return f"Halide does not work here ({type(error).__name__}: {reason}). Use --training.step torch"
    return ""


def notes(asked: Spec, now: Spec, model: SplitModel, owned: int) -> Iterator[Noted]:
    """What a user should know about the step of a run with so many training samples."""
    training = now.training
    samples = owned * training.client_fraction * training.local_epochs * training.rounds
    if training.step == "halide":
        yield Noted("step: halide; each process compiles its kernels first, about 2 s")
    elif asked.training.step == "auto" and _obstacle(asked, model) == MISSING and samples > LONG:
        yield Noted('step: torch; with the extra "fast" this run would take about half the time (docs/benchmarks.md)')
