"""The statistics that a calibrator needs, in one exchange with the clients or, for random features, in two."""

from collections.abc import Callable

from ccvr.calibration.spec import CalibrationOptions
from ccvr.calibration.table import Calibrator
from ccvr.core.seeds import derive_seed
from ccvr.statistics.collect import Request, random_features
from ccvr.statistics.moments import ClassStatistics


def gather(
    row: Calibrator, options: CalibrationOptions, merged: Callable[[Request], ClassStatistics], *, seed: int
) -> ClassStatistics:
    """What ``merged``, which asks all clients, gives for the calibrator's request."""
    kind, taps = row.kind_of(options), row.taps_of(options)
    if kind != "kernel":
        transform = str(row.transform_of_statistics(options))
        return merged(Request(kind, transform, taps, options.min_count))
    first = merged(Request("diagonal", "none", taps, options.min_count))
    projection = random_features(
        first,
        num_features=options.num_features,
        bandwidth=options.bandwidth,
        seed=derive_seed(seed, "projection"),
    )
    return merged(Request(kind, "none", taps, options.min_count, projection))
