"""The one place that chooses an engine: a run in this process, or on Flower."""

from collections.abc import Callable
from pathlib import Path

from ccvr.core.errors import UsageError
from ccvr.core.run import RunFolder
from ccvr.experiment.events import Events
from ccvr.experiment.pipeline import resume, start
from ccvr.experiment.spec import Spec, read_spec


def begin(spec: Spec, path: Path, *, overwrite: bool) -> Events:
    """A new run."""
    if spec.engine == "flower":
        return _launch()(spec, path, overwrite=overwrite)
    return start(spec, path, overwrite=overwrite)


def go_on(folder: RunFolder) -> Events:
    """A run that was stopped, on the engine that it began with."""
    is_finished = folder.results.is_file() and folder.model.is_file()
    if not is_finished and (spec := read_spec(folder.spec, trust=folder.trust)).engine == "flower":
        return _launch()(spec, folder.path, resume=True, trust=folder.trust)
    return resume(folder)


def _launch() -> Callable[..., Events]:
    try:
        from ccvr.flower.launch import launch  # now: not everybody has Flower
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        raise UsageError(f'engine is "flower", and {package} is missing: pip install "ccvr[flower]".') from error
    return launch
