"""Algorithms that keep clients from drifting apart."""

from dataclasses import dataclass

from ccvr.training.algorithm import Algorithm, require_at_least
from ccvr.training.objectives import LocalContext, LocalObjective, Proximal


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """The average of the clients' models, weighted by their samples (McMahan et al. 2017)."""


@dataclass(frozen=True)
class FedProx(Algorithm):
    """FedAvg whose clients stay near the global model: mu/2 ‖w − w_global‖² (Li et al. 2018)."""

    mu: float = 0.001
    """Weight of the proximal term."""

    def __post_init__(self) -> None:
        require_at_least("mu", self.mu, 0)

    def objective(self, context: LocalContext) -> LocalObjective:
        return Proximal(context, mu=self.mu)
