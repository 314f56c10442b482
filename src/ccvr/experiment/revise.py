"""What changes in the global model between rounds, with the clients' help: moments of normalisation, then the head."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from torch import Tensor

from ccvr.algorithms.spec import TrainingSpec
from ccvr.algorithms.table import algorithm_of, find_algorithm
from ccvr.calibration.calibrator import fit_head, seed_of
from ccvr.calibration.methods import parse_calibration
from ccvr.core.errors import CalibrationError, SpecError, StatisticsError, TrainingError
from ccvr.core.seeds import derive_seed
from ccvr.experiment.engine import OpenRun
from ccvr.experiment.spec import Spec
from ccvr.experiment.statistics_cache import statistics_bytes
from ccvr.models.heads import Head, copy_head
from ccvr.models.split import SplitModel
from ccvr.models.state import Tensors, num_bytes, plain
from ccvr.models.transform import FeatureTransform
from ccvr.statistics.merge import merge
from ccvr.training.moments import batch_norms, merged_sums, moments_of
from ccvr.training.rounds import Revise, RoundState

REESTIMATED, AT_END = "reestimated", "reestimated-at-end"


def reviser(run: OpenRun) -> Revise:
    """What a run's spec asks for after each round (training.buffers, calibration.every)."""

    def revise(state: RoundState) -> RoundState:
        return _with_head(run, _with_moments(run, state))

    return revise


def require_revisable(spec: Spec, model: SplitModel) -> None:
    """Refuse revisions that a model or an algorithm has no place for.

    Raises:
        SpecError: re-estimated buffers without batch normalisation that is shared; calibrations between rounds of a
            model that is not one for all clients or whose head is not trained, or by a method whose head is of another
            kind than the trained one; either with an algorithm that has several global models.
    """
    if spec.training.buffers in (REESTIMATED, AT_END):
        _require_one_normalisation(spec.training, model)
    if spec.calibration.every:
        _require_sendable(spec.calibration.between_method, model.head)
        _require_one_trained_model(spec, model)


def _require_one_normalisation(spec: TrainingSpec, model: SplitModel) -> None:
    """Refuse to re-estimate moments where there is no global batch normalisation."""
    moments, private = {f"{path}.running_mean" for path in batch_norms(model)}, algorithm_of(spec).private_names(model)
    reasons = {
        "the model has none": not moments,
        f'with "{spec.algorithm}" its moments stay with the clients': bool(moments & private),
        f'"{spec.algorithm}" has several models, not one': not find_algorithm(spec.algorithm).one_model,
    }
    if reason := _first(reasons):
        raise SpecError(
            f'training.buffers is "{spec.buffers}", which is for batch normalisation, and {reason}. Leave it out.'
        )


def _require_one_trained_model(spec: Spec, model: SplitModel) -> None:
    """Refuse calibrations between rounds where clients do not go on from the head, or not from the same features."""
    name, algorithm = spec.training.algorithm, find_algorithm(spec.training.algorithm)
    reasons = {
        "some tensors stay with the clients": bool(algorithm_of(spec.training).private_names(model)),
        "the head is not trained": not algorithm.trains_head,
        "there are several models, not one": not algorithm.one_model,
    }
    if reason := _first(reasons):
        raise SpecError(
            f'calibration.every is {spec.calibration.every}, and with "{name}" {reason}. Leave it out: '
            "calibration.methods calibrate after the last round."
        )


def _first(reasons: Mapping[str, bool]) -> str:
    """The first reason that holds, or none."""
    return next((words for words, holds in reasons.items() if holds), "")


def _require_sendable(text: str, trained: Head) -> None:
    """Refuse a method whose head cannot take the place of the trained one."""
    method = parse_calibration(text).method
    transform = str(FeatureTransform.parse(getattr(method, "transform", "none")))
    has_bias = getattr(trained, "bias", None) is not None
    reasons = {
        "takes raw features": method.raw,
        f'transforms features ("{transform}")': transform != "none",
        "reads several layers": bool(getattr(method, "taps", "")),
        "has random features": "kernel" in method.kinds,
        f"gives a {method.gives} head, and the trained one is {trained.kind}": method.gives not in ("", trained.kind),
        "gives a head with a bias, and the trained one has none": method.gives == "linear" and not has_bias,
    }
    if reason := _first(reasons):
        example = "lda" if trained.kind == "linear" and has_bias else "ccvr"
        raise SpecError(
            f'calibration.every needs a head of the trained kind, and "{text}" {reason}. Set calibration.between, for '
            f"example {example}."
        )


