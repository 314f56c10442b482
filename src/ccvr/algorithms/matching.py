"""Algorithms that match the clients' neurons before they average them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ccvr.algorithms.algorithm import Algorithm, ServerContext, require_at_least
from ccvr.algorithms.assignment import match
from ccvr.algorithms.labels import counts_of
from ccvr.algorithms.messages import LocalResult, ModelState
from ccvr.algorithms.objectives import LocalContext, LocalObjective, Outcome
from ccvr.core.arrays import IntArray
from ccvr.core.errors import SpecError
from ccvr.models.chain import CONVOLUTIONS, Chain, Layer, biases, chain_of, incoming, outgoing, reordered, require_chain
from ccvr.models.split import SplitModel
from ccvr.models.state import Tensors

COUNTS, MOVED = "counts", "moved"


class LaterLayers(LocalObjective):
    """Cross-entropy that trains all layers but the resting ones; label counts are sent where the server needs them."""

    def __init__(self, context: LocalContext, *, resting: Chain = (), counts: bool) -> None:
        super().__init__(context)
        named, names = dict(context.model.named_parameters()), [name for layer in resting for name in layer.parameters]
        self.resting, self.counts = [named[name] for name in names], counts

    def correct_gradients(self) -> None:
        for parameter in self.resting:
            parameter.grad = None

    def finish(self, num_steps: int) -> Outcome:
        return Outcome(payload={COUNTS: self.context.label_counts} if self.counts else {})


@dataclass(frozen=True)
class Weight:
    """How much a client counts in an average."""

    hidden: float
    """In the layers before the head."""
    classes: Tensor
    """In each row of the head, [C]."""


@dataclass(frozen=True)
class Matched(Algorithm):
    """The average of the clients' models with their neurons in one order, beginning with the largest client's.

    There are as many global neurons as a client has, and each client's are matched to them one to one. In the papers
    the global layers grow by neurons that match none; a model of fixed shape has no room for those. With a fixed
    number and a flat prior, the papers' inference is ``match``. The server holds all models of a round at once.
    """

    averages = False
    sends = "label counts, by which rows of the head are averaged; nothing with by_samples"

    iterations: int = 20
    """Maximum number of passes over the clients in which their orders may still change."""
    by_samples: bool = False
    """Weigh clients by their samples, as FedAvg does. The paper weighs them alike, and in the head's row of a class by
    their samples of that class."""

    def __post_init__(self) -> None:
        require_at_least("iterations", self.iterations, 1)

    def require_model(self, model: SplitModel) -> None:
        require_chain(model)

    def objective(self, context: LocalContext) -> LocalObjective:
        return LaterLayers(context, counts=not self.by_samples)

    def to_match(self, chain: Chain, round: int) -> Iterable[int]:
        """The layers of the chain whose neurons are matched in a round, one after the other."""
        raise NotImplementedError

    def neurons(self, tensors: Tensors, chain: Chain, number: int, weight: Weight) -> tuple[Tensor, Tensor]:
        """What the neurons of a layer are matched by, [width, d], and how much each coordinate counts, [d]."""
        raise NotImplementedError

    def aggregate(
        self, before: ModelState, results: Iterable[LocalResult], state: Tensors, server: ServerContext
    ) -> tuple[ModelState, Tensors]:
        held = sorted(results, key=lambda result: (-result.num_examples, result.client))
        chain = chain_of(server.build())
        weights = self._weights(held, chain[-1].width)
        models: list[Tensors] = [{**result.parameters, **result.buffers} for result in held]
        moved: list[bool] = []
        for number in self.to_match(chain, server.round):
            orders = self._orders(models, chain, number, weights)
            models = [_ordered(model, chain[number], order) for model, order in zip(models, orders, strict=True)]
            moved += [place != neuron for order in orders for place, neuron in enumerate(order)]
        mean = server.average(map(self._weighed, held, models))
        head = {} if self.by_samples else {name: _by_class(models, weights, name) for name in chain[-1].parameters}
        share = {MOVED: torch.tensor(sum(moved) / len(moved), dtype=torch.float64)} if moved else {}
        return ModelState({**mean.parameters, **head}, mean.buffers), share

    def _weights(self, results: Sequence[LocalResult], num_classes: int) -> list[Weight]:
        if self.by_samples:
            return [Weight(each.num_examples, torch.full((num_classes,), each.num_examples)) for each in results]
        return [Weight(1.0, share) for share in class_shares(results, num_classes)]

    def _orders(
        self, models: Sequence[Tensors], chain: Chain, number: int, weights: Sequence[Weight]
    ) -> list[IntArray]:
        found = [self.neurons(model, chain, number, weight) for model, weight in zip(models, weights, strict=True)]
        neurons, counting = ([pair[part].double().numpy() for pair in found] for part in (0, 1))
        return match(neurons, counting, iterations=self.iterations)

    def _weighed(self, result: LocalResult, model: Tensors) -> LocalResult:
        """The result with the tensors of a model, and with the weight that it has in the average."""
        parameters, buffers = ({name: model[name] for name in group} for group in (result.parameters, result.buffers))
        number = result.num_examples if self.by_samples else 1
        return replace(result, parameters=parameters, buffers=buffers, num_examples=number)

    def report(self, state: Tensors) -> dict[str, Any]:
        """The share of the clients' neurons whose place in the global model is another one than in theirs."""
        return {"neurons_moved": round(state[MOVED].item(), 4)} if MOVED in state else {}


