"""The table of calibrators."""

from ccvr.calibration.calibrator import Calibrator
from ccvr.calibration.closed_forms import Cof, CofMeans, Kernel, Lda, Ncm, Ridge
from ccvr.calibration.oracles import Oracle, OraclePartial
from ccvr.calibration.virtual import Ccvr, CcvrConverged
from ccvr.core.methods import find_class
from ccvr.core.tables import Table

CALIBRATORS: Table[type[Calibrator]] = Table(
    "calibrator",
    {
        "ccvr": Ccvr,
        "ccvr-converged": CcvrConverged,
        "lda": Lda,
        "ridge": Ridge,
        "kernel": Kernel,
        "cof": Cof,
        "cof-means": CofMeans,
        "ncm": Ncm,
        "oracle": Oracle,
        "oracle-partial": OraclePartial,
    },
)


def find_calibrator(name: str) -> type[Calibrator]:
    """The class of a calibrator; a user's own must derive from ``Calibrator``."""
    return find_class(CALIBRATORS, Calibrator, name)
