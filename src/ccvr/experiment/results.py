"""What a run found, as results.json says it: percent, on the test set."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccvr.calibration.methods import Calibration
from ccvr.calibration.spec import UNCALIBRATED
from ccvr.core.arrays import IntArray
from ccvr.models.scoring import ClassCounts

Results = dict[str, Any]


def empty_results(class_names: tuple[str, ...], num_clients: int) -> Results:
    return {
        "accuracy": {},
        "per_class_recall": {},
        "client_accuracy": {},
        "calibrations": {},
        "deployed": UNCALIBRATED,
        "class_names": list(class_names),
        "num_clients": num_clients,
    }


def add_score(results: Results, label: str, counts: ClassCounts, label_counts: IntArray) -> None:
    """Enter the scores of one head."""
    results["accuracy"][label] = _rounded(counts.accuracy)
    results["per_class_recall"][label] = [None if recall is None else _rounded(recall) for recall in counts.recall]
    results["client_accuracy"][label] = client_accuracy(counts, label_counts)


def add_calibration(
    results: Results,
    calibration: Calibration,
    *,
    statistics: str,
    absent: tuple[str, ...],
    seed: int,
    num_bytes: int,
    seconds: float,
) -> None:
    """Enter how a head was made; ``num_bytes`` is what all clients together would send for it."""
    results["calibrations"][calibration.label] = {
        "method": calibration.name,
        "statistics": statistics,
        "absent_classes": list(absent),
        **asdict(calibration.method),
        "seed": seed,
        "bytes": num_bytes,
        "seconds": round(seconds, 3),
    }


def client_accuracy(counts: ClassCounts, label_counts: IntArray) -> dict[str, float | None]:
    """Accuracy under each client's own label mix, Σ_c p_kc recall_c: mean, worst, 10th percentile over clients.

    Classes without test samples are left out of the mix; where nothing is left, None.
    """
    total = counts.total.numpy()
    recall = counts.correct.numpy() / np.maximum(total, 1)
    weights = label_counts * (total > 0)
    mixes = weights[weights.sum(1) > 0]
    if not len(mixes):
        return {"mean": None, "worst": None, "p10": None}
    return _summary(100 * (mixes @ recall) / mixes.sum(1))


def personal_accuracy(counts: Sequence[ClassCounts]) -> dict[str, float | None]:
    """Accuracy of each client's own model on its own samples: mean, worst, 10th percentile; without any, None."""
    found = np.array([each.accuracy for each in counts if each.total.sum()])
    return _summary(found) if len(found) else {"mean": None, "worst": None, "p10": None}


def _summary(per_client: NDArray[np.float64]) -> dict[str, float | None]:
    return {
        "mean": _rounded(per_client.mean()),
        "worst": _rounded(per_client.min()),
        "p10": _rounded(np.percentile(per_client, 10)),
    }


def _rounded(percent: float) -> float:
    return round(float(percent), 4)
