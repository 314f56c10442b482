"""What a spec says about calibration."""

from dataclasses import dataclass

from ccvr.core.errors import SpecError
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
    every: int = 0
    """Calibrate the global head after every so many rounds, but the last, and train on from it; 0 is never."""
    between: str = ""
    """Method of the calibrations between rounds, which keeps the kind of the head: lda, "ccvr,epochs=5". Without it the
    first of the methods."""

    @property
    def between_method(self) -> str:
        """The method of the calibrations between rounds as text; none where there are none."""
        return (self.between or next(iter(self.methods), "")) if self.every else ""

    def __post_init__(self) -> None:
        if self.every < 0:
            raise SpecError(f"calibration.every is {self.every}; give 0 for never, or after how many rounds.")
        if self.every and not self.between_method:
            raise SpecError(f"calibration.every is {self.every}, and no method is named. Set calibration.between.")
