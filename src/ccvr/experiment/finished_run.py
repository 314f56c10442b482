"""A finished run with its data and its trained model, to be calibrated or looked at."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ccvr.core.errors import RunError
from ccvr.core.provenance import provenance
from ccvr.core.results import Results
from ccvr.core.run import RunFolder, write_atomically
from ccvr.core.trust import require_trust
from ccvr.experiment.engine import LocalEngine, OpenRun
from ccvr.experiment.setup import prepare
from ccvr.experiment.spec import Spec, read_spec
from ccvr.experiment.train import newest_state
from ccvr.training.checkpoint import trained_with
from ccvr.training.rounds import RoundState


@dataclass(frozen=True)
class FinishedRun(OpenRun):
    """A run that is done: the state after its last round, which is loaded into ``model``, and its results."""

    engine: LocalEngine
    state: RoundState
    results: Results


def open_finished_run(folder: RunFolder, *, mending: bool = False) -> FinishedRun:
    """Load a finished run; data that changed since, or a lost checkpoint, is an error.

    So are heads that are not those of results.json, unless the caller is ``mending`` them.
    """
    spec, results = spec_of(folder), trusted_results(folder)
    if not mending:
        folder.require_unchanged(results)
    torch.set_num_threads(spec.threads)
    setup = prepare(spec)
    keep_partition(folder, setup.partition_bytes())
    state = newest_state(folder, spec)
    if state is None or state.round != spec.training.rounds:
        raise RunError(
            f"{folder.path} has lost the checkpoint of its last round, {spec.training.rounds}. "
            "Delete its results.json and train the missing rounds again with `ccvr resume`."
        )
    return FinishedRun(folder, setup, LocalEngine(setup), state.load_into(setup.fresh_model()), state, results)


def trusted_results(folder: RunFolder) -> Results:
    """The results of a run whose methods are about to be looked up; names of code need the folder's trust."""
    results = folder.read_results()
    require_trust({"calibrations": results["calibrations"]}, folder.results, folder.trust)
    return results


def spec_of(folder: RunFolder) -> Spec:
    """The spec of a run, begun or finished, with the step that its checkpoints were trained with.

    Runs of versions that knew no step were trained by torch.
    """
    spec, checkpoints = read_spec(folder.spec, trust=folder.trust), folder.checkpoints()
    if spec.training.step != "auto" or not checkpoints:
        return spec
    by_kernels = trained_with(checkpoints[-1]).get("training.step") == "halide"
    return replace(spec, training=replace(spec.training, step="halide" if by_kernels else "torch"))


def note_command(folder: RunFolder, seed: int, what: str) -> None:
    """Keep where a run comes from: its first start, and each time that it was ``resumed``, ``calibrated``, …."""
    now = provenance(seed)
    if not folder.provenance.is_file():
        folder.write_json(folder.provenance, {**now, "resumed": [], "calibrated": []})
        return
    first = folder.read_provenance()
    folder.write_json(folder.provenance, {**first, what: [*first.get(what, []), now]})


def keep_partition(folder: RunFolder, drawn: bytes) -> None:
    """Who owns what must not change between a run's start and its end."""
    if folder.partition.is_file() and not _holds(folder.partition, drawn):
        raise RunError(
            f"{folder.partition} was drawn from other samples, or for other owners, than spec and data give now. "
            "Undo what was changed in spec.toml or in the data, or start a new run."
        )
    write_atomically(folder.partition, drawn)


def _holds(path: Path, content: bytes) -> bool:
    """Whether a file has this content; a larger one is not read."""
    return path.stat().st_size == len(content) and path.read_bytes() == content
