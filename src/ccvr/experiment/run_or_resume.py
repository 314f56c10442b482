"""Bring a run to its end: start it, go on with it, or leave it as it is."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ccvr.core.errors import RunError
from ccvr.core.run import RunFolder, write_atomically
from ccvr.core.trust import Trust, typed_names
from ccvr.experiment.events import Event
from ccvr.experiment.finished_run import spec_of
from ccvr.experiment.pipeline import resume, start
from ccvr.experiment.spec import Spec, read_spec, to_toml, training_settings


def run_or_resume(spec: Spec, path: Path, *, trust: Trust = False) -> Iterator[Event]:
    """Events up to the end of the run at ``path``; one with other settings is in the way.

    The run at ``path`` may name the code that the spec names; other code needs ``trust``.
    """
    folder = RunFolder(path, trust or named_in(spec))
    if not folder.spec.is_file():
        begun = False
        try:
            for event in start(spec, path):
                begun = True
                yield event
        except RunError:
            if begun or not folder.spec.is_file():
                raise  # otherwise another process began the same run while this one was reading the data
        else:
            return
    require_same_training(spec, folder)
    settle(folder, spec)
    yield from resume(folder)


def named_in(spec: Spec) -> frozenset[str]:
    """The names of code in a spec, which its author may import."""
    return typed_names(to_toml(spec))


def require_same_training(spec: Spec, folder: RunFolder) -> None:
    """Refuse a folder whose run trains something else."""
    here, wanted = training_settings(spec_of(folder)), training_settings(spec)
    for name, value in wanted.items():
        if here.get(name) != value and (name, value) != ("training.step", "auto"):
            raise RunError(
                f"{folder.path} holds a run with {name} = {here.get(name)!r}, not {value!r}. Move it, or use another "
                "--out."
            )


def settle(folder: RunFolder, spec: Spec) -> None:
    """Have a run go on with the workers, and the data in the place, that a spec names; neither changes a result."""
    here = read_spec(folder.spec, trust=folder.trust)
    data, workers = spec.data.anchored(), spec.workers
    now = replace(
        here,
        workers=here.workers if workers is None else workers,
        data=here.data if data.root is None else replace(here.data, root=data.root),
    )
    if now != here:
        with folder.locked():
            write_atomically(folder.spec, to_toml(now).encode())
