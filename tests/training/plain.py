"""A second, plain implementation of the paper's four algorithms and two regularisers, on dictionaries of tensors.

It shares with the product only the order of the batches. Everything else is written from the formulas.
"""

import torch

MU, TEMPERATURE, SERVER_MOMENTUM = 0.7, 0.4, 0.3


def features(w, x):
    return torch.tanh(x @ w["W1"].T + w["b1"])


def logits(w, z, *, clsnorm):
    if clsnorm:
        return z @ (w["W2"] / w["W2"].pow(2).sum(1, keepdim=True).sqrt()).T
    return z @ w["W2"].T + w["b2"]


def cross_entropy(scores, y):
    return -(scores - scores.exp().sum(1, keepdim=True).log())[torch.arange(len(y)), y].mean()


def cosine(a, b):
    return (a * b).sum(1) / (a.pow(2).sum(1).sqrt() * b.pow(2).sum(1).sqrt())


def head_names(clsnorm):
    return ["W2"] if clsnorm else ["W2", "b2"]


def local_loss(w, x, y, *, received, previous, spec):
    z = features(w, x)
    loss = cross_entropy(logits(w, z, clsnorm=spec.clsnorm), y)
    if spec.algorithm_name == "fedprox":
        loss = loss + MU / 2 * sum((w[name] - received[name]).pow(2).sum() for name in w)
    if spec.clsprox:
        loss = loss + spec.clsprox / 2 * sum((w[n] - received[n]).pow(2).sum() for n in head_names(spec.clsnorm))
    if spec.algorithm_name == "moon":
        near = (cosine(z, features(received, x)) / TEMPERATURE).exp()
        far = (cosine(z, features(previous, x)) / TEMPERATURE).exp()
        loss = loss - MU * (near / (near + far)).log().mean()
    return loss


def train_locally(received, previous, batches, spec):
    w = {name: value.clone().requires_grad_() for name, value in received.items()}
    velocity = {name: torch.zeros_like(value) for name, value in received.items()}
    for x, y in batches:
        loss = local_loss(w, x, y, received=received, previous=previous, spec=spec)
        gradients = torch.autograd.grad(loss, list(w.values()))
        with torch.no_grad():
            for (name, value), gradient in zip(w.items(), gradients, strict=True):
                velocity[name] = spec.momentum * velocity[name] + gradient + spec.weight_decay * value
                value -= spec.lr * velocity[name]
    return {name: value.detach() for name, value in w.items()}


def federate(start, sizes, batches_of, cohorts, spec):
    """Yield the global weights after each round; ``batches_of(client, round)`` gives a client's batches of a round."""
    weights = start
    server_velocity = {name: torch.zeros_like(value) for name, value in start.items()}
    previous = {}
    for number, cohort in enumerate(cohorts, 1):
        locals_ = {}
        for client in cohort:
            batches = batches_of(client, number)
            locals_[client] = train_locally(weights, previous.get(client, weights), batches, spec)
        total = sum(sizes[client] for client in cohort)
        mean = {n: sum(sizes[k] / total * locals_[k][n] for k in cohort) for n in weights}
        previous |= locals_
        if "fedavgm" in (spec.algorithm_name, spec.server.partition(",")[0]):
            server_velocity = {n: SERVER_MOMENTUM * server_velocity[n] + weights[n] - mean[n] for n in weights}
            mean = {n: weights[n] - server_velocity[n] for n in weights}
        weights = mean
        yield weights
