"""The table of calibrators: evidence → a new head. The head that comes in is left as it is."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ccvr.calibration.gaussians import ClassGaussians
from ccvr.calibration.retrain import retrain
from ccvr.calibration.spec import UNCALIBRATED, Calibration, CalibrationOptions, CalibrationSpec, parse_calibration
from ccvr.core.errors import CalibrationError, SpecError
from ccvr.core.tables import Table
from ccvr.models.heads import Head, copy_head
from ccvr.models.transform import FeatureTransform
from ccvr.statistics.moments import ClassStatistics

NO_TRANSFORM = FeatureTransform()


class Evidence(Protocol):
    """What a calibrator may ask for. Features are raw data: only a simulation has them."""

    def statistics(self, transform: FeatureTransform) -> ClassStatistics:
        """The merged statistics of all clients' transformed features."""

    def features(self) -> tuple[Tensor, Tensor]:
        """All clients' features z [N, d] and labels [N]."""


@dataclass(frozen=True)
class Calibrator:
    """A way to a new head; ``raw`` ones need every client's features and cannot be deployed."""

    fit: Callable[..., Head]
    raw: bool = False


def ccvr(head: Head, evidence: Evidence, options: CalibrationOptions, *, rng: torch.Generator) -> Head:
    """Draw virtual features from the merged class Gaussians and re-train the head on them (Luo et al. 2021, 4)."""
    transform = FeatureTransform.parse(options.transform)
    before, after = (transform, NO_TRANSFORM) if options.transform_at == "statistics" else (NO_TRANSFORM, transform)
    gaussians = ClassGaussians.of(evidence.statistics(before))
    z, y = gaussians.sample(allocate(gaussians.count, options), rng=rng)
    return retrain(copy_head(head, transform=transform, start=options.start), after(z), y, options, rng=rng)


def allocate(count: Tensor, options: CalibrationOptions) -> list[int]:
    """Virtual features of each class; none where nobody has the class."""
    present = count > 0
    if not present.any():
        raise CalibrationError("the statistics hold no samples. Collect them from clients that have images.")
    if options.allocation == "equal":
        return (present * options.num_virtual).tolist()
    total = options.num_virtual * int(present.sum())
    return [max(1, round(total * n / int(count.sum()))) if n else 0 for n in count.tolist()]


def oracle(head: Head, evidence: Evidence, options: CalibrationOptions, *, rng: torch.Generator) -> Head:
    """Re-train the head on every client's real features: what no federation may do, the bound of what ccvr can."""
    return _retrain_on(head, *evidence.features(), options, rng=rng)


def oracle_partial(head: Head, evidence: Evidence, options: CalibrationOptions, *, rng: torch.Generator) -> Head:
    """``oracle`` on ``per_class`` random real features of each class."""
    z, y = evidence.features()
    order = torch.randperm(len(y), generator=rng)
    chosen = torch.cat([order[y[order] == label][: options.per_class] for label in range(head.weight.shape[0])])
    return _retrain_on(head, z[chosen], y[chosen], options, rng=rng)


def _retrain_on(head: Head, z: Tensor, y: Tensor, options: CalibrationOptions, *, rng: torch.Generator) -> Head:
    transform = FeatureTransform.parse(options.transform)
    return retrain(copy_head(head, transform=transform, start=options.start), transform(z), y, options, rng=rng)


CALIBRATORS: Table[Calibrator] = Table(
    "calibrator",
    {
        "ccvr": Calibrator(ccvr),
        "oracle": Calibrator(oracle, raw=True),
        "oracle-partial": Calibrator(oracle_partial, raw=True),
    },
)


def find_calibrator(method: str) -> Calibrator:
    """The row of a method; a user's own must be a ``Calibrator`` as well."""
    row = CALIBRATORS[method]
    if not isinstance(row, Calibrator):
        raise SpecError(f'"{method}" is no Calibrator. Wrap it: Calibrator(fit) of ccvr.calibration.table.')
    return row


def parse_calibrations(spec: CalibrationSpec) -> tuple[Calibration, ...]:
    """All calibrations of a spec, checked: known methods, one label each, a deployable one to deploy."""
    calibrations = tuple(parse_calibration(text, spec) for text in spec.methods)
    labels = [calibration.label for calibration in calibrations]
    for calibration in calibrations:
        find_calibrator(calibration.method)
        if labels.count(calibration.label) > 1:
            raise SpecError(f'two calibrations are labelled "{calibration.label}". Give each its own with label=….')
    deployed_label(spec, calibrations)
    return calibrations


def deployed_label(spec: CalibrationSpec, calibrations: Sequence[Calibration]) -> str:
    """The label of the calibration that becomes the model: the one that was asked for, else the first."""
    methods = {calibration.label: calibration.method for calibration in calibrations}
    chosen = spec.deploy or next(iter(methods), UNCALIBRATED)
    require_deployable(chosen, methods)
    return chosen


def require_deployable(label: str, methods: Mapping[str, str]) -> None:
    """Refuse a label that nobody has, and one whose ``methods`` entry needs raw features."""
    allowed = [name for name, method in methods.items() if not find_calibrator(method).raw] + [UNCALIBRATED]
    if label in allowed:
        return
    fact = "needs every client's raw features and cannot be deployed" if label in methods else "is no label"
    raise SpecError(f'calibration.deploy is "{label}", which {fact}. Choose one of: {", ".join(allowed)}.')
