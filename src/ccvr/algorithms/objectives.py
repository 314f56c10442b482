"""Local objectives: what a client minimises, and how."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from ccvr.algorithms.spec import TrainingSpec
from ccvr.core.arrays import IntArray
from ccvr.data.batches import Batch
from ccvr.kernels.crops import Crops
from ccvr.kernels.inputs import Inputs, on
from ccvr.kernels.lanes import Lanes
from ccvr.models.modes import evaluating
from ccvr.models.split import SplitModel
from ccvr.models.state import Tensors


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
    spec: TrainingSpec
    batches: Callable[[], Iterator[Batch]]
    """One pass over the client's samples, augmented where training augments them; the same at every call."""
    round: int = 1

    @property
    def lr(self) -> float:
        """The clients' learning rate."""
        return self.spec.lr

    @cached_property
    def labels(self) -> Tensor:
        """The labels of this client's samples."""
        return torch.from_numpy(self.all_labels.numpy()[self.indices])

    @cached_property
    def label_counts(self) -> Tensor:
        """How many samples of each class the client has, [C]."""
        weight = self.model.head.weight
        return torch.bincount(self.labels, minlength=len(weight)).to(weight.device)

    def losses(self) -> Iterator[tuple[Tensor, int]]:
        """The mean cross-entropy of each batch of ``batches()`` under the model as it is now, and the batch's size."""
        for batch in self.batches():
            labels = batch.labels.to(self.model.head.weight.device)
            scores = self.model.head(self.model.features(self.model.inputs(batch.inputs)))
            yield functional.cross_entropy(scores, labels), len(labels)

    def mean_loss(self) -> float:
        """The mean cross-entropy of the model as it is now over the client's samples, in eval mode."""
        with evaluating(self.model):
            found = [(number * loss.item(), number) for loss, number in self.losses()]
        return sum(loss for loss, _ in found) / sum(number for _, number in found)

    def start_from(self, tensors: Tensors) -> None:
        """Begin from another model than the received one: it is loaded, and proximal terms refer to it."""
        self.received.update(tensors)
        with torch.no_grad():
            for name, tensor in self.model.state_dict().items():
                tensor.copy_(self.received[name])

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
    """Cross-entropy. Lives for one client and one round; override what the algorithm needs."""

    def __init__(self, context: LocalContext) -> None:
        self.context = context

    def start_epoch(self, epoch: int) -> None:
        """Called before each local epoch; the first is 0."""

    def data_loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """How well the scores [B, C] of a batch fit its labels [B]."""
        return functional.cross_entropy(scores, labels)

    def loss(self, step: Step) -> Tensor | float:
        """Added to the loss of a batch."""
        return 0.0

    def backward(self, batch: Batch, loss_of: Callable[[Batch], Tensor]) -> Tensor:
        """Leave the gradients of a batch in ``.grad``, and return its loss.

        ``loss_of`` passes a batch through the model as it is now; gradients are empty before.
        """
        loss = loss_of(batch)
        loss.backward()
        return loss.detach()

    def correct_gradients(self) -> None:
        """Called before the optimiser's step; may change ``.grad``. A parameter without a gradient stays as it is."""

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
        self.pairs = [(p, context.received[name]) for name, p in parameters if mu and name.startswith(scope)]

    def correct_gradients(self) -> None:
        for parameter, anchor in self.pairs:
            if parameter.grad is not None:
                parameter.grad.add_(parameter.detach() - anchor, alpha=self.mu)
