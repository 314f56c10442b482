"""The straight path: rounds → statistics → heads → results, each step kept in the run folder.

Everything is a function of the spec and the newest checkpoint, so a run that was killed and resumed ends in the same
bits.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from ccvr.algorithms.table import algorithm_of, find_algorithm
from ccvr.calibration.methods import SELECT, Calibration, methods_of, parse_calibrations, require_deployable
from ccvr.core.errors import RunError, SpecError
from ccvr.core.results import UNCALIBRATED, Results, empty_results, shared_line
from ccvr.core.run import RunFolder, write_atomically
from ccvr.experiment.absent_clients import absent_now
from ccvr.experiment.calibrate import deploy, fit_all, score_trained
from ccvr.experiment.engine import Engine, LocalEngine, OpenRun
from ccvr.experiment.events import ClientsAbsent, Event, Events, Finished, HeadScored, Noted
from ccvr.experiment.finished_run import keep_partition, note_command, open_finished_run, spec_of, trusted_results
from ccvr.experiment.log import log_figures, logged, require_tensorboard
from ccvr.experiment.mend import is_finished, is_same, mended
from ccvr.experiment.personalise import score_own_models
from ccvr.experiment.revise import require_revisable
from ccvr.experiment.setup import Setup, prepare
from ccvr.experiment.spec import Spec, read_spec, to_toml
from ccvr.experiment.step import decided, notes
from ccvr.experiment.train import train
from ccvr.training.rounds import first_state

EngineOf = Callable[[Setup], Engine]


def engine_here(setup: Setup) -> Engine:
    """The engine of this process, for specs that ask for it."""
    if setup.spec.engine != "local":
        raise SpecError(
            f'engine is "{setup.spec.engine}", which only the command starts: `ccvr run`, or `ccvr resume RUN`.'
        )
    return LocalEngine(setup)


def start(spec: Spec, path: Path, *, overwrite: bool = False, engine: EngineOf = engine_here) -> Events:
    """A new run at ``path``. Whatever can be wrong with the spec is found before the folder is made."""
    spec = replace(spec, data=spec.data.anchored())
    torch.set_num_threads(spec.threads)
    require_names(spec)
    setup = _decided(prepare(spec))
    first_state(setup.fresh_model(), len(setup.kept), setup.spec.training)  # refuses a model that does not suit
    RunFolder(path).require_room(overwrite=overwrite)  # before clients are waited for
    clients = engine(setup)
    folder = RunFolder.create(path, overwrite=overwrite)
    with folder.locked():
        write_atomically(folder.spec, to_toml(setup.spec).encode())
        yield from _execute(spec, OpenRun(folder, setup, clients, setup.fresh_model()))


def _decided(setup: Setup) -> Setup:
    """The same with the step that trains decided."""
    model = setup.fresh_model()
    require_revisable(setup.spec, model)
    return replace(setup, spec=decided(setup.spec, model))


def require_names(spec: Spec) -> None:
    """Find mistakes in what a spec names, before anything is loaded."""
    parse_calibrations(spec.calibration)
    _require_held_out(spec.calibration.deploy, spec)
    algorithm = algorithm_of(spec.training)
    algorithm.require(spec.training)
    if algorithm.needs_unlabelled and not spec.data.unlabelled:
        raise SpecError(
            f'the server of "{spec.training.algorithm}" learns from unlabelled samples, and there are none. '
            "Set data.unlabelled, for example 0.1."
        )
    require_tensorboard(spec)


def resume(folder: RunFolder, *, engine: EngineOf = engine_here) -> Events:
    """Bring a run to its end, from wherever it is."""
    with folder.locked():
        read_spec(folder.spec, trust=folder.trust)  # a run that names code of others is refused, finished or not
        if is_finished(folder):
            yield from mended(folder)
            return
        spec = spec_of(folder)
        torch.set_num_threads(spec.threads)
        require_tensorboard(spec)
        setup = _decided(prepare(spec))
        clients = engine(setup)
        if setup.spec != read_spec(folder.spec, trust=folder.trust):
            write_atomically(folder.spec, to_toml(setup.spec).encode())
        yield from _execute(spec, OpenRun(folder, setup, clients, setup.fresh_model()))


def _execute(asked: Spec, run: OpenRun) -> Iterator[Event]:
    """Notes about the spec as it was ``asked`` for, then all stages, logged where the spec says so."""
    yield from notes(asked, run.setup.spec, run.model, sum(map(len, run.setup.trained_on)))
    if note := find_algorithm(asked.training.algorithm).note:
        yield Noted(note)
    yield from logged(_naming_absent_clients(_stages(run), run.engine), run.folder, asked)


def _stages(run: OpenRun) -> Iterator[Event]:
    folder, setup = run.folder, run.setup
    note_command(folder, setup.spec.seed, "resumed")
    keep_partition(folder, setup.partition_bytes())
    results = empty_results(setup.dataset.class_names, len(setup.kept))
    if len(setup.shared):
        results["shared"] = {"samples": len(setup.shared), "bytes": setup.shared_bytes}
        yield Noted(shared_line(results))
    calibrations = parse_calibrations(setup.spec.calibration)
    yield from train(run)
    yield score_trained(results, run)
    yield from score_own_models(results, run)
    yield from fit_all(results, calibrations, run)
    wanted = setup.spec.calibration.deploy or next((each.label for each in calibrations), UNCALIBRATED)
    deploy(results, wanted, run)
    yield Finished(results)


def _naming_absent_clients(events: Iterator[Event], engine: Engine) -> Iterator[Event]:
    """The same events; a ClientsAbsent stands before an event whose question some clients did not answer."""
    told = set[tuple[str, str]]()
    for event in events:
        for question, clients in absent_now(engine).items():
            new = {client: why for client, why in clients.items() if (question, client) not in told}
            told |= {(question, client) for client in new}
            if new:
                yield ClientsAbsent(question, new)
        yield event


def _require_held_out(label: str, spec: Spec) -> None:
    if label == SELECT and not spec.data.validation:
        raise SpecError(
            'calibration.deploy is "select", but no client holds out samples. Set data.validation, for example 0.15.'
        )


def calibrate_again(
    folder: RunFolder, calibrations: Sequence[Calibration], *, overwrite: bool = False, chosen: str | None = None
) -> Events:
    """Add calibrations to a finished run; ``chosen`` is deployed instead of what was.

    What was made in the same way is there already, so the same call goes on after a kill.
    """
    with folder.locked():
        spec = read_spec(folder.spec, trust=folder.trust)
        trusted_results(folder)
        yield from (event for event in mended(folder) if not isinstance(event, Finished))
        results = folder.read_results()
        there = [] if overwrite else _already_there(folder, results, calibrations, spec.seed)
        calibrations = [each for each in calibrations if each not in there]
        require_deployable(chosen or results["deployed"], _methods(results, calibrations))
        _require_held_out(chosen or "", spec)
        require_tensorboard(spec)
        for each in there:
            yield Noted(f"{each.label} is there already, made in the same way")
        if not (calibrations or chosen not in (None, results["deployed"])):
            yield Finished(results)
            return
        run = open_finished_run(folder)
        note_command(folder, spec.seed, "calibrated")
        for event in logged(fit_all(results, calibrations, run), folder, spec):
            notes = [*_drop_own_models(results, event.label)] if isinstance(event, HeadScored) else []
            deploy(results, results["deployed"], run)  # a kill loses no finished head
            yield event
            yield from notes
        deploy(results, chosen or results["deployed"], run)
        yield Finished(results)


def _already_there(
    folder: RunFolder, results: Results, calibrations: Sequence[Calibration], seed: int
) -> list[Calibration]:
    """Calibrations that the run has, made in the same way; one of the same label, made in another way, is an error."""
    there = [each for each in calibrations if each.label in results["accuracy"]]
    for each in there:
        if not is_same(each, results["calibrations"].get(each.label, {}), seed):
            raise RunError(
                f'{folder.path} has "{each.label}" already, made in another way. '
                "Use --overwrite, or --method METHOD,label=NAME."
            )
    return there


def _drop_own_models(results: Results, head: str) -> Iterator[Noted]:
    """Forget clients' own models that started from an earlier head of this label."""
    rows = results.get("personal", {})
    stale = [label for label, row in rows.items() if row["head"] == head]
    if stale:
        results["personal"] = {label: row for label, row in rows.items() if label not in stale}
        yield Noted(f'{", ".join(stale)} of the earlier head "{head}" is dropped; `ccvr personalise` makes it again')


def _methods(results: Results, calibrations: Sequence[Calibration]) -> dict[str, str]:
    """The method of every label, old and new."""
    old = {label: row["method"] for label, row in results["calibrations"].items()}
    return old | methods_of(calibrations)


def run(spec: Spec, out: str | Path, *, overwrite: bool = False) -> Results:
    """Train and calibrate in one call; the run folder is ``out``, and what results.json says comes back."""
    events = list(start(spec, Path(out), overwrite=overwrite))
    log_figures(RunFolder(Path(out), trust=True))
    return next(event.results for event in events if isinstance(event, Finished))
