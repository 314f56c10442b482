"""Models of the clients' own: those that training made, and those that a method makes of a finished run."""

import copy
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor, nn

from ccvr.algorithms.messages import Client
from ccvr.algorithms.table import algorithm_of
from ccvr.calibration.methods import method_of
from ccvr.core.errors import CcvrError, RunError, TrainingError
from ccvr.core.results import TRAINED, UNCALIBRATED, Personal, Results, personal_rows
from ccvr.core.run import RunFolder
from ccvr.core.schema import Count
from ccvr.data.batches import in_order
from ccvr.experiment.calibrate import client_scores, own_mix_accuracy
from ccvr.experiment.engine import OpenRun
from ccvr.experiment.events import ClientScored, Events, Finished, Noted
from ccvr.experiment.finished_run import FinishedRun, note_command, open_finished_run, trusted_results
from ccvr.experiment.load import read_head
from ccvr.experiment.personalisations import Labelled
from ccvr.experiment.train import newest_state
from ccvr.kernels.inputs import call
from ccvr.models.modes import evaluating
from ccvr.models.scoring import ClassCounts, class_counts
from ccvr.models.split import SplitModel
from ccvr.training.client_state import ClientStates
from ccvr.training.personalisation import Start, own_model


class Scored(TypedDict):
    """The content of personal.json: the scores of own models that training made, after a round."""

    round: Count
    personal: Personal


Counted = tuple[int, ClassCounts]
"""A client, and the counts of its own model on the test set."""


# --- those that training made -----------------------------------------------------------------------------------------


def score_own_models(results: Results, run: OpenRun) -> Iterator[Noted]:
    """Score each client's own model on the test set under the client's label mix, where training made such models."""
    spec, algorithm = run.setup.spec, algorithm_of(run.setup.spec.training)
    state = newest_state(run.folder, spec)
    if state is None:
        return
    for name, value in algorithm.report(state.server).items():
        yield Noted(f"{name} after the last round: {value}")
    if not has_own_models(run):
        return
    if algorithm.private_names(run.model):
        yield Noted("some tensors stay with the clients; the global model, which is calibrated, has those of the start")
        yield from _who_took_part(len(state.client_rounds), len(run.setup.kept))
    path = run.folder.personal
    kept = run.folder.read_json(path, "Delete it to score again.", Scored) if path.is_file() else {}
    if kept.get("round") != state.round:
        # Kept at once: clients on Flower cannot answer again after Flower's own run has ended.
        answers = run.engine.personal_scores(state, states=ClientStates(run.folder.client_states))
        kept = {"round": state.round, "personal": _row(answers, run, spec.training.algorithm, {}, UNCALIBRATED)}
        run.folder.write_json(path, kept)
    row: Personal = kept["personal"]
    results["personal"] = {TRAINED: row}
    yield Noted(_said(TRAINED, row))


def _who_took_part(number: int, num_clients: int) -> Iterator[Noted]:
    """How many clients have tensors of their own that were trained, where not all have."""
    if number < num_clients:
        yield Noted(
            f"{number} of {num_clients} clients took part in training; the tensors that stay with the others are as "
            "they were built, and their own models count all the same"
        )


def has_own_models(run: OpenRun) -> bool:
    """Whether the algorithm itself gives each client a model of its own."""
    algorithm = algorithm_of(run.setup.spec.training)
    return bool(algorithm.private_names(run.model)) or algorithm.adapts()


def _row(answers: Iterable[Counted], run: OpenRun, method: str, options: dict[str, Any], head: str) -> Personal:
    """The scores of the clients' own models, as results.json has them."""
    mixes = run.setup.label_counts
    found = {client: own_mix_accuracy(counts, mixes[[client]]) for client, counts in answers}
    accuracies = np.concatenate([np.zeros(0), *found.values()])
    clients = [round(float(found[k][0]), 4) if len(found.get(k, ())) else None for k in range(len(mixes))]
    scores = client_scores(accuracies)
    return {"method": method, "options": options, "head": head, "accuracy": scores, "clients": clients}


def _said(label: str, row: Personal) -> str:
    found = row["accuracy"]
    return f"{label}: each client's own model under its label mix: mean {found['mean']} %, worst {found['worst']} %"


