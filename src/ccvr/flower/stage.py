"""The server's side of the stage: ask all clients, fold what they answer, give back a calibrated model."""

from dataclasses import dataclass

import torch
from flwr.app import ArrayRecord
from flwr.serverapp import Grid
from torch import Tensor, nn

from ccvr.calibration.calibrate import BEST, BEST_WITH_TAPS, best_method, note_absent, require_match
from ccvr.calibration.gather import gather
from ccvr.calibration.methods import parse_calibration
from ccvr.calibration.select import Selection, select
from ccvr.calibration.spec import UNCALIBRATED, CalibrationOptions
from ccvr.calibration.table import find_calibrator
from ccvr.core.errors import CalibrationError
from ccvr.core.seeds import derive_seed
from ccvr.flower.federation import Federation, connected, listed
from ccvr.flower.questions import ask_scores, ask_statistics, expected, state_bytes
from ccvr.models.find import find_head
from ccvr.models.heads import Head
from ccvr.models.split import under_new_head
from ccvr.statistics.collect import Request
from ccvr.statistics.merge import merge
from ccvr.statistics.moments import ClassStatistics


@dataclass(frozen=True)
class Calibrated:
    """What came out of the stage."""

    model: nn.Module
    """The calibrated model; the trained one where a validation chose to keep it."""
    method: str
    statistics: ClassStatistics
    missing: dict[int, str]
    """Who did not answer, by Flower's node id, and why."""
    without_samples: tuple[int, ...]
    """Who answered that it has nothing to send."""
    selection: Selection[Head] | None = None
    """What the validation found, where there was one."""

    @property
    def arrays(self) -> ArrayRecord:
        """The model's tensors, as Flower's strategies take them."""
        return ArrayRecord(self.model.state_dict())

    def __str__(self) -> str:
        lines = [f"{self.method} from {self.statistics}"]
        if self.selection is not None:
            lines.append(str(self.selection))
        if self.without_samples:
            lines.append(f"without samples: {', '.join(map(str, self.without_samples))}")
        return "\n".join([*lines, f"missing: {listed(self.missing, most=20)}"])


def calibrate(
    grid: Grid,
    model: nn.Module,
    example: Tensor,
    method: str | None = None,
    *,
    kind: str = "full",
    taps: str | None = None,
    head: str = "",
    min_count: int = 8,
    num_clients: int = 1,
    quorum: float = 0.5,
    timeout: float = 600.0,
    validate: bool = False,
    seed: int = 0,
) -> Calibrated:
    """Calibrate ``model`` with the statistics of all clients whose apps ``register``; the model itself is left alone.

    ``example``: inputs [B, …] of the right shape, whatever their values. ``method``: a calibrator with options behind
    commas; without one the best for this ``kind`` of statistics. ``taps``: layers that are read beside the last.
    ``num_clients`` are waited for, then all that are connected are asked; at least the ``quorum``, a part of them, must
    answer within ``timeout`` seconds. With ``validate`` the clients' held-out parts decide whether the new head stays.
    """
    options = CalibrationOptions(kind="" if method else kind, taps=taps, min_count=min_count)
    chosen = parse_calibration(method or (BEST_WITH_TAPS if taps else BEST).get(kind, kind), options)
    row = find_calibrator(chosen.method)
    if row.raw:
        raise CalibrationError(f"{chosen.method} needs raw features, which no client of a federation sends.")
    example = _pair(model, example)
    path = find_head(model, example, head)
    nodes = connected(grid, num_clients, timeout)
    federation = Federation(grid, dict(zip(nodes, nodes, strict=True)), quorum, timeout)
    stage = _Stage(federation, model, example, path)
    statistics = gather(row, chosen.options, stage.merged, seed=seed)
    if method is None:
        chosen = parse_calibration(best_method(statistics), chosen.options)
    trained = require_match(model, statistics)
    rng = torch.Generator().manual_seed(derive_seed(seed, "calibration"))
    fitted = row.fit(trained, statistics, chosen.options, rng=rng)
    note_absent(statistics)
    selection = stage.choose({UNCALIBRATED: trained, chosen.label: fitted}) if validate else None
    keeps = selection is not None and selection.name == UNCALIBRATED
    return Calibrated(
        model if keeps else stage.under(fitted),
        UNCALIBRATED if keeps else chosen.method,
        statistics,
        {client: reason for silent in federation.missing.values() for client, reason in silent.items()},
        tuple(sorted(federation.without_samples)),
        selection,
    )


def _pair(model: nn.Module, example: Tensor) -> Tensor:
    """Two inputs where the model is: what a model does with one may be no batch."""
    pair = example[:2] if len(example) > 1 else example.repeat(2, *[1] * (example.dim() - 1))
    return pair.to(next(model.parameters()).device)


class _Stage:
    """One model and the clients that are asked about it."""

    def __init__(self, federation: Federation, model: nn.Module, example: Tensor, path: str) -> None:
        self.federation, self.model, self.example, self.path = federation, model, example, path
        self.state = state_bytes(model.state_dict())

    def merged(self, request: Request) -> ClassStatistics:
        like = expected(self.model, self.example, self.path, request)
        return merge(ask_statistics(self.federation, self.state, request, like))

    def choose(self, heads: dict[str, Head]) -> Selection[Head]:
        num_classes = len(heads[UNCALIBRATED].weight)
        return select(heads, ask_scores(self.federation, self.state, self.path, heads, num_classes))

    def under(self, head: Head) -> nn.Module:
        weight = next(self.model.get_submodule(self.path).parameters())
        return under_new_head(self.model, self.path, head.to(weight.device, weight.dtype))
