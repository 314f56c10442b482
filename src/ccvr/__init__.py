"""Classifier calibration for federated learning on non-IID data (CCVR; Luo et al., NeurIPS 2021)."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ccvr.calibration.calibrate import calibrate
    from ccvr.calibration.forecast import forecast
    from ccvr.calibration.personalise import personalise
    from ccvr.calibration.select import select
    from ccvr.core import errors
    from ccvr.core.errors import CcvrError
    from ccvr.experiment.load import load
    from ccvr.experiment.pipeline import run
    from ccvr.experiment.spec import Spec
    from ccvr.models.random_features import Projection
    from ccvr.models.scoring import ClassCounts, score
    from ccvr.privacy import secure
    from ccvr.statistics.collect import collect, random_features, statistics_of
    from ccvr.statistics.merge import merge
    from ccvr.statistics.moments import ClassStatistics
    from ccvr.statistics.sent import DifferencingWarning

__version__ = "0.1.0"

_HOMES = {
    "CcvrError": "ccvr.core.errors",
    "ClassCounts": "ccvr.models.scoring",
    "ClassStatistics": "ccvr.statistics.moments",
    "DifferencingWarning": "ccvr.statistics.sent",
    "Projection": "ccvr.models.random_features",
    "Spec": "ccvr.experiment.spec",
    "calibrate": "ccvr.calibration.calibrate",
    "collect": "ccvr.statistics.collect",
    "forecast": "ccvr.calibration.forecast",
    "load": "ccvr.experiment.load",
    "merge": "ccvr.statistics.merge",
    "personalise": "ccvr.calibration.personalise",
    "random_features": "ccvr.statistics.collect",
    "run": "ccvr.experiment.pipeline",
    "score": "ccvr.models.scoring",
    "select": "ccvr.calibration.select",
    "statistics_of": "ccvr.statistics.collect",
}

_MODULES = {"errors": "ccvr.core.errors", "secure": "ccvr.privacy.secure"}

__all__ = [
    "CcvrError",
    "ClassCounts",
    "ClassStatistics",
    "DifferencingWarning",
    "Projection",
    "Spec",
    "calibrate",
    "collect",
    "errors",
    "forecast",
    "load",
    "merge",
    "personalise",
    "random_features",
    "run",
    "score",
    "secure",
    "select",
    "statistics_of",
]


def __getattr__(name: str) -> Any:
    """Resolve a public name when it is first used, so that `import ccvr` loads nothing."""
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name not in _HOMES:
        raise AttributeError(f"module 'ccvr' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
