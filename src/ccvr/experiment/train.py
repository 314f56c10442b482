"""The rounds of a run: train, score, record, checkpoint."""

import dataclasses
import math
import time
from collections.abc import Iterator
from typing import Any

from ccvr.algorithms.table import algorithm_of
from ccvr.core.errors import TrainingError
from ccvr.core.run import RunFolder, write_atomically
from ccvr.data.batches import in_order
from ccvr.experiment.absent_clients import keep_absent
from ccvr.experiment.engine import OpenRun
from ccvr.experiment.events import RoundDone, Started
from ccvr.experiment.revise import reviser
from ccvr.experiment.setup import Setup
from ccvr.experiment.spec import Spec, training_settings
from ccvr.models.scoring import ClassCounts, class_counts
from ccvr.models.split import SplitModel
from ccvr.training.checkpoint import checkpoint_bytes, named_states, read_checkpoint
from ccvr.training.client_state import ClientStates
from ccvr.training.rounds import RoundState, first_state


def train(run: OpenRun) -> Iterator[Started | RoundDone]:
    """Run the rounds that no checkpoint has, and leave the last state in the run's model."""
    folder, setup, model = run.folder, run.setup, run.model
    spec, states = setup.spec, ClientStates(folder.client_states)
    state = reached = newest_state(folder, spec) or first_state(model, len(setup.kept), spec.training)
    folder.forget_rounds_after(reached.round)
    yield Started(reached.round, spec.training.rounds, setup.label_counts.tolist(), setup.dataset.class_names)
    started = time.perf_counter()
    for state in run.engine.rounds(model, states=states, resume=reached, revise=reviser(run)):
        last = state.round == spec.training.rounds
        state.load_into(model)
        counts = score_on_test(model, setup) if last or state.round % spec.training.evaluate_every == 0 else None
        if counts is not None and not math.isfinite(counts.mean_loss):
            raise TrainingError(
                f"the global model diverged: its test loss after round {state.round} is {counts.mean_loss}. "
                f"Lower training.lr ({spec.training.lr:g})."
            )
        keep_absent(run)
        seconds, started = time.perf_counter() - started, time.perf_counter()
        folder.append_round(_round_record(state, counts, seconds, spec))
        if last or state.round % spec.checkpoint.every == 0:
            _checkpoint(state, folder, states, spec)
        yield _round_done(state, counts, seconds, spec)
    state.load_into(model)


def score_on_test(model: SplitModel, setup: Setup) -> ClassCounts:
    """The counts of a model on the test set."""
    return class_counts(model, in_order(setup.dataset.test), setup.dataset.num_classes)


def newest_state(folder: RunFolder, spec: Spec) -> RoundState | None:
    """The state that the newest checkpoint has; an error if it was trained with another spec."""
    checkpoints = folder.checkpoints()
    return read_checkpoint(checkpoints[-1], training_settings(spec)) if checkpoints else None


def _checkpoint(state: RoundState, folder: RunFolder, states: ClientStates, spec: Spec) -> None:
    """Write a checkpoint, drop those beyond ``keep``, then the client states that none names."""
    write_atomically(folder.checkpoint(state.round), checkpoint_bytes(state, training_settings(spec)))
    checkpoints, keep = folder.checkpoints(), spec.checkpoint.keep
    for path in checkpoints[: max(0, len(checkpoints) - keep)] if keep else []:
        path.unlink()
    if state.client_rounds:
        states.sweep({pair for path in folder.checkpoints() for pair in named_states(path)})


def _round_done(state: RoundState, counts: ClassCounts | None, seconds: float, spec: Spec) -> RoundDone:
    examples = sum(report.num_examples for report in state.clients)
    loss = sum(report.num_examples * report.metrics.loss for report in state.clients) / examples
    accuracy, test_loss = (None, None) if counts is None else (counts.accuracy, counts.mean_loss)
    samples = examples * spec.training.local_epochs
    return RoundDone(state.round, spec.training.rounds, accuracy, test_loss, loss, samples, seconds)


def _round_record(state: RoundState, counts: ClassCounts | None, seconds: float, spec: Spec) -> dict[str, Any]:
    """One line of rounds.jsonl."""
    clients = [
        {
            "client": report.client,
            "examples": report.num_examples,
            "steps": report.num_steps,
            **dataclasses.asdict(report.metrics),
        }
        for report in state.clients
    ]
    return {
        "round": state.round,
        "accuracy": None if counts is None else counts.accuracy,
        "loss": None if counts is None else counts.mean_loss,
        "seconds": seconds,
        **algorithm_of(spec.training).report(state.server),
        "clients": clients,
        **({"revision_bytes": state.revision_bytes} if state.revision_bytes else {}),
    }
