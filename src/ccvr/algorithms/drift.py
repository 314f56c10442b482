"""Algorithms that keep clients from drifting apart."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from ccvr.algorithms.algorithm import Algorithm, ServerContext, require_above, require_at_least, step_towards
from ccvr.algorithms.messages import LocalResult, ModelState
from ccvr.algorithms.objectives import LocalContext, LocalObjective, Outcome, Proximal
from ccvr.algorithms.sgd import step_weight
from ccvr.data.batches import Batch
from ccvr.models.state import Tensors, WeightedMean


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


CLIENTS = "clients"
"""Where a server's state keeps the number of all clients."""


def _changes(context: LocalContext) -> Tensors:
    """W − w_global of every parameter, a shared one under each of its names."""
    now = context.model.named_parameters(remove_duplicate=False)
    return {name: parameter.detach() - context.received[name] for name, parameter in now}


def _weighed(results: Iterable[LocalResult], seen: list[int], *, by_samples: bool) -> Iterator[LocalResult]:
    """The same results, each of the weight 1 unless they count by their samples; notes their clients."""
    for result in results:
        seen.append(result.client)
        yield result if by_samples else replace(result, num_examples=1)


# --- SCAFFOLD ---------------------------------------------------------------------------------------------------------


class Controlled(LocalObjective):
    """Gradients + c − c_k; then c_k ← c_k − c + (w_global − w) / (lr · A), option II of Karimireddy et al. 2020.

    A is the weight of the steps that were taken (``step_weight``), so c_k is a mean of gradients with momentum, too.
    """

    def __init__(self, context: LocalContext) -> None:
        super().__init__(context)
        self.server = context.broadcast
        self.mine = context.state or {name: torch.zeros_like(c) for name, c in self.server.items()}
        parameters = context.model.named_parameters()
        self.pairs = [(p, self.server[name] - self.mine[name]) for name, p in parameters]

    def correct_gradients(self) -> None:
        for parameter, correction in self.pairs:
            if parameter.grad is not None:
                parameter.grad.add_(correction)

    def finish(self, num_steps: int) -> Outcome:
        scale = -1 / (self.context.lr * step_weight(num_steps, self.context.spec))
        change = {name: scale * moved - self.server[name] for name, moved in _changes(self.context).items()}
        return Outcome(payload=change, state={name: self.mine[name] + change[name] for name in change})


@dataclass(frozen=True)
class Scaffold(Algorithm):
    """Gradients are corrected by c − c_k, control variates of server and client (Karimireddy et al. 2020).

    c += |S|/K · mean(c_k⁺ − c_k), w += lr · mean(w_k − w) over the round's clients S of all K.
    """

    sends = "control variates, as large as the parameters, both ways"

    lr: float = 1.0
    """Step of the server along the clients' mean change."""
    by_samples: bool = False
    """Weigh clients by their samples, as FedAvg does. The paper weighs them alike."""

    def __post_init__(self) -> None:
        require_above("scaffold: lr", self.lr, 0)

    @property
    def is_sample_mean(self) -> bool:
        return self.by_samples and self.lr == 1

    def init(self, model: ModelState, num_clients: int) -> Tensors:
        zeros = {name: torch.zeros_like(tensor) for name, tensor in model.parameters.items()}
        return zeros | {CLIENTS: torch.tensor(num_clients)}

    def broadcast(self, state: Tensors) -> Tensors:
        return {name: c for name, c in state.items() if name != CLIENTS}

    def objective(self, context: LocalContext) -> LocalObjective:
        return Controlled(context)

    def aggregate(
        self, before: ModelState, results: Iterable[LocalResult], state: Tensors, server: ServerContext
    ) -> tuple[ModelState, Tensors]:
        changes, seen = WeightedMean(), list[int]()

        def noted() -> Iterator[LocalResult]:
            for result in _weighed(results, seen, by_samples=self.by_samples):
                changes.add(result.payload, result.num_examples)
                yield result

        mean, change = server.average(noted()), changes.result()
        share = len(seen) / int(state[CLIENTS])
        controls = {n: (c.double() + share * change[n].double()).to(c.dtype) for n, c in self.broadcast(state).items()}
        return step_towards(before, mean, self.lr), controls | {CLIENTS: state[CLIENTS]}


# --- FedNova ----------------------------------------------------------------------------------------------------------

STEPS = "steps"


class Counting(Proximal):
    """Tells the server the weights a_k of the steps that were taken (``step_weight``): of the body, and of the head.

    They differ where clsprox pulls the head alone.
    """

    def finish(self, num_steps: int) -> Outcome:
        spec = self.context.spec
        weights = [step_weight(num_steps, spec, pull) for pull in (self.mu, self.mu + spec.clsprox)]
        return Outcome(payload={STEPS: torch.tensor(weights, dtype=torch.float64)})


@dataclass(frozen=True)
class FedNova(Algorithm):
    """Clients' changes count for one step each, not for as many as they took (Wang et al. 2020).

    d_k = (w − w_k) / a_k, w ← w − (Σ p_k a_k) Σ p_k d_k, p_k the client's part of the round's samples.
    """

    sends = "the weights of a client's steps, two numbers, up"
    mu: float = 0.0
    """Weight of a proximal term as FedProx has; 0 is off. The weights of the steps take it and clsprox into account."""

    def __post_init__(self) -> None:
        require_at_least("fednova: mu", self.mu, 0)

    @property
    def is_sample_mean(self) -> bool:
        return False

    def objective(self, context: LocalContext) -> LocalObjective:
        return Counting(context, mu=self.mu)

    def aggregate(
        self, before: ModelState, results: Iterable[LocalResult], state: Tensors, server: ServerContext
    ) -> tuple[ModelState, Tensors]:
        old = {name: tensor.double() for name, tensor in before.parameters.items()}
        steps = WeightedMean()

        def of_one_step() -> Iterator[LocalResult]:
            for result in results:
                steps.add(result.payload, result.num_examples)
                ends, taken = result.parameters, result.payload[STEPS]
                yield replace(result, parameters={n: (w - ends[n]) / _part(taken, n) for n, w in old.items()})

        mean = server.average(of_one_step())
        number = steps.result()[STEPS]
        made = {n: (old[n] - _part(number, n) * mean.parameters[n]).to(w.dtype) for n, w in before.parameters.items()}
        return ModelState(made, mean.buffers), state


