"""The server's side of the stage: ask all clients, fold what they answer, give back a calibrated model."""

from dataclasses import dataclass, replace

import torch
from flwr.app import ArrayRecord
from flwr.serverapp import Grid
from torch import Tensor, nn

from ccvr.calibration.calibrate import best_for, best_method, note_absent, require_match
from ccvr.calibration.calibrator import fit_head
from ccvr.calibration.methods import parse_calibration
from ccvr.calibration.select import Selection, select
from ccvr.calibration.spec import UNCALIBRATED
from ccvr.core.errors import CalibrationError, FederationError, SpecError, StatisticsError
from ccvr.experiment.spec import MAX_SECONDS
from ccvr.flower.federation import Federation, connected, listed, needed_of
from ccvr.flower.questions import ask_scores, ask_statistics, expected, require_count, state_bytes
from ccvr.models.find import find_head
from ccvr.models.heads import Head
from ccvr.models.split import under_new_head
from ccvr.statistics.kinds import stands_for
from ccvr.statistics.limits import MAX_COUNT
from ccvr.statistics.merge import merge
from ccvr.statistics.moments import ClassStatistics
from ccvr.statistics.request import Request


@dataclass(frozen=True)
class Calibrated:
    """The result of the stage."""

    model: nn.Module
    """The calibrated model; the trained one if a validation kept it or could not decide."""
    method: str
    statistics: ClassStatistics
    connected: int
    """How many clients were asked."""
    absent: dict[int, str]
    """Clients that did not answer, by Flower's node id: to which question, and why."""
    without_samples: tuple[int, ...]
    """Clients that answered that they have nothing to send."""
    unconnected: int
    """How many of ``num_clients`` were not connected; they have no id."""
    selection: Selection[Head] | None = None
    """What the validation found, where there was one."""
    undecided: str = ""
    """Why a validation could not decide; the head can be made again: ``ccvr.calibrate(…, statistics)``."""

    @property
    def arrays(self) -> ArrayRecord:
        """The model's tensors, as Flower's strategies take them."""
        try:
            return ArrayRecord(self.model.state_dict())
        except TypeError as error:
            raise FederationError(f"Flower has no arrays for this model ({error}). Use its tensors: .model.") from error

    def __str__(self) -> str:
        lines = [f"{self.method} from {self.statistics}"]
        if self.selection is not None:
            lines.append(str(self.selection))
        if self.undecided:
            lines.append(f"the trained model stays, for {self.undecided}")
        if self.without_samples:
            lines.append(f"without samples: {', '.join(map(str, self.without_samples))}")
        absent = listed(self.absent, most=20, unconnected=self.unconnected)
        return "\n".join([*lines, f"{self.connected} clients; missing: {absent}"])


