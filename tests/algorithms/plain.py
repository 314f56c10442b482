"""A second, plain implementation of federated learning, on dictionaries of tensors.

It shares with the product only the order of the batches. Everything else is written from the formulas. ``Rule`` is
FedAvg; the rule of another algorithm derives from it and overrides what the algorithm does differently. ``Server`` is
no server optimiser; those derive from it. Rules stand in files by topic (``plain_drift.py``, …).
"""

from dataclasses import dataclass

import torch

from ccvr.algorithms.spec import TrainingSpec

Weights = dict[str, torch.Tensor]
"""W1, b1: the features. W2, b2: the head; b2 is missing under clsnorm."""


def features(w, x):
    return torch.tanh(x @ w["W1"].T + w["b1"])


def logits(w, z, *, clsnorm=False):
    if clsnorm:
        return z @ (w["W2"] / w["W2"].pow(2).sum(1, keepdim=True).sqrt()).T
    return z @ w["W2"].T + w["b2"]


def cross_entropy(scores, y):
    return -(scores - scores.exp().sum(1, keepdim=True).log())[torch.arange(len(y)), y].mean()


def zeros(w):
    return {name: torch.zeros_like(value) for name, value in w.items()}


def gradients_of(function, w):
    """The gradients of ``function(weights)`` at ``w``, by name."""
    at = {name: value.detach().clone().requires_grad_() for name, value in w.items()}
    found = torch.autograd.grad(function(at), list(at.values()))
    return dict(zip(at, found, strict=True))


@dataclass
class Local:
    """One client's part of one round."""

    client: int
    round: int
    received: Weights
    spec: TrainingSpec
    epoch: int = 0
    num_steps: int = 0


class Rule:
    """FedAvg. One object is for one run: what clients and server remember, it keeps in attributes."""

    def begin(self, start, num_clients):
        """Before the first round."""

    def receive(self, weights, client):
        """The weights with which a client begins a round."""
        return weights

    def loss(self, local, w, x, y):
        """The loss of a batch."""
        return cross_entropy(logits(w, features(w, x), clsnorm=local.spec.clsnorm), y)

    def gradients(self, local, w, x, y):
        """What the optimiser of a client gets for a batch, by name; without clsprox and weight decay."""
        return gradients_of(lambda at: self.loss(local, at, x, y), w)

    def finish(self, local, w):
        """After a client's last step."""

    def merge(self, weights, trained, sizes):
        """The new global weights, from those of the round's clients (by id) and the sizes of all clients."""
        total = sum(sizes[k] for k in trained)
        return {name: sum(sizes[k] / total * trained[k][name] for k in trained) for name in weights}


class Server:
    """No server optimiser: the average is the new model."""

    def begin(self, start):
        """Before the first round."""

    def step(self, weights, mean, trained, sizes):
        """The new global weights, from what the clients' algorithm made of the round's weights."""
        return mean


def train_locally(local, epochs, rule):
    """SGD with momentum and weight decay; clsprox pulls the head towards the received one."""
    spec, w, velocity = local.spec, local.received, zeros(local.received)
    for local.epoch, batches in enumerate(epochs):
        for x, y in batches:
            gradients = rule.gradients(local, w, x, y)
            for name in gradients:
                pull = spec.clsprox * (w[name] - local.received[name]) if name in ("W2", "b2") else 0
                velocity[name] = spec.momentum * velocity[name] + gradients[name] + pull + spec.weight_decay * w[name]
            w = {name: w[name] - spec.lr * velocity[name] if name in gradients else w[name] for name in w}
            local.num_steps += 1
    rule.finish(local, w)
    return w


def federate(start, sizes, epochs_of, cohorts, spec, rule=None, server=None):
    """Yield the global weights after each round; ``epochs_of(client, round)`` gives the batches of each local epoch."""
    weights, rule, server = start, rule or Rule(), server or Server()
    rule.begin(start, len(sizes))
    server.begin(start)
    for number, cohort in enumerate(cohorts, 1):
        trained = {}
        for client in map(int, cohort):
            local = Local(client, number, rule.receive(weights, client), spec)
            trained[client] = train_locally(local, epochs_of(client, number), rule)
        weights = server.step(weights, rule.merge(weights, trained, sizes), trained, sizes)
        yield weights