def _part(steps: Tensor, name: str) -> Tensor:
    """The weight of the steps of a parameter: the second where it is the head's."""
    return steps[int(name.startswith("head."))]


# --- FedDyn -----------------------------------------------------------------------------------------------------------


class Dynamic(LocalObjective):
    """− ⟨h_k, w⟩ + alpha/2 ‖w − w_global‖², by its gradient; then h_k ← h_k − alpha (w − w_global).

    FedDyn (Acar et al. 2021). The gradient is clipped with these terms in it.
    """

    def __init__(self, context: LocalContext, *, alpha: float, clip: float) -> None:
        super().__init__(context)
        self.alpha, self.clip, received = alpha, clip, context.received
        parameters = dict(context.model.named_parameters())
        self.mine = context.state or {name: torch.zeros_like(received[name]) for name in parameters}
        self.parts = [(p, received[name], self.mine[name]) for name, p in parameters.items()]

    def correct_gradients(self) -> None:
        for parameter, anchor, h in self.parts:
            if parameter.grad is not None:
                parameter.grad.add_(parameter.detach() - anchor, alpha=self.alpha).sub_(h)
        if self.clip:
            clip_grad_norm_(self.context.model.parameters(), self.clip)

    def finish(self, num_steps: int) -> Outcome:
        moved = _changes(self.context)
        return Outcome(state={name: h - self.alpha * moved[name] for name, h in self.mine.items()})


@dataclass(frozen=True)
class FedDyn(Algorithm):
    """Clients' losses get a linear and a proximal term, so that their minima become the global one (Acar et al. 2021).

    h ← h − alpha/K Σ_S (w_k − w), w ← mean_S w_k − h/alpha over the round's clients S of all K.
    """

    averages = False

    alpha: float = 0.01
    """Weight of the proximal term, and of what clients and server remember."""
    clip: float = 10.0
    """Largest norm of a client's gradient, all parameters together; 0 is off."""
    by_samples: bool = False
    """Weigh clients by their samples, as FedAvg does. The paper weighs them alike."""

    def __post_init__(self) -> None:
        require_above("feddyn: alpha", self.alpha, 0)
        require_at_least("feddyn: clip", self.clip, 0)

    def init(self, model: ModelState, num_clients: int) -> Tensors:
        zeros = {n: torch.zeros_like(w, dtype=torch.float64) for n, w in model.parameters.items()}
        return zeros | {CLIENTS: torch.tensor(num_clients)}

    def objective(self, context: LocalContext) -> LocalObjective:
        return Dynamic(context, alpha=self.alpha, clip=self.clip)

    def aggregate(
        self, before: ModelState, results: Iterable[LocalResult], state: Tensors, server: ServerContext
    ) -> tuple[ModelState, Tensors]:
        seen: list[int] = []
        mean, old = server.average(_weighed(results, seen, by_samples=self.by_samples)), before.parameters
        part = self.alpha * len(seen) / int(state[CLIENTS])
        h = {n: state[n] - part * (mean.parameters[n].double() - w.double()) for n, w in old.items()}
        made = {n: (mean.parameters[n].double() - h[n] / self.alpha).to(w.dtype) for n, w in old.items()}
        return ModelState(made, mean.buffers), h | {CLIENTS: state[CLIENTS]}


# --- FedSAM -----------------------------------------------------------------------------------------------------------


class Sharpness(LocalObjective):
    """Gradients at w + rho g / ‖g‖, g those at w (Foret et al. 2021). Buffers are those of the pass at w."""

    def __init__(self, context: LocalContext, *, rho: float) -> None:
        super().__init__(context)
        self.rho = rho

    def backward(self, batch: Batch, loss_of: Callable[[Batch], Tensor]) -> Tensor:
        loss = super().backward(batch, loss_of)
        climbed = [(p, p.grad) for p in self.context.model.parameters() if p.grad is not None]
        places = [p.detach() for p, _ in climbed]
        kept = [(tensor, tensor.clone()) for tensor in (*places, *self.context.model.buffers())]
        norm = torch.linalg.vector_norm(torch.stack([g.norm() for _, g in climbed]))
        for place, (parameter, gradient) in zip(places, climbed, strict=True):
            place.add_(gradient * (self.rho / norm.clamp(min=1e-12)))
            parameter.grad = None
        loss_of(batch).backward()
        for tensor, before in kept:
            tensor.copy_(before)  # not w + e − e, which has other bits
        return loss


@dataclass(frozen=True)
class FedSam(Algorithm):
    """FedAvg whose clients look for flat minima: gradients at w + rho g / ‖g‖ (Qu et al. 2022).

    A step takes two gradients, and about twice the time.
    """

    rho: float = 0.05
    """How far from w gradients are taken."""

    def __post_init__(self) -> None:
        require_at_least("fedsam: rho", self.rho, 0)

    def objective(self, context: LocalContext) -> LocalObjective:
        return Sharpness(context, rho=self.rho)
