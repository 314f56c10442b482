"""A run for TensorBoard: numbers as they come, figures at the end, in RUN/tensorboard."""

import importlib
from collections.abc import Iterator
from typing import Any

from ccvr.core.errors import SpecError
from ccvr.core.run import RunFolder, write_atomically
from ccvr.experiment.events import Event, HeadScored, RoundDone, Started
from ccvr.experiment.spec import Spec, read_spec
from ccvr.report.runs import made_from

FIGURES_OF = "made_from.txt"
"""The file beside the logs that says of which files of the run the figures are."""


def require_tensorboard(spec: Spec) -> None:
    """Refuse to log what cannot be logged before anything is trained."""
    if spec.log.tensorboard:
        _tensorboard()


def logged(events: Iterator[Event], folder: RunFolder, spec: Spec) -> Iterator[Event]:
    """Pass on a run's events; what they say is logged if the spec asks for it."""
    if not spec.log.tensorboard:
        yield from events
        return
    writer = None
    try:
        for event in events:
            writer = writer or _writer(folder, after=event.round if isinstance(event, Started) else None)
            _log(writer, event, spec.training.rounds)
            writer.flush()
            yield event
    finally:
        if writer is not None:
            writer.close()


def log_figures(folder: RunFolder) -> None:
    """The figures that a finished run has the data for, if it logs at all; once for the same files of the run."""
    spec = read_spec(folder.spec, trust=folder.trust)
    if not spec.log.tensorboard:
        return
    shown, digest = folder.tensorboard / FIGURES_OF, made_from([folder]).encode()
    if shown.is_file() and shown.read_bytes() == digest:
        return
    writer = _writer(folder)
    for tag, picture in _pictures().figures_of(folder.path):
        writer.add_image(tag, picture, spec.training.rounds, dataformats="HWC")
    writer.close()
    write_atomically(shown, digest)


def _log(writer: Any, event: Event, rounds: int) -> None:
    match event:
        case Started(round=0):
            picture = _pictures().label_distribution(event.label_counts, event.class_names)
            writer.add_image("label distribution", picture, 0, dataformats="HWC")
        case RoundDone():
            scalars = {
                "accuracy/test": event.accuracy,
                "loss/test": event.test_loss,
                "loss/clients": event.loss,
                "time/seconds": event.seconds,
                "time/samples a second": event.samples / max(event.seconds, 1e-9),
            }
            for tag, value in scalars.items():
                if value is not None:
                    writer.add_scalar(tag, value, event.round)
        case HeadScored():
            writer.add_scalar(f"heads/{event.label}", event.accuracy, rounds)


def _writer(folder: RunFolder, *, after: int | None = None) -> Any:
    """A writer; what a stopped run logged ``after`` a round is forgotten, for that is trained again."""
    purge = None if after is None else after + 1
    return _tensorboard().SummaryWriter(str(folder.tensorboard), purge_step=purge)


def _tensorboard() -> Any:
    try:
        return importlib.import_module("torch.utils.tensorboard")
    except ImportError as error:
        raise SpecError(
            'log.tensorboard needs tensorboard, which is not installed. Run: pip install "ccvr[tensorboard]", '
            "or leave it off."
        ) from error


def _pictures() -> Any:
    """Now, not above: matplotlib is slow to import, and most runs do not log."""
    return importlib.import_module("ccvr.report.figure_set")
