"""What a spec says about calibration."""

from dataclasses import dataclass

from ccvr.core.results import UNCALIBRATED as UNCALIBRATED


@dataclass(frozen=True)
class CalibrationSpec:
    """Which calibrations run on the trained model."""

    methods: tuple[str, ...] = ("ccvr", "oracle,epochs=50")
    """ccvr, ccvr-converged, lda, ridge, kernel, cof, cof-means, ncm, oracle, oracle-partial, or your own; each with its
    options behind commas: ccvr "ccvr,num_virtual=50,label=few" "oracle,epochs=50" (`ccvr list calibrators`)."""
    deploy: str = ""
    """Label of the calibration that is saved as the model; "uncalibrated"; or "select": the one that wins on the
    clients' held-out parts (data.validation), if any does. Without it the first. No oracles."""