def calibrate(
    grid: Grid,
    model: nn.Module,
    example: Tensor,
    method: str | None = None,
    *,
    kind: str = "",
    taps: str | None = None,
    head: str = "",
    min_count: int = 8,
    max_count: int = MAX_COUNT,
    num_clients: int = 1,
    quorum: float = 0.5,
    timeout: float = 600.0,
    validate: bool = False,
    seed: int = 0,
) -> Calibrated:
    """Calibrate ``model`` with the statistics of all clients whose apps ``register``; the model itself is left alone.

    ``example``: inputs [B, …] of the right shape, on which features are finite. ``method``: a calibrator with options
    behind commas; without one the best for this ``kind`` of statistics (full). ``taps``: layers that are read beside
    the last. A client that claims more than ``max_count`` samples of a class is left out. ``num_clients`` are waited
    for, as long as the ``quorum``, a part of them, is not there; then all that are connected are asked. The quorum, of
    ``num_clients`` or of all if they are more, must answer within ``timeout`` seconds.
    With ``validate`` the clients' held-out parts decide whether the new head stays; if they cannot, the old one does.
    """
    if not 0 < quorum <= 1:
        raise SpecError(f"quorum is {quorum}; give a number above 0, at most 1.")
    if not 0 < timeout <= MAX_SECONDS:
        raise SpecError(f"timeout is {timeout}; give seconds above 0, at most {MAX_SECONDS:,}.")
    require_count("num_clients", num_clients, least=1)
    require_count("max_count", max_count, least=1)
    require_count("min_count", min_count)
    wanted = kind or ("" if method else "full")
    given = {"min_count": min_count, **({"kind": wanted} if wanted else {}), **({} if taps is None else {"taps": taps})}
    chosen = parse_calibration(method or best_for(wanted, taps=bool(taps)), given)
    if chosen.method.raw:
        raise CalibrationError(f"{chosen.name} needs raw features, which no client of a federation sends.")
    kinds = chosen.method.kinds if hasattr(chosen.method, "kind") else chosen.method.kinds[:1]
    if kind and stands_for(kind) not in kinds:
        raise SpecError(f'kind is "{kind}"; {chosen.name} can use: {", ".join(kinds)}.')
    if taps and not hasattr(chosen.method, "taps"):
        raise SpecError(f'taps is "{taps}"; {chosen.name} reads the last layer alone. Use lda, ridge or kernel.')
    example = _pair(model, example)
    path = find_head(model, example, head)
    nodes = connected(grid, num_clients, timeout, enough=needed_of(num_clients, quorum))
    unconnected = max(0, num_clients - len(nodes))
    federation = Federation(grid, {node: node for node in nodes}, quorum, timeout, unconnected=unconnected)
    least = 0 if hasattr(chosen.method, "min_count") else min_count  # a user's own method may have no such option
    stage = _Stage(federation, model, example, path, max_count, least)
    statistics = chosen.method.gather(stage.merged, seed=seed)
    if method is None:  # the model may have none of the layers that were asked for
        chosen = parse_calibration(best_method(statistics))
    trained = require_match(model, statistics)
    fitted = fit_head(chosen.method, trained, statistics, seed=seed)
    note_absent(statistics)
    selection, undecided = stage.choose({UNCALIBRATED: trained, chosen.label: fitted}) if validate else (None, "")
    keeps = bool(undecided) or (selection is not None and selection.name == UNCALIBRATED)
    return Calibrated(
        model if keeps else stage.under(fitted),
        UNCALIBRATED if keeps else chosen.name,
        statistics,
        len(nodes),
        federation.reasons(),
        tuple(sorted(federation.without_samples)),
        unconnected,
        selection,
        undecided,
    )


def _pair(model: nn.Module, example: Tensor) -> Tensor:
    """Two inputs on the model's device: some models cannot take a batch of one."""
    if not isinstance(example, Tensor) or not example.dim():
        raise SpecError("the example must be a tensor of inputs [B, …]. Give one of the shape that the model takes.")
    pair = example[:2] if len(example) > 1 else example.repeat(2, *[1] * (example.dim() - 1))
    return pair.to(next(model.parameters(), example).device)


class _Stage:
    """One model and the clients that are asked about it."""

    def __init__(
        self, federation: Federation, model: nn.Module, example: Tensor, path: str, max_count: int, min_count: int
    ) -> None:
        self.federation, self.model, self.example, self.path = federation, model, example, path
        self.min_count = min_count
        self.state = state_bytes(model.state_dict())
        self.num_classes = len(next(model.get_submodule(path).parameters()))
        self.owned = dict.fromkeys(federation.nodes, torch.full((self.num_classes,), max_count))

    def merged(self, request: Request) -> ClassStatistics:
        request = replace(request, min_count=max(request.min_count, self.min_count))
        try:
            like = expected(self.model, self.example, self.path, request)
        except StatisticsError as error:
            raise StatisticsError(f"the example does not serve: {error} Or give inputs like the clients'.") from error
        return merge(ask_statistics(self.federation, self.state, request, like, self.owned))

    def choose(self, heads: dict[str, Head]) -> tuple[Selection[Head] | None, str]:
        """The selection, or the reason why there is none: a failed validation must not lose the statistics."""
        counts = ask_scores(self.federation, self.state, self.path, heads, self.num_classes, self.owned)
        try:
            return select(heads, counts), ""
        except (CalibrationError, FederationError) as error:
            tried = ", ".join(name for name in heads if name != UNCALIBRATED)
            return None, f"{tried} was not judged: {error}"

    def under(self, head: Head) -> nn.Module:
        weight = next(self.model.get_submodule(self.path).parameters())
        return under_new_head(self.model, self.path, head.to(weight.device, weight.dtype))
