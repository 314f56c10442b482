"""Algorithms that act on the features of the clients' models."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ccvr.core.errors import SpecError
from ccvr.models.state import buffers_of, parameters_of
from ccvr.training.algorithm import Algorithm, require_at_least
from ccvr.training.objectives import LocalContext, LocalObjective, Outcome, Step


class Contrastive(LocalObjective):
    """−mu log(e^{s_g/T} / (e^{s_g/T} + e^{s_p/T})), s = cosine of the feature with the global and the previous model's.

    MOON (Li, He and Song 2021). The feature is the one that enters the head. At a client's first participation the
    previous model is the received one.
    """

    def __init__(self, context: LocalContext, *, mu: float, temperature: float) -> None:
        super().__init__(context)
        self.mu, self.temperature = mu, temperature
        self.previous = context.anchor
        if context.state:
            self.previous = copy.deepcopy(context.anchor)
            self.previous.load_state_dict(context.state)

    def loss(self, step: Step) -> Tensor:
        with torch.no_grad():
            references = [model.features(step.inputs) for model in (self.context.anchor, self.previous)]
        cosines = [functional.cosine_similarity(step.features, reference, dim=1) for reference in references]
        logits = torch.stack(cosines, dim=1) / self.temperature
        return self.mu * functional.cross_entropy(logits, torch.zeros_like(step.labels))

    def finish(self, num_steps: int) -> Outcome:
        return Outcome(state=parameters_of(self.context.model) | buffers_of(self.context.model))


@dataclass(frozen=True)
class Moon(Algorithm):
    """FedAvg whose clients' features stay near the global model's and leave their own former ones (Li et al. 2021)."""

    mu: float = 1.0
    """Weight of the contrastive term."""
    temperature: float = 0.5
    """Temperature of the contrastive term."""

    def __post_init__(self) -> None:
        require_at_least("mu", self.mu, 0)
        if not self.temperature > 0:
            raise SpecError(f"moon: temperature is {self.temperature}; give a number above 0.")

    def objective(self, context: LocalContext) -> LocalObjective:
        return Contrastive(context, mu=self.mu, temperature=self.temperature)
