"""Algorithms whose server trains on the clients' scores of unlabelled samples."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ccvr.algorithms.algorithm import Algorithm, ServerContext, require_at_least
from ccvr.algorithms.messages import LocalResult, ModelState
from ccvr.core.errors import SpecError
from ccvr.kernels.inputs import Inputs, num_rows, rows_of
from ccvr.models.split import SplitModel
from ccvr.models.state import Tensors, parameters_of

CHECK_EVERY = 10
"""Steps between two measurements on the held-out samples."""
ROWS = 128
"""Batch size of passes without gradients."""


@dataclass(frozen=True)
class FedDF(Algorithm):
    """FedAvg whose server then distils the clients' mean scores on unlabelled samples (Lin et al. 2020).

    From the average, Adam with a cosine schedule minimises KL(softmax(mean_k scores_k(x)) ‖ softmax(scores(x))). All
    models are in eval mode, so the buffers stay those of the average. A tenth of the samples is held out. The model
    with the lowest KL on them is kept; the average is a candidate. The paper takes at most 10,000 steps and
    a patience of 1,000; the defaults here are a tenth of both.
    """

    needs_unlabelled = True
    averages = False

    steps: int = 1000
    """Maximum number of steps of the server in a round."""
    lr: float = 0.001
    """Learning rate of the server at the start of a round."""
    batch_size: int = 128
    """Samples in a step of the server."""
    patience: int = 100
    """Steps without a lower KL on the held-out samples after which the server stops."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "patience"):
            require_at_least(f"feddf: {name}", getattr(self, name), 1)
        if not self.lr > 0:
            raise SpecError(f"feddf: lr is {self.lr}; give a number above 0.")

    def aggregate(
        self, before: ModelState, results: Iterable[LocalResult], state: Tensors, server: ServerContext
    ) -> tuple[ModelState, Tensors]:
        samples, model = _enough(server.unlabelled), server.build().eval()
        scores = ScoreSum(samples, model)
        mean = server.average(scores.adding(results))
        model.load_state_dict(mean.tensors)
        return ModelState(self._distilled(model, samples, scores.targets(), server.rng), mean.buffers), state

    def _distilled(self, model: SplitModel, samples: Inputs, targets: Tensor, rng: np.random.Generator) -> Tensors:
        """The parameters with the lowest KL on the held-out samples."""
        order, tenth = torch.from_numpy(rng.permutation(len(targets))), math.ceil(len(targets) / 10)
        held_out, seen = order[:tenth], order[tenth:]
        optimiser = torch.optim.Adam(model.parameters(), self.lr)
        lowest, best, best_step = _kl(model, samples, targets, held_out), parameters_of(model), 0
        for step in range(1, self.steps + 1):
            rows = seen[torch.from_numpy(rng.integers(0, len(seen), self.batch_size))]
            optimiser.param_groups[0]["lr"] = self.lr * (1 + math.cos(math.pi * (step - 1) / self.steps)) / 2
            optimiser.zero_grad()
            divergence(model(rows_of(samples, rows)), targets[rows]).backward()
            optimiser.step()
            if step % CHECK_EVERY == 0 or step == self.steps:
                found = _kl(model, samples, targets, held_out)
                if found < lowest:
                    lowest, best, best_step = found, parameters_of(model), step
                elif step - best_step >= self.patience:
                    break
        return best


class ScoreSum:
    """Σ_k scores_k(x) of samples [N, …] over the clients' models: holds one model and one sum [N, C]."""

    def __init__(self, samples: Inputs, model: SplitModel) -> None:
        self.samples, self.model = samples, model
        self.total = torch.zeros(num_rows(samples), len(model.head.weight), dtype=torch.float64)
        self.number = 0

    def adding(self, results: Iterable[LocalResult]) -> Iterator[LocalResult]:
        """Yield the same results, and add the scores of each model."""
        for result in results:
            self.model.load_state_dict({**result.parameters, **result.buffers})
            for rows in torch.arange(len(self.total)).split(ROWS):
                with torch.no_grad():
                    self.total[rows] += self.model(rows_of(self.samples, rows)).double().cpu()
            self.number += 1
            yield result

    def targets(self) -> Tensor:
        """The classes' probabilities under the mean scores, [N, C], in the model's type."""
        return (self.total / self.number).softmax(1).to(self.model.head.weight.dtype)


def divergence(scores: Tensor, targets: Tensor) -> Tensor:
    """KL(targets ‖ softmax(scores)), the mean over a batch."""
    return functional.kl_div(scores.log_softmax(1), targets.to(scores.device), reduction="batchmean")


def _kl(model: SplitModel, samples: Inputs, targets: Tensor, chosen: Tensor) -> float:
    """The mean divergence of some samples."""
    with torch.no_grad():
        sums = [divergence(model(rows_of(samples, rows)), targets[rows]) * len(rows) for rows in chosen.split(ROWS)]
    return torch.stack(sums).double().sum().item() / len(chosen)


def _enough(samples: Inputs | None) -> Inputs:
    number = 0 if samples is None else num_rows(samples)
    if samples is None or number < 2:
        raise SpecError(
            f"feddf learns from unlabelled samples and holds some out; it needs at least 2, and there are {number}. "
            "Set data.unlabelled, for example 0.1."
        )
    return samples
