"""Calibrate a model from merged statistics."""

import copy

from torch import nn

from ccvr.calibration.calibrator import FromStatistics, fit_head
from ccvr.calibration.methods import Calibration, parse_calibration
from ccvr.core.arguments import require_seed, require_type
from ccvr.core.caution import warn
from ccvr.core.errors import CalibrationError
from ccvr.models.digest import backbone_digest
from ccvr.models.heads import Head, LinearHead
from ccvr.models.passes import require_model
from ccvr.models.settings import settled
from ccvr.models.split import under_new_head
from ccvr.statistics.collect import require_statistics
from ccvr.statistics.kinds import stands_for
from ccvr.statistics.moments import ClassStatistics

BEST = {
    "full": "ccvr-converged",
    "pooled": "lda,shrinkage=oas",
    "diagonal": "ccvr",
    "means": "ncm",
    "kernel": "kernel",
}
"""The method for each kind of statistics, from the measurements in docs/calibrators.md."""
BEST_WITH_TAPS = {**BEST, "full": "lda,shrinkage=oas", "diagonal": "ncm"}


@settled
def calibrate(model: nn.Module, statistics: ClassStatistics, method: str | None = None, *, seed: int = 0) -> nn.Module:
    """A new model with a calibrated head; ``model`` is left as it is.

    ``method``: a calibrator's name, with options behind commas ("ccvr,num_virtual=500"); without one the method that
    measured best on statistics of this kind. The statistics must come from this very backbone.
    """
    _, fitted, _ = fit(model, statistics, method, seed=seed)
    note_absent(statistics)
    old = model.get_submodule(statistics.source.head)
    weight = next(old.parameters())
    return under_new_head(model, statistics.source.head, fitted.to(weight.device, weight.dtype))


def fit(
    model: nn.Module, statistics: ClassStatistics, method: str | None, *, seed: int
) -> tuple[Head, Head, Calibration]:
    """The model's head, a new one, and how it was made."""
    require_model(model)
    require_statistics(statistics)
    require_type("method", method, str | None, "the name of a calibrator")
    require_seed(seed)
    head = require_match(model, statistics)
    chosen = parse_calibration(method or best_method(statistics), {"transform": statistics.source.transform})
    _require_of_these(chosen, statistics)
    return head, fit_head(chosen.method, head, statistics, seed=seed), chosen


def best_method(statistics: ClassStatistics) -> str:
    """The method that measured best on statistics like these.

    Solving for many classes takes fewer draws of each: 20,000 in all, but at least 200, and enough to be matched.
    """
    method = best_for(statistics.kind, taps=bool(statistics.source.taps))
    if method != "ccvr-converged":
        return method
    rank = min(statistics.num_features, int(statistics.count.max()))
    return f"{method},num_virtual={max(200, 20_000 // statistics.num_classes, min(2000, rank + rank // 5))}"


def best_for(kind: str, *, taps: bool) -> str:
    """The method that measured best on statistics of a kind, or of the one that a kind of the user's own stands for."""
    table, ours = BEST_WITH_TAPS if taps else BEST, stands_for(kind)
    if ours not in table:
        raise CalibrationError(f'no method is known as the best for "{kind}" statistics. Name one.')
    return table[ours]


def _require_of_these(chosen: Calibration, statistics: ClassStatistics) -> None:
    """Refuse a method that would need other statistics."""
    method = chosen.method
    if method.raw:
        raise CalibrationError(
            f"{chosen.name} needs raw features, which statistics are there to spare. Choose another."
        )
    for name in ("taps", "min_count", "num_features", "bandwidth"):
        if getattr(method, name, None) != getattr(type(method), name, None):
            raise CalibrationError(
                f"{name} is settled when statistics are collected. Give it there, not to {chosen.name}."
            )
    wanted = method.statistics_transform if isinstance(method, FromStatistics) else "none"
    if statistics.projection is None and statistics.source.transform != wanted:
        raise CalibrationError(
            f'{chosen.name} asks for statistics of "{wanted}" features; these are of "{statistics.source.transform}" '
            f'ones. Collect with transform="{wanted}".'
        )


def require_match(model: nn.Module, statistics: ClassStatistics) -> Head:
    """The head that the statistics were collected before, as one of ours; an error if the model is another one."""
    path = statistics.source.head
    if path not in dict(model.named_modules()):
        raise CalibrationError(f'the statistics are of the head "{path}", which this model does not have.')
    module = model.get_submodule(path)
    found = backbone_digest(model, path)
    if found != statistics.source.model:
        raise CalibrationError(
            f"the statistics are of the backbone {statistics.source.model[:12]}…; this model's is {found[:12]}…. "
            "Collect them from the model that is calibrated."
        )
    if isinstance(module, nn.Linear):
        module = LinearHead(module.weight, module.bias)
    module = copy.deepcopy(module)
    if not isinstance(module, Head) or len(module.weight) != statistics.num_classes:
        raise CalibrationError(
            f'the statistics are of {statistics.num_classes} classes; the head "{path}" does not score as many.'
        )
    return module.cpu().float()


def note_absent(statistics: ClassStatistics) -> None:
    absent = (statistics.count == 0).nonzero().flatten().tolist()
    if absent:
        names = ", ".join(map(str, absent[:10])) + (" …" if len(absent) > 10 else "")
        warn(
            f"nobody has samples of {len(absent)} of {len(statistics.count)} classes ({names}): closed forms never "
            "predict them, re-training leaves their rows as they are"
        )
