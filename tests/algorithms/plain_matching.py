"""Plain rules of algorithms that match neurons: every order of a layer is tried, and its whole sum of squares computed.

A network of two hidden layers: V1, a1 and W1, b1 under the head W2, b2.
"""

from itertools import permutations

import torch

from tests.algorithms.plain import Rule, cross_entropy, logits

PLACES = {"V1": 0, "a1": 0, "W1": 1, "b1": 1, "W2": 2, "b2": 2}
"""The layer of each tensor."""


def mean_of(models, weights):
    """The mean of tensors; a weight is a number, or has the shape of a row."""
    return sum(w * m for w, m in zip(weights, models, strict=True)) / sum(weights)


def spread(vectors, orders, weights):
    """Σ_k Σ_i Σ_d w_kd (mean_id − v_k,order_k(i),d)², of the clients that have an order."""
    chosen = {k: vectors[k][list(order)] for k, order in orders.items()}
    alive = sum(weights[k] for k in chosen)
    total = sum(weights[k] * v for k, v in chosen.items())
    mean = torch.where(alive > 0, total / torch.where(alive > 0, alive, 1.0), 0.0)
    return sum((weights[k] * (mean - v) ** 2).sum() for k, v in chosen.items())


def best(k, vectors, orders, weights):
    tried = permutations(range(len(vectors[k])))
    return min(tried, key=lambda order: spread(vectors, {**orders, k: order}, weights).item())


def match(vectors, weights, iterations):
    """An order for each client; the first one's neurons stay where they are."""
    first, *others = vectors
    orders = {first: tuple(range(len(vectors[first])))}
    for k in others:
        orders[k] = best(k, vectors, orders, weights)
    for _ in range(iterations):
        before = dict(orders)
        for k in vectors:
            found = best(k, vectors, orders, weights)
            if spread(vectors, {**orders, k: found}, weights) < spread(vectors, orders, weights) - 1e-12:
                orders[k] = found
        if orders == before:
            break
    return orders


class Matching(Rule):
    """What fedma and pfnm share; ``labels`` are those of each client."""

    def __init__(self, labels, num_classes, *, iterations=20, by_samples=False):
        self.counts = [torch.bincount(y, minlength=num_classes).double() for y in labels]
        self.iterations, self.by_samples, self.round, self.moved = iterations, by_samples, 0, []

    def loss(self, local, w, x, y):
        z = torch.tanh(torch.tanh(x @ w["V1"].T + w["a1"]) @ w["W1"].T + w["b1"])
        return cross_entropy(logits(w, z, clsnorm=local.spec.clsnorm), y)

    def merge(self, weights, trained, sizes):
        self.round += 1
        clients = sorted(trained, key=lambda k: (-sizes[k], k))
        models = {k: dict(trained[k]) for k in clients}
        hidden = {k: float(sizes[k]) if self.by_samples else 1.0 for k in clients}
        head = {k: torch.full_like(self.counts[k], sizes[k]) if self.by_samples else self.counts[k] for k in clients}
        total = sum(head.values())
        if not self.by_samples:
            head = {k: torch.where(total > 0, c / total.clamp(min=1), 1 / len(clients)) for k, c in head.items()}
        for layer in self.layers():
            pairs = {k: self.vector(models[k], layer, hidden[k], head[k]) for k in clients}
            vectors, counting = ({k: pair[part] for k, pair in pairs.items()} for part in (0, 1))
            orders = match(vectors, counting, self.iterations)
            self.moved += [order != tuple(range(len(order))) for order in orders.values()]
            models = {k: permuted(models[k], layer, list(orders[k])) for k in clients}
        made = {}
        for name in weights:
            is_head = PLACES[name] == 2
            rows = {k: head[k] if name == "b2" else head[k][:, None] for k in clients} if is_head else hidden
            made[name] = mean_of([models[k][name] for k in clients], [rows[k] for k in clients])
        return made


def permuted(w, layer, order):
    """Neurons of hidden layer 0 or 1 in another order: their rows, biases, and the columns that read them."""
    own, bias, reader = (("V1", "a1", "W1"), ("W1", "b1", "W2"))[layer]
    return {**w, own: w[own][order], bias: w[bias][order], reader: w[reader][:, order]}


class FedMA(Matching):
    @property
    def first(self):
        """The first layer that trains in the round that is under way."""
        return self.round % 3

    def gradients(self, local, w, x, y):
        found = super().gradients(local, w, x, y)
        return {name: g for name, g in found.items() if PLACES[name] >= self.first}

    def layers(self):
        return {1: (0, 1), 2: (1,), 0: ()}[self.round % 3]

    def vector(self, w, layer, hidden, head):
        rows = torch.cat([w["V1"], w["a1"][:, None]], 1) if layer == 0 else torch.cat([w["W1"], w["b1"][:, None]], 1)
        return rows, torch.full((rows.shape[1],), hidden, dtype=rows.dtype)


class Pfnm(Matching):
    def layers(self):
        return 1, 0

    def vector(self, w, layer, hidden, head):
        if layer == 1:
            rows = torch.cat([w["b1"][:, None], w["W2"].T], 1)
            return rows, torch.cat([torch.tensor([hidden], dtype=rows.dtype), head])
        rows = torch.cat([w["V1"], w["a1"][:, None], w["W1"].T], 1)
        return rows, torch.full((rows.shape[1],), hidden, dtype=rows.dtype)