def _with_moments(run: OpenRun, state: RoundState) -> RoundState:
    """The state with running moments from one more pass: over the round's clients, at the end over all."""
    spec = run.setup.spec.training
    if spec.buffers not in (REESTIMATED, AT_END) or (spec.buffers == AT_END and state.round < spec.rounds):
        return state
    everybody = list(range(len(run.setup.kept)))
    asked = everybody if spec.buffers == AT_END else [report.client for report in state.clients]
    sums = merged_sums(run.engine.moments(state.load_into(run.model), asked, round=state.round))
    buffers = {**state.buffers, **moments_of(sums, state.buffers)}
    return _revised(replace(state, buffers=buffers), len(asked), len(asked) * num_bytes(sums))


def _with_head(run: OpenRun, state: RoundState) -> RoundState:
    """The state with a calibrated head, where one is due."""
    spec = run.setup.spec
    if not spec.calibration.every or state.round % spec.calibration.every or state.round == spec.training.rounds:
        return state
    model, method = state.load_into(run.model), parse_calibration(spec.calibration.between_method).method
    seed = seed_of(method, derive_seed(spec.seed, "calibration", round=state.round))
    with _naming(spec.calibration.between_method, state.round):
        given = method.gather(lambda request: merge(run.engine.statistics(model, request)), seed=seed)
        head = fit_head(method, copy_head(model.head).cpu(), given, seed=seed)
    tensors = _tensors(head, model.head, state.round)
    sent = statistics_bytes(run.setup, given, min_count=getattr(method, "min_count", 0))
    return _revised(replace(state, parameters={**state.parameters, **tensors}), len(run.setup.kept), sent)


@contextmanager
def _naming(method: str, round: int) -> Iterator[None]:
    """Say of a calibration that fails which one it was."""
    try:
        yield
    except (CalibrationError, StatisticsError) as error:
        raise type(error)(
            f'the calibration after round {round} failed (calibration.between, "{method}"): {error}'
        ) from error


def at_scale_of(trained: Tensor, head: Tensors) -> Tensors:
    """A head's tensors times ‖W_trained‖ / ‖W_new‖ (Frobenius): the same predictions at the trained weights' scale.

    Closed forms give weights of any scale, and SGD through weights that are hundreds of times larger diverges. Only the
    temperature of the softmax changes. Weights that are all 0 have no scale; then the head is left as it is.
    """
    old, new = (float(weight.detach().double().norm()) for weight in (trained, head["weight"]))
    return {n: (t.double() * (old / new)).to(t.dtype) for n, t in head.items()} if old and new else head


def _tensors(head: Head, trained: Head, round: int) -> Tensors:
    """The tensors of a new head by their names in the model, at the trained one's scale; another kind is refused."""
    found: Tensors = {name: plain(tensor.detach()) for name, tensor in head.named_parameters()}
    shapes, expected = ({n: t.shape for n, t in each} for each in (found.items(), trained.named_parameters()))
    if head.kind != trained.kind or shapes != expected or str(head.transform) != str(trained.transform):
        raise TrainingError(
            f"the head that was calibrated after round {round} is {head.kind}, and the trained one {trained.kind}, or "
            "they differ in shape or transform. Set calibration.between to a method that keeps the head's kind: ccvr."
        )
    found = at_scale_of(trained.weight, found)
    if not all(tensor.isfinite().all() for tensor in found.values()):
        raise TrainingError(
            f"the head that was calibrated after round {round} is not finite: some class may have no samples. Set "
            "calibration.between to another method."
        )
    return {f"head.{name}": tensor for name, tensor in found.items()}


def _revised(state: RoundState, clients: int, sent: int) -> RoundState:
    """The state with what the revision moved: the model to each client, and what all of them sent."""
    moved = clients * num_bytes(state.model.tensors) + sent
    return replace(state, revision_bytes=state.revision_bytes + moved)