# --- those that a method makes ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Clients:
    """The clients of a finished run, and where they start from."""

    run: FinishedRun
    head: str
    """Label of the head."""

    def starts(self) -> Iterator[Start]:
        """What each client has at hand, with a model of its own to change."""
        spec, counts = self.run.setup.spec, torch.from_numpy(self.run.setup.label_counts)
        for client, model in zip(self._own_samples, self._models(), strict=True):
            copied, last = copy.deepcopy(model).train(), self.run.state.round
            yield Start(copied, client, counts[client.id], self.prior, spec.training, last + 1, spec.seed)

    @cached_property
    def _own_samples(self) -> list[Client]:
        """Without those that all clients share."""
        owned = zip(self.run.engine.clients(), self.run.setup.kept.shards, strict=True)
        return [replace(client, indices=own) for client, own in owned]

    def _models(self) -> Iterator[SplitModel]:
        """The model that each client starts from: its own where training made one, or the global one."""
        run = self.run
        if self.has_trained_models:
            own = run.engine.own_models(run.state, states=ClientStates(run.folder.client_states))
            return (model for _, model in own)
        head = read_head(run.folder.head(self.head)).to(run.setup.spec.device)
        return itertools.repeat(run.model.with_head(head), len(run.setup.kept))

    @property
    def has_trained_models(self) -> bool:
        return self.head == UNCALIBRATED and has_own_models(self.run)

    @cached_property
    def prior(self) -> Tensor | None:
        """Label frequencies, up to a factor, that the head's scores assume; None where they assume none."""
        setup = self.run.setup
        if self.head != UNCALIBRATED:
            assumed = method_of(self.run.results["calibrations"][self.head]).label_prior
            counts = torch.from_numpy(setup.label_counts.sum(0))
            return {"uniform": torch.ones_like(counts), "counts": counts}.get(assumed)
        if self.has_trained_models:
            return None  # what each client made of its model on its own samples assumes no frequencies of all
        labels = setup.dataset.train.labels[torch.from_numpy(np.concatenate(setup.trained_on))]
        return torch.bincount(labels.long(), minlength=setup.dataset.num_classes)

    def require(self, asked: Labelled) -> None:
        """Refuse what cannot be done from this start."""
        if self.has_trained_models and self.run.setup.spec.engine == "flower":
            raise RunError(
                f"{self.run.folder.path} ran on Flower: what its clients kept of their own models stayed with them. "
                "Start from a calibrated head with --head."
            )
        try:
            asked.method.require(read_head(self.run.folder.head(self.head)), self.prior)
        except CcvrError as error:
            where = " of each client's own model" if self.has_trained_models else ""
            raise type(error)(f'{asked.label} cannot start from the head "{self.head}"{where}: {error}') from error


def personalise_run(
    folder: RunFolder, methods: Sequence[Labelled], *, head: str | None = None, overwrite: bool = False
) -> Events:
    """Let each client of a finished run make models of its own, and add their scores to the run's results.

    Args:
        folder: the run.
        methods: the personalisations, with their labels.
        head: label of the head that they start from; without it the one that each method prefers.
        overwrite: replace what has the same label. Without it, what was made in the same way is left as it is.
    """
    with folder.locked():
        results = trusted_results(folder)
        heads = {each: _head_of(folder, results, each, head) for each in methods}
        there = [each for each, label in heads.items() if not overwrite and _is_there(folder, results, each, label)]
        todo = {each: label for each, label in heads.items() if each not in there}
        for each in there:
            yield Noted(f"{each.label} is there already, made in the same way")
        if todo:
            run = open_finished_run(folder)
            clients = {label: _Clients(run, label) for label in todo.values()}
            for each, label in todo.items():
                clients[label].require(each)
            note_command(folder, run.setup.spec.seed, "personalised")
            for each, label in todo.items():
                yield from _added(results, clients[label], each)
        yield Finished(results)


def _head_of(folder: RunFolder, results: Results, asked: Labelled, head: str | None) -> str:
    """The label of the head that a method starts from."""
    label = head or (UNCALIBRATED if asked.method.from_trained else results["deployed"])
    known = [UNCALIBRATED, *results["calibrations"]]
    if label not in known:
        raise RunError(f'{folder.path} has no head "{label}". It has: {", ".join(known)}.')
    return label


def _is_there(folder: RunFolder, results: Results, asked: Labelled, head: str) -> bool:
    """Whether a label is taken; by models that were made in another way is an error."""
    row = personal_rows(results).get(asked.label)
    if row and (row["method"], row["options"], row["head"]) != (asked.name, asked.options, head):
        raise RunError(
            f'{folder.path} has "{asked.label}" already, made in another way. '
            "Use --overwrite, or --method METHOD,label=NAME."
        )
    return row is not None


def _added(results: Results, clients: _Clients, asked: Labelled) -> Iterator[ClientScored | Noted]:
    """One method for all clients. Its scores are written at once: a kill loses no method that is done."""
    started, answers, run = time.perf_counter(), list[Counted](), clients.run
    for start in clients.starts():
        if len(start.client.indices):
            answers.append((start.client.id, _counted(own_model(asked.method, start), run, asked.name)))
        yield ClientScored(asked.label, start.client.id + 1, len(run.setup.kept))
    row = _row(answers, run, asked.name, asked.options, clients.head)
    results["personal"] = {**personal_rows(results), asked.label: row}
    results.pop("personal_accuracy", None)
    run.folder.write_results(results)
    yield Noted(f"{_said(asked.label, row)}, {time.perf_counter() - started:.1f} s")


def _counted(model: nn.Module, run: FinishedRun, name: str) -> ClassCounts:
    """The counts of a client's own model, which may be a user's, on the test set."""
    dataset, expected = run.setup.dataset, [1, run.setup.dataset.num_classes]
    with evaluating(model):
        found = call(model, dataset.test.first(1))
    if not isinstance(found, Tensor) or list(found.shape) != expected:
        got = f"scores of shape {list(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise TrainingError(f"the model of {name} gives {got} for one sample; it must give scores {expected}.")
    return class_counts(model, in_order(dataset.test), dataset.num_classes)
