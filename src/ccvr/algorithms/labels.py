"""Algorithms whose loss knows which labels a client has, and which it lacks."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ccvr.algorithms.algorithm import Algorithm, ServerContext, require_at_least
from ccvr.algorithms.messages import LocalResult, ModelState
from ccvr.algorithms.objectives import LocalContext, LocalObjective, Outcome, Step
from ccvr.core.errors import SpecError, TrainingError
from ccvr.models.state import Tensors


class ImportanceWeighted(LocalObjective):
    """Σ w_y ℓ / Σ w_y over a batch, w_c = p_c / q_c: p of all clients' labels, q of this client's (Hsu et al. 2020).

    p_c ∝ max(N_c, n_c), N the sum of the clients' counts so far and n this client's own. That is N for a client whose
    counts are in N; before anybody has sent counts it is n, and all weights are 1.
    """

    def __init__(self, context: LocalContext) -> None:
        super().__init__(context)
        own, dtype = context.label_counts, context.model.head.weight.dtype
        # Without Σ N and Σ n, which cancel in the quotient; a class that the client lacks is in no batch.
        self.weights = torch.maximum(context.broadcast["counts"], own).to(dtype) / own.clamp(min=1)

    def data_loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(scores, labels, weight=self.weights)  # torch divides by the sum of the weights

    def finish(self, num_steps: int) -> Outcome:
        return Outcome(payload={"counts": self.context.label_counts})


@dataclass(frozen=True)
class FedIR(Algorithm):
    """FedAvg in round 1, then samples weigh as all clients' label mix over the client's own (Hsu et al. 2020).

    The weight of a sample of class y is p(y) / q_k(y). Counts are exchanged with the first round's models.

    Clients send their label counts with every model. The server adds each client's once and sends the sums on, so it
    learns every participant's label counts, and clients learn the sums.
    """

    sends = "label counts, each client's own up and their sums down"

    def init(self, model: ModelState, num_clients: int) -> Tensors:
        num_classes = len(model.parameters["head.weight"])
        sizes = {"counts": num_classes, "heard": num_clients}
        return {name: torch.zeros(size, dtype=torch.int64) for name, size in sizes.items()}

    def broadcast(self, state: Tensors) -> Tensors:
        return {"counts": state["counts"]}

    def objective(self, context: LocalContext) -> LocalObjective:
        return ImportanceWeighted(context)

    def aggregate(
        self, before: ModelState, results: Iterable[LocalResult], state: Tensors, server: ServerContext
    ) -> tuple[ModelState, Tensors]:
        counts, heard = state["counts"].clone(), state["heard"].clone()

        def noted() -> Iterator[LocalResult]:
            for result in results:
                if not heard[result.client]:
                    heard[result.client] = 1
                    counts.add_(counts_of(result, like=counts))
                yield result

        return server.average(noted()), {"counts": counts, "heard": heard}


def counts_of(result: LocalResult, *, like: Tensor) -> Tensor:
    """A client's label counts; those of another number of samples, or that are no counts, are refused."""
    found = result.payload.get("counts")
    is_counts = (
        found is not None and (found.dtype, found.shape) == (like.dtype, like.shape) and bool((found >= 0).all())
    )
    if found is None or not is_counts or found.sum() != result.num_examples:
        raise TrainingError(
            f"client {result.client} sent label counts that are not those of its {result.num_examples} samples. "
            "Leave that client out, or run the same version of ccvr there."
        )
    return found


class Calibrated(LocalObjective):
    """Cross-entropy of scores_c − tau n_c^(−1/4), n_c the client's samples of class c (Zhang et al. 2022).

    The printed formula leaves the true class out of the softmax's denominator. That loss has no lower bound, and
    training on it diverges; here the true class is in. A class that the client lacks would be shifted by −∞: it is left
    out of the softmax, so no gradient reaches its row.
    """

    def __init__(self, context: LocalContext, *, tau: float) -> None:
        super().__init__(context)
        counts = context.label_counts.to(context.model.head.weight.dtype)
        self.shift = torch.where(counts > 0, -tau * counts.clamp(min=1) ** -0.25, -torch.inf)

    def data_loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(scores + self.shift, labels)


@dataclass(frozen=True)
class FedLC(Algorithm):
    """FedAvg with scores calibrated by label counts: scores_c − tau n_c^(−1/4) (Zhang et al. 2022)."""

    tau: float = 1.0
    """How much the scores are shifted. At 0 only the classes that a client lacks are treated differently."""

    def __post_init__(self) -> None:
        require_at_least("tau", self.tau, 0)

    def objective(self, context: LocalContext) -> LocalObjective:
        return Calibrated(context, tau=self.tau)


class Restricted(LocalObjective):
    """Cross-entropy in which the scores of classes that the client lacks are scaled by alpha (Li and Zhan 2021)."""

    def __init__(self, context: LocalContext, *, alpha: float) -> None:
        super().__init__(context)
        present = (context.label_counts > 0).to(context.model.head.weight.dtype)
        self.scale = present + alpha * (1 - present)

    def data_loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(scores * self.scale, labels)


@dataclass(frozen=True)
class FedRS(Algorithm):
    """FedAvg with a restricted softmax: scores of classes that a client lacks times alpha (Li and Zhan 2021)."""

    alpha: float = 0.5
    """Scale of those scores; 1 is FedAvg. Their rows' gradients are scaled by it, too."""

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise SpecError(f"fedrs: alpha is {self.alpha}; give a number from 0 to 1.")

    def objective(self, context: LocalContext) -> LocalObjective:
        return Restricted(context, alpha=self.alpha)


class NotTrueDistilled(LocalObjective):
    """+ beta tau² KL(g ‖ l): softmaxes at temperature tau, over all classes but the true one (Lee et al. 2022).

    g is of the received model in eval mode, l of the model in training. tau² keeps the gradients' size at any tau, as
    in the authors' code.
    """

    def __init__(self, context: LocalContext, *, beta: float, tau: float) -> None:
        super().__init__(context)
        self.beta, self.tau = beta, tau

    def loss(self, step: Step) -> Tensor:
        anchor = self.context.anchor
        with torch.no_grad():
            theirs = self._log_softmax(anchor.head(anchor.features(step.inputs)), step.labels)
        ours = self._log_softmax(step.scores, step.labels)
        return self.beta * self.tau**2 * functional.kl_div(ours, theirs, reduction="batchmean", log_target=True)

    def _log_softmax(self, scores: Tensor, labels: Tensor) -> Tensor:
        others = functional.one_hot(labels, scores.shape[1]) == 0
        return functional.log_softmax(scores[others].view(len(scores), -1) / self.tau, dim=1)


@dataclass(frozen=True)
class FedNTD(Algorithm):
    """FedAvg whose clients keep what the global model says about all classes but the true one (Lee et al. 2022)."""

    beta: float = 1.0
    """Weight of the distillation."""
    tau: float = 1.0
    """Temperature of the distillation."""

    def __post_init__(self) -> None:
        require_at_least("beta", self.beta, 0)
        if not self.tau > 0:
            raise SpecError(f"fedntd: tau is {self.tau}; give a number above 0.")

    def objective(self, context: LocalContext) -> LocalObjective:
        return NotTrueDistilled(context, beta=self.beta, tau=self.tau)
