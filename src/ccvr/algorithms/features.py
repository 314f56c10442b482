"""Algorithms that act on the features of the clients' models."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ccvr.algorithms.algorithm import Algorithm, require_at_least
from ccvr.algorithms.objectives import LocalContext, LocalObjective, Outcome, Step
from ccvr.core.errors import SpecError
from ccvr.models.state import buffers_of, parameters_of

EPSILON = 1e-8
"""Added to variances, so that a constant feature has a finite gradient."""


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


class Decorrelated(LocalObjective):
    """+ beta / d² ‖K‖²_F, K the correlations of a batch's features [d, d] (Shi et al. 2023).

    The authors' code divides the squared sums of products by the batch size B once, not twice, so beta weighs about B
    times as much there. A batch of one sample has no correlations and adds nothing.
    """

    def __init__(self, context: LocalContext, *, beta: float) -> None:
        super().__init__(context)
        self.beta = beta

    def loss(self, step: Step) -> Tensor | float:
        number, width = step.features.shape
        if number == 1:
            return 0.0
        centred = step.features - step.features.mean(0)
        z = centred / (centred.square().mean(0) + EPSILON).sqrt()  # a feature that is constant stays 0
        return self.beta / width**2 * (z.T @ z / number).square().sum()


@dataclass(frozen=True)
class FedDecorr(Algorithm):
    """FedAvg whose clients' features are kept from being correlated: beta / d² ‖corr(z)‖² (Shi et al. 2023)."""

    beta: float = 0.1
    """Weight of the squared correlations."""

    def __post_init__(self) -> None:
        require_at_least("beta", self.beta, 0)

    def objective(self, context: LocalContext) -> LocalObjective:
        return Decorrelated(context, beta=self.beta)


class BodyOnly(LocalObjective):
    """Cross-entropy under a head that stays as it is: without a gradient neither momentum nor decay move it."""

    def correct_gradients(self) -> None:
        for parameter in self.context.model.head.parameters():
            parameter.grad = None


@dataclass(frozen=True)
class FedBABU(Algorithm):
    """FedAvg of the body alone, under the head as it was drawn; the head is fitted afterwards (Oh et al. 2022)."""

    trains_head = False
    note = "fedbabu leaves the head as it was drawn: before calibration, accuracies are those of a head nobody trained"

    def objective(self, context: LocalContext) -> LocalObjective:
        return BodyOnly(context)
