"""What makes a client's own model out of a trained one, after the last round."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from ccvr.algorithms.algorithm import Algorithm, require_above, require_at_least
from ccvr.algorithms.messages import Client, GlobalState
from ccvr.algorithms.objectives import LocalContext, LocalObjective
from ccvr.algorithms.spec import TrainingSpec
from ccvr.core.errors import SpecError, TrainingError
from ccvr.core.seeds import derive_seed
from ccvr.models.heads import Head
from ccvr.models.split import SplitModel
from ccvr.models.state import Scratch, buffers_of, parameters_of
from ccvr.models.transform import FeatureTransform
from ccvr.training.local import seeded, train_client
from ccvr.training.trainer import one_thread


@dataclass(frozen=True)
class Start:
    """What a client has at hand when it makes a model of its own."""

    model: SplitModel
    """The model that it starts from, in train mode: a copy, which may be changed."""
    client: Client
    """Its number, the training samples of all, and which of them are its own."""
    label_counts: Tensor
    """How many training samples of each class it has, [C]."""
    prior: Tensor | None
    """Label frequencies, up to a factor, that the head's scores assume, [C]; None where they assume none."""
    spec: TrainingSpec
    """How the run trained."""
    round: int
    """The number of a round after the last."""
    seed: int


@dataclass(frozen=True)
class Personalisation:
    """A way to a client's own model. A subclass is a frozen dataclass; its fields are its options."""

    from_trained: ClassVar[bool] = False
    """Whether it starts from the head as training left it, where no other is named, not from the deployed one."""

    def require(self, head: Head, prior: Tensor | None) -> None:
        """Refuse a head, and the label frequencies that its scores assume; called before the first client."""

    def personalise(self, start: Start) -> nn.Module:
        """The client's own model: inputs as the data set has them [B, …] → scores [B, C]."""
        raise NotImplementedError


def own_model(method: Personalisation, start: Start) -> nn.Module:
    """The model that a method makes for a client; the same call gives the same bits.

    Raises:
        TrainingError: the training diverged, or the method gives no model.
    """
    seed = derive_seed(start.seed, "personalise", client=start.client.id)
    with one_thread(), seeded(seed, start.model.head.weight.device):
        made: Any = method.personalise(start)
    if not isinstance(made, nn.Module):
        name = type(method).__name__
        raise TrainingError(f"the personalisation {name} gave a {type(made).__name__}; it must give a model.")
    return made


class HeadAlone(LocalObjective):
    """Cross-entropy by which the head alone is trained, on the features of the backbone in eval mode."""

    def start_epoch(self, epoch: int) -> None:
        self.context.model.backbone.eval()

    def correct_gradients(self) -> None:
        for parameter in self.context.model.backbone.parameters():
            parameter.grad = None


@dataclass(frozen=True)
class _Tuning(Algorithm):
    """Cross-entropy on the whole model or on the head alone."""

    head_alone: bool

    def objective(self, context: LocalContext) -> LocalObjective:
        return HeadAlone(context) if self.head_alone else LocalObjective(context)


@dataclass(frozen=True)
class Finetune(Personalisation):
    """Train on, on the client's own samples, by SGD with cross-entropy (Jiang et al. 2019)."""

    from_trained: ClassVar[bool] = True

    epochs: int = 5
    """Passes over the client's samples."""
    lr: float | None = None
    """Learning rate; without it that of the run. Batch size, momentum, weight decay and augmentation are the run's."""
    scope: Literal["all", "head"] = "all"
    """What is trained: the whole model, or the head alone."""

    def __post_init__(self) -> None:
        require_at_least("finetune: epochs", self.epochs, 1)
        if self.lr is not None:
            require_above("finetune: lr", self.lr, 0)

    def require(self, head: Head, prior: Tensor | None) -> None:
        if self.scope == "all" and isinstance(head.transform, FeatureTransform) and head.transform.is_steep:
            raise SpecError(
                f'a backbone cannot be trained below the transform "{head.transform}", which is infinitely steep at 0. '
                "Choose another one with --head, or use finetune,scope=head."
            )

    def personalise(self, start: Start) -> nn.Module:
        model, tuning = start.model, _Tuning(head_alone=self.scope == "head")
        lr = start.spec.lr if self.lr is None else self.lr
        spec = replace(start.spec, local_epochs=self.epochs, lr=lr, clsprox=0.0)
        sent = GlobalState(parameters_of(model), buffers_of(model), {})
        train_client(Scratch(model), sent, start.client, {}, tuning, spec, round=start.round, seed=start.seed)
        return model
