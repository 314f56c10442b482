"""What a spec says about training."""

from dataclasses import dataclass
from typing import Literal

from ccvr.core.errors import SpecError


@dataclass(frozen=True)
class TrainingSpec:
    """Rounds of local SGD and what an algorithm adds to them."""

    algorithm: str = "fedavg"
    """fedavg, fedprox, scaffold, moon or any other that `ccvr list algorithms` shows, or your own as
    package.module:name; its options behind commas: fedprox,mu=0.01."""
    server: str = ""
    """What the server does with the average that the algorithm makes: fedavgm, fedadagrad, fedadam, fedyogi, fedexp or
    your own, with its options behind commas; without it the algorithm's own rule."""
    rounds: int = 8
    local_epochs: int = 5
    batch_size: int = 32
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 1e-5
    client_fraction: float = 1.0
    """Part of the clients that trains in a round."""
    clsnorm: bool = False
    """Normalise the head's rows, in training and at inference."""
    clsprox: float = 0.0
    """Weight of the proximal term on the head alone; 0 is off."""
    buffers: Literal["average", "largest", "reestimated", "reestimated-at-end"] = "average"
    """BatchNorm's moments: averaged with the weights; those of the round's largest client; or reestimated: the clients
    pass their samples through the new model and send sums, after every round or only after the last."""
    step: Literal["auto", "halide", "torch"] = "auto"
    """What runs the steps: halide, compiled kernels for small convolutions (ccvr[fast]); torch; or auto, which is
    halide where that is installed and suits the model. A run keeps what auto became; one without it ran on torch."""
    evaluate_every: int = 1
    """Score the global model on the test set every so many rounds, and after the last."""

    @property
    def algorithm_name(self) -> str:
        """The algorithm without its options."""
        return self.algorithm.partition(",")[0]

    def cohort(self, num_clients: int) -> int:
        """How many of so many clients train in a round."""
        return max(1, round(self.client_fraction * num_clients))

    def __post_init__(self) -> None:
        least = {"rounds": 1, "local_epochs": 1, "batch_size": 1, "evaluate_every": 1}
        for name, low in (least | {"momentum": 0, "weight_decay": 0, "clsprox": 0}).items():
            if not getattr(self, name) >= low:
                raise SpecError(f"training.{name} is {getattr(self, name)}; give at least {low}.")
        if not self.lr > 0:
            raise SpecError(f"training.lr is {self.lr}; give a number above 0.")
        if self.momentum >= 1:
            raise SpecError(f"training.momentum is {self.momentum}; give a number below 1.")
        if not 0 < self.client_fraction <= 1:
            raise SpecError(f"training.client_fraction is {self.client_fraction}; give a number above 0, at most 1.")
