"""What a spec would cost, before anything is trained."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from ccvr.algorithms.messages import Client, LocalResult
from ccvr.algorithms.table import algorithm_of, find_algorithm
from ccvr.calibration.methods import Calibration, parse_calibration, parse_calibrations
from ccvr.core.machine import cores
from ccvr.data.augment import ShiftAndMirror
from ccvr.data.batches import TrainingSamples
from ccvr.data.catalogue import Extent, extent
from ccvr.data.samples import Samples
from ccvr.experiment.pipeline import require_names
from ccvr.experiment.revise import AT_END, REESTIMATED, require_revisable
from ccvr.experiment.spec import Spec
from ccvr.experiment.step import decided, runs_kernels
from ccvr.kernels.inputs import num_rows, rows_of, tensors_of
from ccvr.models.blocks import use_kernels
from ccvr.models.build import build_model
from ccvr.models.modes import evaluating
from ccvr.models.preprocess import fit_preprocess
from ccvr.models.split import SplitModel
from ccvr.models.state import buffers_of, num_bytes, parameters_of
from ccvr.models.taps import find_taps, reading
from ccvr.statistics.wire import most_bytes
from ccvr.training.local import train_client
from ccvr.training.moments import moment_sums
from ccvr.training.rounds import first_state, sent_state
from ccvr.training.trainer import scratch_of

SLOW_STEP = 0.25
"""Seconds of a step from which on single steps are timed."""


@dataclass(frozen=True)
class Cost:
    """Training samples, and bytes that pass between clients and server."""

    samples: int
    seconds: float
    step: str
    model_bytes: int
    traffic_bytes: int
    statistics_bytes: int
    shared_bytes: int = 0
    revision_bytes: int = 0
    """What re-estimated moments and calibrations between rounds move, down and up, at most."""

    def describe(self) -> str:
        revised = f"; revisions between them at most {_size(self.revision_bytes)}" if self.revision_bytes else ""
        shared = f"\nraw data: {_size(self.shared_bytes)} of shared samples to all clients" if self.shared_bytes else ""
        return (
            f"{describe_training(self.samples, self.seconds)}\n"
            f"step: {self.step}\n"
            f"model: {_size(self.model_bytes)}; rounds move {_size(self.traffic_bytes)} down and up{revised}\n"
            f"class statistics: at most {_size(self.statistics_bytes)} from all clients{shared}"
        )


def describe_training(samples: int, seconds: float) -> str:
    return f"training samples: {samples:,} (about {_duration(seconds)} on this machine, if it does nothing else)"


def estimate(spec: Spec) -> Cost:
    """Count what the rounds will do, and time a few steps of it on a few samples.

    Raises:
        SpecError: a run would refuse the spec before it begins.
    """
    torch.set_num_threads(spec.threads)
    require_names(spec)
    calibrations = parse_calibrations(spec.calibration)
    size = extent(spec.data.name, spec.data.root)
    model = _model(spec, size)
    require_revisable(spec, model)
    samples, cohort = training_samples(spec), _cohort(spec)
    state = num_bytes(parameters_of(model), buffers_of(model))
    client = _trained(spec, model, size)(1).metrics  # what an algorithm sends beside the model counts, too
    return Cost(
        samples=samples,
        seconds=samples * _seconds_per_sample(spec, model, size) / _at_once(spec),
        step=decided(spec, model).training.step,
        model_bytes=state,
        traffic_bytes=(client.bytes_down + client.bytes_up) * cohort * spec.training.rounds,
        statistics_bytes=_statistics_bytes(calibrations, spec, model, size),
        shared_bytes=spec.partition.num_clients * _shared(spec, size) * _sample_bytes(size),
        revision_bytes=_moments_bytes(spec, model, state) + _heads_bytes(spec, model, size, state),
    )


def _moments_bytes(spec: Spec, model: SplitModel, model_bytes: int) -> int:
    """What re-estimated moments move: the model to the clients of each round, or to all at the end, and sums back."""
    answers = {REESTIMATED: spec.training.rounds * _cohort(spec), AT_END: spec.partition.num_clients}
    return answers.get(spec.training.buffers, 0) * (model_bytes + num_bytes(moment_sums(model, ())))


def _heads_bytes(spec: Spec, model: SplitModel, size: Extent, model_bytes: int) -> int:
    """What calibrations between rounds move: the model to all clients, and their statistics back."""
    if not spec.calibration.every:
        return 0
    number = (spec.training.rounds - 1) // spec.calibration.every
    sent = _statistics_bytes([parse_calibration(spec.calibration.between_method)], spec, model, size)
    return number * (spec.partition.num_clients * model_bytes + sent)


def training_samples(spec: Spec) -> int:
    """How many samples the clients' steps see in all rounds together."""
    data, size = spec.data, extent(spec.data.name, spec.data.root)
    shared = _shared(spec, size)
    owned = (size.train * (1 - data.unlabelled_fraction) - shared) * (1 - data.validation)
    samples = round(_cohort(spec) * (owned / spec.partition.num_clients + shared))
    return samples * spec.training.local_epochs * spec.training.rounds


