"""The table of calibrators: merged statistics → a new head. The head that comes in is left as it is."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ccvr.calibration.closed_forms import cof, cof_means, lda, ncm, ridge
from ccvr.calibration.retrain import converge, retrain
from ccvr.calibration.sampling import allocate, draw
from ccvr.calibration.shrinkage import Shrinkage
from ccvr.calibration.spec import CalibrationOptions
from ccvr.core.errors import CalibrationError, SpecError
from ccvr.core.tables import Table
from ccvr.models.heads import Head, copy_head
from ccvr.models.transform import FeatureTransform
from ccvr.statistics.moments import ClassStatistics


@dataclass(frozen=True)
class Calibrator:
    """A way to a new head: ``fit(head, statistics, options, *, rng)``.

    ``raw`` ones take all clients' features and labels in place of statistics, and cannot be deployed.
    """

    fit: Callable[..., Head]
    kinds: tuple[str, ...] = ("full",)
    """Kinds of statistics that it can use, the best first."""
    reads: frozenset[str] | None = None
    """Options that it reads; None for all."""
    taps: str = ""
    """Layers that it reads where nobody says which."""
    raw: bool = False

    def transform_of_statistics(self, options: CalibrationOptions) -> FeatureTransform:
        """Of which features statistics are wanted; where draws are transformed, of raw ones."""
        at_draws = (self.reads is None or "transform_at" in self.reads) and options.transform_at == "draws"
        return FeatureTransform() if at_draws else FeatureTransform.parse(options.transform)

    def taps_of(self, options: CalibrationOptions) -> str:
        return self.taps if options.taps is None else options.taps

    def kind_of(self, options: CalibrationOptions) -> str:
        """The kind of statistics to collect."""
        if options.kind and options.kind not in self.kinds:
            known = ", ".join(self.kinds)
            raise SpecError(f'calibration.kind is "{options.kind}", which this method cannot use. It can use: {known}.')
        return options.kind or self.kinds[0]


def ccvr(head: Head, statistics: ClassStatistics, options: CalibrationOptions, *, rng: torch.Generator) -> Head:
    """Draw virtual features from the merged class Gaussians and re-train the head on them (Luo et al. 2021, 4)."""
    t, y = _virtual(statistics, options, matched=options.matched is True, rng=rng)
    return retrain(_start(head, t, options), t, y, options, rng=rng)


def ccvr_converged(
    head: Head, statistics: ClassStatistics, options: CalibrationOptions, *, rng: torch.Generator
) -> Head:
    """``ccvr`` with its objective solved: draws of the very moments, L-BFGS with an L2 penalty until nothing moves."""
    t, y = _virtual(statistics, options, matched=options.matched is not False, rng=rng)
    return converge(_start(head, t, options), t, y, options)


def _virtual(
    statistics: ClassStatistics, options: CalibrationOptions, *, matched: bool, rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Virtual features as the new head will see them, and their labels."""
    numbers = allocate(statistics.count, options.num_virtual, options.priors)
    z, y = draw(statistics, numbers, rng=rng, shrinkage=Shrinkage.parse(options.shrinkage), matched=matched)
    is_done = str(FeatureTransform.parse(options.transform)) == statistics.source.transform
    return z if is_done else FeatureTransform.parse(options.transform)(z), y


def _start(head: Head, t: Tensor, options: CalibrationOptions) -> Head:
    if head.weight.shape[1] != t.shape[1]:
        raise CalibrationError(
            f"re-training starts from a head of {head.weight.shape[1]} features; these statistics have {t.shape[1]}. "
            "With taps use lda, ridge or kernel."
        )
    return copy_head(head, transform=FeatureTransform.parse(options.transform), start=options.start)


def oracle(head: Head, features: tuple[Tensor, Tensor], options: CalibrationOptions, *, rng: torch.Generator) -> Head:
    """Re-train the head on every client's real features: what no federation may do, the bound of what ccvr can."""
    z, y = features
    t = FeatureTransform.parse(options.transform)(z)
    return retrain(_start(head, t, options), t, y, options, rng=rng)


def oracle_partial(
    head: Head, features: tuple[Tensor, Tensor], options: CalibrationOptions, *, rng: torch.Generator
) -> Head:
    """``oracle`` on ``per_class`` random real features of each class, or on all of a class that has fewer."""
    z, y = features
    most = int(y.bincount(minlength=1).max())
    if len(y) and options.per_class > most:
        raise CalibrationError(
            f"per_class is {options.per_class:,}, and no class has more than {most:,} samples. "
            "Give fewer, or use oracle, which takes all."
        )
    order = torch.randperm(len(y), generator=rng)
    chosen = torch.cat([order[y[order] == label][: options.per_class] for label in range(head.weight.shape[0])])
    return oracle(head, (z[chosen], y[chosen]), options, rng=rng)


EVERY = frozenset({"transform", "seed"})
STATISTICS = EVERY | {"kind", "min_count"}
SGD = frozenset({"start", "epochs", "batch_size", "lr", "momentum", "weight_decay"})
DRAWS = STATISTICS | {"num_virtual", "matched", "priors", "shrinkage", "transform_at"}
GAUSSIAN = ("full", "pooled", "diagonal")
POOLED = ("pooled", "full")

CALIBRATORS: Table[Calibrator] = Table(
    "calibrator",
    {
        "ccvr": Calibrator(ccvr, GAUSSIAN, DRAWS | SGD),
        "ccvr-converged": Calibrator(ccvr_converged, GAUSSIAN, DRAWS | {"start", "l2", "iterations"}),
        "lda": Calibrator(lda, POOLED, STATISTICS | {"taps", "priors", "shrinkage"}),
        "ridge": Calibrator(ridge, POOLED, STATISTICS | {"taps", "ridge"}),
        "kernel": Calibrator(
            ridge,
            ("kernel",),
            frozenset({"seed", "min_count", "taps", "ridge", "num_features", "bandwidth"}),
            taps="auto",
        ),
        "cof": Calibrator(cof, POOLED, STATISTICS | {"taps", "ridge"}),
        "cof-means": Calibrator(cof_means, ("means",), STATISTICS | {"taps", "ridge"}),
        "ncm": Calibrator(ncm, ("means", "diagonal", "pooled", "full"), STATISTICS | {"taps"}),
        "oracle": Calibrator(oracle, (), EVERY | SGD, raw=True),
        "oracle-partial": Calibrator(oracle_partial, (), EVERY | SGD | {"per_class"}, raw=True),
    },
)


def find_calibrator(method: str) -> Calibrator:
    """The row of a method; a user's own must be a ``Calibrator`` as well."""
    row = CALIBRATORS[method]
    if not isinstance(row, Calibrator):
        raise SpecError(f'"{method}" is no Calibrator. Wrap it: Calibrator(fit) of ccvr.calibration.table.')
    return row
