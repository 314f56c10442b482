"""What changes in the global model between rounds, with the clients' help: moments of normalisation, then the head."""

from dataclasses import replace

from torch import Tensor

from ccvr.algorithms.table import algorithm_of
from ccvr.calibration.calibrator import fit_head, seed_of
from ccvr.calibration.methods import parse_calibration
from ccvr.core.errors import SpecError, TrainingError
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
        SpecError: re-estimated buffers without batch normalisation that is shared, or calibrations between rounds whose
            head is of another kind than the trained one or stays with the clients.
    """
    is_private = algorithm_of(spec.training).is_private
    if spec.training.buffers in (REESTIMATED, AT_END):
        paths = batch_norms(model)
        if not paths or any(is_private(f"{path}.running_mean") for path in paths):
            why = "its moments stay with the clients" if paths else "the model has none"
            raise SpecError(
                f'training.buffers is "{spec.training.buffers}", which is for batch normalisation, and {why}. '
                "Leave it out."
            )
    if spec.calibration.every:
        _require_sendable(spec.calibration.between_method)
        if is_private("head.weight"):
            raise SpecError(
                f'calibration.every is {spec.calibration.every}, and with "{spec.training.algorithm}" the head stays '
                "with the clients. Leave it out."
            )


def _require_sendable(text: str) -> None:
    """Refuse a method whose head cannot take the place of the trained one."""
    method = parse_calibration(text).method
    transform = str(FeatureTransform.parse(getattr(method, "transform", "none")))
    reasons = {
        "takes raw features": method.raw,
        f'transforms features ("{transform}")': transform != "none",
        "reads several layers": bool(getattr(method, "taps", "")),
        "has random features": "kernel" in method.kinds,
    }
    if reason := next((words for words, holds in reasons.items() if holds), ""):
        raise SpecError(
            f'calibration.every needs a head of the trained kind, and "{text}" {reason}. Set calibration.between, for '
            "example lda."
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
    given = method.gather(lambda request: merge(run.engine.statistics(model, request)), seed=seed)
    head = fit_head(method, copy_head(model.head).cpu(), given, seed=seed)
    parameters = {**state.parameters, **_tensors(head, model.head, state.round)}
    sent = statistics_bytes(run.setup, given, min_count=getattr(method, "min_count", 0))
    return _revised(replace(state, parameters=parameters), len(run.setup.kept), sent)


def _tensors(head: Head, trained: Head, round: int) -> Tensors:
    """The tensors of a new head by their names in the model; one of another kind is refused."""
    found: dict[str, Tensor] = {name: plain(tensor.detach()) for name, tensor in head.named_parameters()}
    shapes, expected = ({n: t.shape for n, t in each} for each in (found.items(), trained.named_parameters()))
    if head.kind != trained.kind or shapes != expected or str(head.transform) != str(trained.transform):
        raise TrainingError(
            f"the head that was calibrated after round {round} is {head.kind}, and the trained one {trained.kind}, or "
            "they differ in shape or transform. Set calibration.between to a method that keeps the head's kind: ccvr."
        )
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
