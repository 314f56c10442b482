"""The calibrations of a run: fit, keep, score, deploy."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ccvr.calibration.calibrator import fit_head, seed_of
from ccvr.calibration.methods import SELECT, Calibration
from ccvr.calibration.select import select
from ccvr.calibration.spec import UNCALIBRATED
from ccvr.calibration.table import find_calibrator
from ccvr.core.run import RunFolder, write_atomically
from ccvr.experiment.absent_clients import keep_absent
from ccvr.experiment.engine import Engine
from ccvr.experiment.events import HeadScored, Noted
from ccvr.experiment.feature_store import FeatureStore
from ccvr.experiment.load import head_bytes, model_bytes, read_head
from ccvr.experiment.results import Results, add_calibration, add_score, personal_accuracy
from ccvr.experiment.setup import Setup
from ccvr.experiment.statistics_cache import StatisticsCache
from ccvr.experiment.train import newest_state, score_on_test
from ccvr.models.heads import copy_head
from ccvr.models.scoring import ClassCounts, score
from ccvr.models.split import SplitModel
from ccvr.statistics.moments import ClassStatistics
from ccvr.statistics.wire import payload_bytes
from ccvr.training.algorithms import find_algorithm, has_private
from ccvr.training.client_state import ClientStates


def score_trained(results: Results, setup: Setup, engine: Engine, model: SplitModel, folder: RunFolder) -> HeadScored:
    """Score the head as training left it, and keep it beside the others."""
    write_atomically(folder.head(UNCALIBRATED), head_bytes(model.head))
    return _score_head(results, UNCALIBRATED, model, setup, engine, score_on_test(model, setup), seconds=0.0)


def score_personal(results: Results, setup: Setup, engine: Engine, folder: RunFolder) -> Iterator[Noted]:
    """Score each client's own model on its held-out part, where tensors stay with clients."""
    state = newest_state(folder, setup.spec)
    if state is None or not has_private(find_algorithm(setup.spec.training.algorithm), state.model):
        return
    if not setup.spec.data.validation:
        yield Noted(
            "some tensors stay with the clients, and the global model has those of the start; set data.validation, "
            "for example 0.15, to score each client's own model"
        )
        return
    counts = engine.personal_scores(state, states=ClientStates(folder.memories))
    results["personal_accuracy"] = found = personal_accuracy(list(counts))
    yield Noted(f"each client's own model on its held-out samples: mean {found['mean']} %, worst {found['worst']} %")


def fit_all(
    results: Results,
    calibrations: Sequence[Calibration],
    setup: Setup,
    engine: Engine,
    model: SplitModel,
    folder: RunFolder,
) -> Iterator[HeadScored]:
    """Fit, keep and score one calibration after the other; what they found is entered into ``results``."""
    cache = StatisticsCache(engine, model, folder)
    test = FeatureStore(setup.dataset.test, [np.arange(len(setup.dataset.test))])
    trained, names = copy_head(model.head).cpu(), setup.dataset.class_names
    for calibration in calibrations:
        started = time.perf_counter()
        method, seed = calibration.method, seed_of(calibration.method, setup.spec.seed)
        given = cache.of(method, seed=seed)
        head = fit_head(method, trained, given, seed=seed)
        seconds = time.perf_counter() - started
        fitted = model.with_head(copy_head(head).to(setup.spec.device))  # first: a head that does not fit is not kept
        write_atomically(folder.head(calibration.label), head_bytes(head))
        sent = _num_bytes(setup, given, min_count=getattr(method, "min_count", 0))
        count = given.count if isinstance(given, ClassStatistics) else torch.bincount(given[1], minlength=len(names))
        absent = tuple(name for name, number in zip(names, count.tolist(), strict=True) if not number)
        add_calibration(
            results,
            calibration,
            statistics=given.kind if isinstance(given, ClassStatistics) else "features",
            absent=absent,
            seed=seed,
            num_bytes=sent,
            seconds=seconds,
        )
        scores = (score(fitted.head, features, len(names)) for features in test.read(model, fitted.head.taps))
        counts = sum(scores, start=ClassCounts.zeros(len(names)))
        scored = _score_head(results, calibration.label, fitted, setup, engine, counts, seconds=seconds)
        yield replace(scored, absent=absent)


def _num_bytes(setup: Setup, given: ClassStatistics | tuple[Tensor, Tensor], *, min_count: int) -> int:
    """What all clients together would send: their features, or statistics of the classes not withheld."""
    if not isinstance(given, ClassStatistics):
        z, _ = given
        return len(z) * (4 * z.shape[1] + 8)
    present = (setup.label_counts >= max(min_count, 1)).sum(1).tolist()
    sent = sum(payload_bytes(given.kind, number, given.num_features) for number in present)
    if given.projection is not None:  # the first exchange
        sent += sum(payload_bytes("diagonal", number, len(given.projection.mean)) for number in present)
    return sent


def _score_head(
    results: Results,
    label: str,
    model: SplitModel,
    setup: Setup,
    engine: Engine,
    counts: ClassCounts,
    *,
    seconds: float,
) -> HeadScored:
    """Enter the counts on the test set, and those on the held-out part where there is one."""
    add_score(results, label, counts, setup.label_counts)
    if setup.spec.data.validation:
        answers = (counts[label] for counts in engine.score(model, {label: model.head}))
        held_out = sum(answers, start=ClassCounts.zeros(setup.dataset.num_classes))
        results.setdefault("validation_accuracy", {})[label] = round(held_out.accuracy, 4)
    return HeadScored(label, counts.accuracy, seconds)


def deploy(results: Results, label: str, setup: Setup, engine: Engine, model: SplitModel, folder: RunFolder) -> None:
    """Save one head's model as the run's, then the results: their being there says that the run is finished."""
    if label == SELECT:
        label = _select(results, engine, model, folder)
    write_atomically(folder.model, model_bytes(model, read_head(folder.head(label)), setup.blueprint))
    results["deployed"] = label
    if missing := keep_absent(engine, folder):
        results["missing"] = missing
    folder.write_json(folder.results, results)


def _select(results: Results, engine: Engine, model: SplitModel, folder: RunFolder) -> str:
    """The label of the head that wins on the clients' held-out parts, if any beats the trained one."""
    rows = results["calibrations"]
    labels = [UNCALIBRATED, *(label for label in rows if not find_calibrator(rows[label]["method"]).raw)]
    heads = {label: read_head(folder.head(label)) for label in labels}
    found = select(heads, engine.score(model, heads))
    results["selection"] = {"recall": found.recall, "standard_error": found.error}
    return found.name
