"""The calibrations of a run: fit, keep, score, deploy."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch

from ccvr.calibration.calibrator import fit_head, seed_of
from ccvr.calibration.methods import SELECT, Calibration
from ccvr.calibration.select import select
from ccvr.calibration.table import find_calibrator
from ccvr.core.arrays import Array, IntArray
from ccvr.core.files import sha256
from ccvr.core.results import NO_SCORES, UNCALIBRATED, ClientScores, Results
from ccvr.core.run import write_atomically
from ccvr.experiment.absent_clients import keep_absent
from ccvr.experiment.engine import OpenRun
from ccvr.experiment.events import HeadScored
from ccvr.experiment.feature_store import FeatureStore
from ccvr.experiment.load import head_bytes, model_bytes, read_head
from ccvr.experiment.statistics_cache import StatisticsCache, statistics_bytes
from ccvr.experiment.train import score_on_test
from ccvr.models.heads import copy_head
from ccvr.models.scoring import ClassCounts, class_counts
from ccvr.models.split import SplitModel
from ccvr.statistics.moments import ClassStatistics


def score_trained(results: Results, run: OpenRun) -> HeadScored:
    """Score the head as training left it, and keep it beside the others."""
    _keep(results, run, run.folder.head(UNCALIBRATED), head_bytes(run.model.head))
    return _score_head(results, UNCALIBRATED, run.model, run, score_on_test(run.model, run.setup), seconds=0.0)


def _keep(results: Results, run: OpenRun, path: Path, content: bytes) -> None:
    """Write a head or the model, and enter its digest, which tells readers of the results whether they are of it."""
    write_atomically(path, content)
    results.setdefault("files", {})[run.folder.name_of(path)] = sha256(content)


def fit_all(results: Results, calibrations: Sequence[Calibration], run: OpenRun) -> Iterator[HeadScored]:
    """Fit, keep and score one calibration after the other; what they found is entered into ``results``."""
    cache, dataset, spec = StatisticsCache(run), run.setup.dataset, run.setup.spec
    test = FeatureStore(dataset.test, [np.arange(len(dataset.test))])
    trained, names = copy_head(run.model.head).cpu(), dataset.class_names
    for calibration in calibrations:
        started = time.perf_counter()
        method, seed = calibration.method, seed_of(calibration.method, spec.seed)
        given = cache.of(method, seed=seed)
        head = fit_head(method, trained, given, seed=seed)
        seconds = time.perf_counter() - started
        fitted = run.model.with_head(copy_head(head).to(spec.device))  # first: a head that does not fit is not kept
        _keep(results, run, run.folder.head(calibration.label), head_bytes(head))
        count = given.count if isinstance(given, ClassStatistics) else torch.bincount(given[1], minlength=len(names))
        absent = tuple(name for name, number in zip(names, count.tolist(), strict=True) if not number)
        results["calibrations"][calibration.label] = {
            "method": calibration.name,
            "statistics": given.kind if isinstance(given, ClassStatistics) else "features",
            "absent_classes": list(absent),
            **asdict(method),
            "seed": seed,
            "bytes": statistics_bytes(run.setup, given, min_count=getattr(method, "min_count", 0)),
            "seconds": round(seconds, 3),
        }
        scores = (
            class_counts(fitted.head, features, len(names)) for features in test.read(run.model, fitted.head.taps)
        )
        counts = sum(scores, start=ClassCounts.zeros(len(names)))
        yield replace(_score_head(results, calibration.label, fitted, run, counts, seconds=seconds), absent=absent)


def _score_head(
    results: Results, label: str, model: SplitModel, run: OpenRun, counts: ClassCounts, *, seconds: float
) -> HeadScored:
    """Enter the counts on the test set, and those on the held-out part where there is one."""
    results["accuracy"][label] = round(counts.accuracy, 4)
    results["per_class_recall"][label] = [None if each is None else round(each, 4) for each in counts.recall]
    results["client_accuracy"][label] = client_accuracy(counts, run.setup.label_counts)
    if run.setup.spec.data.validation:
        answers = (counts[label] for counts in run.engine.score(model, {label: model.head}))
        held_out = sum(answers, start=ClassCounts.zeros(run.setup.dataset.num_classes))
        results.setdefault("validation_accuracy", {})[label] = round(held_out.accuracy, 4)
    return HeadScored(label, counts.accuracy, seconds)


def client_accuracy(counts: ClassCounts, label_counts: IntArray) -> ClientScores:
    """Accuracy under each client's own label mix, over clients."""
    return client_scores(own_mix_accuracy(counts, label_counts))


def own_mix_accuracy(counts: ClassCounts, label_counts: IntArray) -> Array:
    """Σ_c p_kc recall_c for each client, in percent, without classes of no test samples and clients of these alone."""
    total = counts.total.numpy()
    recall = counts.correct.numpy() / np.maximum(total, 1)
    weights = label_counts * (total > 0)
    mixes = weights[weights.sum(1) > 0]
    accuracies: Array = 100 * (mixes @ recall) / mixes.sum(1)
    return accuracies


def client_scores(accuracies: Array) -> ClientScores:
    """The scores over clients whose accuracies are known."""
    if not len(accuracies):
        return NO_SCORES.copy()
    found = accuracies.mean(), accuracies.min(), np.percentile(accuracies, 10)
    mean, worst, p10 = (round(float(each), 4) for each in found)
    return {"mean": mean, "worst": worst, "p10": p10}


def deploy(results: Results, label: str, run: OpenRun) -> None:
    """Save one head's model as the run's, then the results: their being there says that the run is finished."""
    label = _select(results, run) if label == SELECT else label
    head = read_head(run.folder.head(label))
    _keep(results, run, run.folder.model, model_bytes(run.model, head, run.setup.blueprint))
    results["deployed"] = label
    if absent := keep_absent(run):
        results["missing"] = absent
    run.folder.write_results(results)


def _select(results: Results, run: OpenRun) -> str:
    """The label of the head that wins on the clients' held-out parts, if any beats the trained one."""
    rows = results["calibrations"]
    labels = [UNCALIBRATED, *(label for label in rows if not find_calibrator(rows[label]["method"]).raw)]
    heads = {label: read_head(run.folder.head(label)) for label in labels}
    found = select(heads, run.engine.score(run.model, heads))
    results["selection"] = {"recall": found.recall, "standard_error": found.error}
    return found.name
