"""The calibrations of a run: fit, keep, score, deploy."""

import time
from collections.abc import Iterator, Sequence

import torch

from ccvr.calibration.spec import UNCALIBRATED, Calibration
from ccvr.calibration.table import find_calibrator
from ccvr.core.errors import CalibrationError
from ccvr.core.run import RunFolder, write_atomically
from ccvr.core.seeds import derive_seed
from ccvr.experiment.engine import Engine
from ccvr.experiment.events import HeadScored
from ccvr.experiment.evidence import RunEvidence
from ccvr.experiment.load import head_bytes, model_bytes, read_head
from ccvr.experiment.results import Results, add_calibration, add_score
from ccvr.experiment.setup import Setup
from ccvr.experiment.train import score_on_test
from ccvr.models.build import model_name
from ccvr.models.heads import Head, copy_head
from ccvr.models.scoring import ClassCounts
from ccvr.models.split import SplitModel
from ccvr.statistics.wire import class_bytes


def score_trained(results: Results, setup: Setup, engine: Engine, model: SplitModel, folder: RunFolder) -> HeadScored:
    """Score the head as training left it, and keep it beside the others."""
    write_atomically(folder.head(UNCALIBRATED), head_bytes(model.head))
    return _score_head(results, UNCALIBRATED, model, setup, engine, seconds=0.0)


def fit_all(
    results: Results,
    calibrations: Sequence[Calibration],
    setup: Setup,
    engine: Engine,
    model: SplitModel,
    folder: RunFolder,
) -> Iterator[HeadScored]:
    """Fit, keep and score one calibration after the other; what they found is entered into ``results``."""
    evidence = RunEvidence(engine, model, folder)
    trained = copy_head(model.head).cpu()
    for calibration in calibrations:
        started = time.perf_counter()
        calibrator, options = find_calibrator(calibration.method), calibration.options
        seed = setup.spec.seed if options.seed is None else options.seed
        rng = torch.Generator().manual_seed(derive_seed(seed, "calibration"))
        head = calibrator.fit(trained, evidence, options, rng=rng)
        if not isinstance(head, Head):
            raise CalibrationError(
                f'calibrator "{calibration.method}" gave a {type(head).__name__}; it must be a Head.'
            )
        seconds = time.perf_counter() - started
        write_atomically(folder.head(calibration.label), head_bytes(head))
        sent = _num_bytes(setup, trained.weight.shape[1], raw=calibrator.raw)
        add_calibration(results, calibration, seed=seed, num_bytes=sent, seconds=seconds)
        fitted = model.with_head(head.to(setup.spec.device))
        yield _score_head(results, calibration.label, fitted, setup, engine, seconds=seconds)


def _num_bytes(setup: Setup, num_features: int, *, raw: bool) -> int:
    """What all clients together send: their features, or the statistics of the classes they have."""
    counts = setup.label_counts
    return int(counts.sum()) * (4 * num_features + 8) if raw else int((counts > 0).sum()) * class_bytes(num_features)


def _score_head(
    results: Results, label: str, model: SplitModel, setup: Setup, engine: Engine, *, seconds: float
) -> HeadScored:
    counts = score_on_test(model, setup)
    add_score(results, label, counts, setup.label_counts)
    if setup.spec.data.validation:
        held_out = sum(engine.score(model), start=ClassCounts.zeros(setup.dataset.num_classes))
        results.setdefault("validation_accuracy", {})[label] = round(held_out.accuracy, 4)
    return HeadScored(label, counts.accuracy, seconds)


def deploy(results: Results, label: str, setup: Setup, model: SplitModel, folder: RunFolder) -> None:
    """Save one head's model as the run's, then the results: their being there says that the run is finished."""
    spec = setup.spec
    deployed = model.with_head(read_head(folder.head(label)))
    content = model_bytes(
        deployed,
        name=model_name(spec.model, setup.dataset.shape),
        head_path=spec.model.head,
        image_shape=setup.dataset.shape,
    )
    write_atomically(folder.model, content)
    results["deployed"] = label
    folder.write_json(folder.results, results)
