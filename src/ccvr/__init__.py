"""Classifier calibration for federated learning on non-IID data (CCVR; Luo et al., NeurIPS 2021)."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ccvr.experiment.load import load
    from ccvr.experiment.pipeline import run
    from ccvr.experiment.spec import Spec

__version__ = "0.1.0"

_HOMES = {
    "Spec": "ccvr.experiment.spec",
    "load": "ccvr.experiment.load",
    "run": "ccvr.experiment.pipeline",
}

__all__ = ["Spec", "load", "run"]


def __getattr__(name: str) -> Any:
    """Resolve a public name when it is first used, so that `import ccvr` loads nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'ccvr' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
