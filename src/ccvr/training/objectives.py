"""Local objectives: what an algorithm adds to a client's cross-entropy."""

import copy
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from ccvr.core.arrays import IntArray
from ccvr.kernels.crops import Crops
from ccvr.kernels.inputs import Inputs, on
from ccvr.kernels.lanes import Lanes
from ccvr.models.split import SplitModel
from ccvr.models.state import Tensors, buffers_of, parameters_of


@dataclass(frozen=True)
class LocalContext:
    """What a client has at hand in one round."""

    model: SplitModel
    """The model that is being trained; at the start equal to the anchor."""
    received: Tensors
    """The global model's parameters and buffers, as received. All clients share them: do not write to them."""
    state: Tensors
    """What this client kept for itself when it last took part; empty at its first time."""
    broadcast: Tensors
    """What the server sent beside the model; shared as well."""
    all_labels: Tensor
    indices: IntArray
    """The client's samples among all."""
    lr: float
    round: int = 1

    def with_state(self, state: Tensors) -> "LocalContext":
        """The same with the state of one objective."""
        device = self.model.head.weight.device
        return replace(self, state={name: tensor.to(device) for name, tensor in state.items()})

    @cached_property
    def labels(self) -> Tensor:
        """The labels of this client's samples."""
        return torch.from_numpy(self.all_labels.numpy()[self.indices])

    @cached_property
    def label_counts(self) -> Tensor:
        """How many samples of each class the client has, [C]."""
        weight = self.model.head.weight
        return torch.bincount(self.labels, minlength=len(weight)).to(weight.device)

    @cached_property
    def anchor(self) -> SplitModel:
        """The global model as received: eval mode, no gradients. Made when it is first asked for."""
        anchor = copy.deepcopy(self.model).eval().requires_grad_(False)
        anchor.load_state_dict(self.received)
        return anchor


@dataclass(frozen=True)
class Step:
    """One batch on its way through the model."""

    batch: Inputs | Crops
    inputs: Inputs | Lanes
    """The inputs as the backbone reads them, preprocessed: ``model.features`` takes them."""
    labels: Tensor
    features: Tensor
    scores: Tensor

    @property
    def samples(self) -> Inputs:
        """The inputs as the data set has them, augmented, on the labels' device; made when asked for."""
        return on(self.labels.device, self.batch.images if isinstance(self.batch, Crops) else self.batch)


@dataclass(frozen=True)
class Outcome:
    """What an objective returns: ``payload`` goes to the server, ``state`` stays with the client for its next round."""

    payload: Tensors = field(default_factory=dict)
    state: Tensors = field(default_factory=dict)


class LocalObjective:
    """Adds nothing. Lives for one client and one round; override what the algorithm needs."""

    def __init__(self, context: LocalContext) -> None:
        self.context = context

    def loss(self, step: Step) -> Tensor | float:
        """Added to the cross-entropy of a batch."""
        return 0.0

    def correct_gradients(self) -> None:
        """Called between the backward pass and the optimiser's step; may change ``.grad``."""

    def finish(self, num_steps: int) -> Outcome:
        """Called after the last step."""
        return Outcome()


class Proximal(LocalObjective):
    """mu/2 ‖w − w_global‖² over the parameters whose names start with ``scope``, by its gradient mu (w − w_global).

    All parameters: FedProx (Li et al. 2018). The head's: clsprox (Luo et al. 2021, 3.3).
    """

    def __init__(self, context: LocalContext, *, mu: float, scope: str = "") -> None:
        super().__init__(context)
        self.mu = mu
        parameters = context.model.named_parameters()
        self.pairs = [(p, context.received[name]) for name, p in parameters if name.startswith(scope)]

    def correct_gradients(self) -> None:
        for parameter, anchor in self.pairs:
            if parameter.grad is not None:
                parameter.grad.add_(parameter.detach() - anchor, alpha=self.mu)


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
