"""Bring a run to its end: start it, go on with it, or leave it as it is."""

from collections.abc import Iterator
from pathlib import Path

from ccvr.core.errors import RunError
from ccvr.core.run import RunFolder
from ccvr.experiment.events import Event
from ccvr.experiment.pipeline import resume, start
from ccvr.experiment.spec import Spec, read_spec, training_settings


def bring(spec: Spec, path: Path) -> Iterator[Event]:
    """Events up to the end of the run at ``path``; one with other settings is in the way."""
    folder = RunFolder(path)
    if not folder.spec.is_file():
        yield from start(spec, path)
        return
    here, wanted = training_settings(read_spec(folder.spec)), training_settings(spec)
    for name, value in wanted.items():
        if here.get(name) != value:
            raise RunError(
                f"{path} holds a run with {name} = {here.get(name)!r}, not {value!r}. Move it, or use another --out."
            )
    yield from resume(folder)