def class_shares(results: Sequence[LocalResult], num_classes: int) -> Tensor:
    """Each client's share of the round's samples of a class, [K, C]; where nobody has any, all have the same."""
    like = torch.zeros(num_classes, dtype=torch.int64)
    counts = torch.stack([counts_of(result, like=like) for result in results]).double()
    counts[:, counts.sum(0) == 0] = 1
    return counts / counts.sum(0)


def _ordered(model: Tensors, layer: Layer, order: IntArray) -> Tensors:
    return reordered(model, layer, torch.from_numpy(order))


def _by_class(models: Sequence[Tensors], weights: Sequence[Weight], name: str) -> Tensor:
    """Σ_k w_kc x_kc of the clients' tensors x [C, …] of that name."""
    tensors, shares = torch.stack([model[name] for model in models]), torch.stack([each.classes for each in weights])
    return torch.einsum("kc,kc...->c...", shares, tensors.double()).to(tensors.dtype)


@dataclass(frozen=True)
class Pfnm(Matched):
    """Neurons of linear layers are matched by their weights in and out, then averaged (Yurochkin et al. 2019).

    From the last hidden layer down: a neuron is its bias and the weights with which the next layer reads it, in the
    first layer also the weights with which it reads the inputs. Weights into class c count by the client's samples
    of it. The paper matches once, after clients trained on their own; here it is done after every round.
    """

    def require_model(self, model: SplitModel) -> None:
        for layer in require_chain(model):
            if isinstance(model.get_submodule(layer.path), CONVOLUTIONS):
                raise SpecError(
                    f'pfnm matches linear layers, and "{layer.path}" is a convolution. '
                    "Use fedma, which matches both, or choose a model of linear layers."
                )

    def to_match(self, chain: Chain, round: int) -> Iterable[int]:
        return reversed(range(len(chain) - 1))

    def neurons(self, tensors: Tensors, chain: Chain, number: int, weight: Weight) -> tuple[Tensor, Tensor]:
        layer, is_last = chain[number], number == len(chain) - 2
        read = outgoing(tensors, layer)
        own = torch.cat([*([incoming(tensors, layer)] if number == 0 else []), biases(tensors, layer)], 1)
        hidden = own.new_full((own.shape[1],), weight.hidden)
        out = weight.classes if is_last else own.new_full((read.shape[1],), weight.hidden)
        return torch.cat([own, read.flatten(1)], 1), torch.cat([hidden, out.repeat_interleave(read.shape[2])])


@dataclass(frozen=True)
class FedMA(Matched):
    """Layer by layer: neurons are matched and averaged, then clients train the later layers (Wang et al. 2020).

    A neuron is its bias and the weights with which it reads the neurons before it, which are in the global order. Of L
    layers, round r trains number (r − 1) mod L, from 0, and those after it. The layers before it rest. So a cycle is
    L rounds, and the next one begins with all layers again. The paper sends and averages one layer a round, and clients
    go on from their own later layers. Here all layers are sent, and the later ones are matched and averaged as
    well. So there is a global model after each round, and all clients begin the next round from it.
    """

    def objective(self, context: LocalContext) -> LocalObjective:
        chain = chain_of(context.model)
        return LaterLayers(context, resting=chain[: _first(chain, context.round)], counts=not self.by_samples)

    def to_match(self, chain: Chain, round: int) -> Iterable[int]:
        return range(_first(chain, round), len(chain) - 1)

    def neurons(self, tensors: Tensors, chain: Chain, number: int, weight: Weight) -> tuple[Tensor, Tensor]:
        found = torch.cat([incoming(tensors, chain[number]), biases(tensors, chain[number])], 1)
        return found, found.new_full((found.shape[1],), weight.hidden)


def _first(chain: Chain, round: int) -> int:
    """The number of the first layer that trains in a round."""
    return (round - 1) % len(chain)