def _shared(spec: Spec, size: Extent) -> int:
    """Samples that every client gets beside its own."""
    rest = size.train - int(spec.data.unlabelled_fraction * size.train)
    return int(spec.data.shared * rest)


def _sample_bytes(size: Extent) -> int:
    """Inputs and label of one sample."""
    return num_bytes(tensors_of(rows_of(size.inputs, slice(1)))) + 8


def seconds_per_sample(spec: Spec) -> float:
    """How long a training sample takes on this machine, with all workers at once."""
    torch.set_num_threads(spec.threads)
    size = extent(spec.data.name, spec.data.root)
    return _seconds_per_sample(spec, _model(spec, size), size) / _at_once(spec)


@dataclass(frozen=True)
class Rates:
    """Seconds of trainings, from their samples and the time of a few steps, measured once for each kind of step."""

    measured: dict[object, float] = field(default_factory=dict)

    def seconds(self, spec: Spec) -> float:
        kind = _step(spec)
        if kind not in self.measured:
            self.measured[kind] = seconds_per_sample(spec)
        return training_samples(spec) * self.measured[kind]


def _step(spec: Spec) -> tuple[object, ...]:
    """What a step costs time for; FedAvgM's are FedAvg's."""
    return (
        spec.model,
        spec.training.step,
        spec.training.clsnorm,
        bool(spec.training.clsprox),
        type(find_algorithm(spec.training.algorithm)).objective,
        spec.training.batch_size,
        bool(spec.data.augment),
        spec.workers,
    )


def _cohort(spec: Spec) -> int:
    return spec.training.cohort(spec.partition.num_clients)


def _at_once(spec: Spec) -> int:
    return min(spec.processes(_cohort(spec)), cores())


def _model(spec: Spec, size: Extent) -> SplitModel:
    model = build_model(
        spec.model,
        size.inputs,
        size.num_classes,
        preprocess=fit_preprocess(size.preprocess, size.inputs),
        head_kind="normed" if spec.training.clsnorm else "linear",
        seed=spec.seed,
    )
    if runs_kernels(decided(spec, model)):
        use_kernels(model)
    return model


def _statistics_bytes(calibrations: Sequence[Calibration], spec: Spec, model: SplitModel, size: Extent) -> int:
    """What all clients send at most for all calibrations, however the samples are split; what two share once."""
    payloads: dict[tuple[object, ...], int] = {}
    example = rows_of(size.inputs, slice(2))
    for calibration in calibrations:
        method = calibration.method
        if method.raw:
            continue
        taps = find_taps(model, "head", example, method.request().taps)
        with evaluating(model), reading(model, "head", taps) as features:
            width = features(example).shape[1]
        for request, number in method.exchanges(width):
            projected = method if request.kind == "kernel" else None  # random features are each method's own
            key = request.kind, request.transform, request.taps, number, projected
            payloads[key] = most_bytes(request.kind, size.train, spec.partition.num_clients, size.num_classes, number)
    return sum(payloads.values())


def _seconds_per_sample(spec: Spec, model: SplitModel, size: Extent) -> float:
    """The fastest of three times four steps of one client, after one that warms up, in batches of at most 32.

    Of a slow network single steps. One thread is timed by its own clock, so that a busy machine does not count.
    """
    now = time.thread_time if spec.threads == 1 and spec.device == "cpu" else time.perf_counter
    train = _trained(spec, model, size)

    def timed(steps: int) -> float:
        started = now()
        samples = train(steps).num_examples
        return (now() - started) / samples

    timed(1)  # kernels compile
    is_slow = timed(1) * _batch_size(spec) > SLOW_STEP
    return min(timed(1 if is_slow else 4) for _ in range(3))


def _trained(spec: Spec, model: SplitModel, size: Extent) -> Callable[[int], LocalResult]:
    """Trains one client for so many steps, as the spec says."""
    training = replace(spec.training, local_epochs=1, batch_size=_batch_size(spec))
    sent = sent_state(first_state(model, spec.partition.num_clients, training), training, model)
    algorithm = algorithm_of(training)
    scratch = scratch_of(model, training)
    samples = Samples(size.inputs, torch.arange(num_rows(size.inputs)) % size.num_classes)
    data = TrainingSamples.prepare(samples, ShiftAndMirror() if spec.data.augment else None)

    def train(steps: int) -> LocalResult:
        client = Client(0, data, np.arange(steps * training.batch_size) % len(data.samples))
        return train_client(scratch, sent, client, {}, algorithm, training, round=1, seed=0)

    return train


def _batch_size(spec: Spec) -> int:
    return min(spec.training.batch_size, 32)


def _duration(seconds: float) -> str:
    for unit, length in (("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} seconds"


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
