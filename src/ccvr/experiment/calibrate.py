"""The calibrations of a run: fit, keep, score, deploy."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace

import numpy as np
import torch
from torch import Tensor

from ccvr.calibration.calibrator import fit_head, seed_of
from ccvr.calibration.methods import SELECT, Calibration
from ccvr.calibration.select import select
from ccvr.calibration.table import find_calibrator
from ccvr.core.results import UNCALIBRATED, ClientScores, Results
from ccvr.core.run import RunFolder, write_atomically
from ccvr.data.images import IntArray
from ccvr.experiment.absent_clients import keep_absent
from ccvr.experiment.engine import Engine
from ccvr.experiment.events import HeadScored
from ccvr.experiment.feature_store import FeatureStore
from ccvr.experiment.load import head_bytes, model_bytes, read_head
from ccvr.experiment.setup import Setup
from ccvr.experiment.statistics_cache import StatisticsCache
from ccvr.experiment.train import score_on_test
from ccvr.models.build import model_name
from ccvr.models.heads import copy_head
from ccvr.models.scoring import ClassCounts, score
from ccvr.models.split import SplitModel
from ccvr.statistics.moments import ClassStatistics
from ccvr.statistics.wire import payload_bytes


def score_trained(results: Results, setup: Setup, engine: Engine, model: SplitModel, folder: RunFolder) -> HeadScored:
    """Score the head as training left it, and keep it beside the others."""
    write_atomically(folder.head(UNCALIBRATED), head_bytes(model.head))
    return _score_head(results, UNCALIBRATED, model, setup, engine, score_on_test(model, setup), seconds=0.0)


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
        results["calibrations"][calibration.label] = {
            "method": calibration.name,
            "statistics": given.kind if isinstance(given, ClassStatistics) else "features",
            "absent_classes": list(absent),
            **asdict(method),
            "seed": seed,
            "bytes": sent,
            "seconds": round(seconds, 3),
        }
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
    results["accuracy"][label] = round(counts.accuracy, 4)
    results["per_class_recall"][label] = [None if each is None else round(each, 4) for each in counts.recall]
    results["client_accuracy"][label] = client_accuracy(counts, setup.label_counts)
    if setup.spec.data.validation:
        answers = (counts[label] for counts in engine.score(model, {label: model.head}))
        held_out = sum(answers, start=ClassCounts.zeros(setup.dataset.num_classes))
        results.setdefault("validation_accuracy", {})[label] = round(held_out.accuracy, 4)
    return HeadScored(label, counts.accuracy, seconds)


def client_accuracy(counts: ClassCounts, label_counts: IntArray) -> ClientScores:
    """Accuracy under each client's own label mix, Σ_c p_kc recall_c; classes without test samples are left out."""
    total = counts.total.numpy()
    recall = counts.correct.numpy() / np.maximum(total, 1)
    weights = label_counts * (total > 0)
    mixes = weights[weights.sum(1) > 0]
    if not len(mixes):
        return {"mean": None, "worst": None, "p10": None}
    clients = 100 * (mixes @ recall) / mixes.sum(1)
    mean, worst, p10 = (round(float(each), 4) for each in (clients.mean(), clients.min(), np.percentile(clients, 10)))
    return {"mean": mean, "worst": worst, "p10": p10}


def deploy(results: Results, label: str, setup: Setup, engine: Engine, model: SplitModel, folder: RunFolder) -> None:
    """Save one head's model as the run's, then the results: their being there says that the run is finished."""
    spec = setup.spec
    if label == SELECT:
        label = _select(results, engine, model, folder)
    content = model_bytes(
        model,
        read_head(folder.head(label)),
        name=model_name(spec.model, setup.dataset.shape),
        head_path=spec.model.head,
        image_shape=setup.dataset.shape,
    )
    write_atomically(folder.model, content)
    results["deployed"] = label
    if absent := keep_absent(engine, folder):
        results["missing"] = absent
    folder.write_results(results)


def _select(results: Results, engine: Engine, model: SplitModel, folder: RunFolder) -> str:
    """The label of the head that wins on the clients' held-out parts, if any beats the trained one."""
    rows = results["calibrations"]
    labels = [UNCALIBRATED, *(label for label in rows if not find_calibrator(rows[label]["method"]).raw)]
    heads = {label: read_head(folder.head(label)) for label in labels}
    found = select(heads, engine.score(model, heads))
    results["selection"] = {"recall": found.recall, "standard_error": found.error}
    return found.name
