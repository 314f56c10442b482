"""Second, plain implementations of local losses, on dictionaries of tensors; the order of the batches alone is shared.

A rule is a function of the weights w, a batch (x, y), the weights as received, the client's label counts n, and the
sum N of the counts that the server had before the round; ``seen`` says whether n is part of N.
"""

import numpy as np
import torch

TAU, ALPHA, BETA = 0.8, 0.3, 0.6


def features(w, x):
    return torch.tanh(x @ w["W1"].T + w["b1"])


def scores(w, z):
    return z @ w["W2"].T + w["b2"]


def nats(s, y):
    """−log softmax(s)_y of each sample."""
    return torch.stack([torch.logsumexp(row, 0) - row[label] for row, label in zip(s, y, strict=True)])


def fedavg(w, x, y, **_):
    return nats(scores(w, features(w, x)), y).mean()


def fedir(w, x, y, *, n, N, seen, **_):
    p = N if seen else [max(a, b) for a, b in zip(N, n, strict=True)]
    weight = torch.tensor([(p[c] / sum(p)) / (n[c] / sum(n)) for c in y.tolist()], dtype=torch.float64)
    return (weight * nats(scores(w, features(w, x)), y)).sum() / weight.sum()


def fedlc(w, x, y, *, n, **_):
    """−log e^{s_y − tau n_y^(−1/4)} / Σ e^{s_c − tau n_c^(−1/4)}, the sum over the classes that the client has."""
    has = [c for c in range(len(n)) if n[c]]
    e = {c: (scores(w, features(w, x))[:, c] - TAU * n[c] ** -0.25).exp() for c in has}
    return -torch.stack([(e[c][i] / sum(e[k][i] for k in has)).log() for i, c in enumerate(y.tolist())]).mean()


def fedrs(w, x, y, *, n, **_):
    z = features(w, x)
    rows = [w["W2"][c] * (1 if n[c] else ALPHA) for c in range(len(n))]
    biases = [w["b2"][c] * (1 if n[c] else ALPHA) for c in range(len(n))]
    return nats(z @ torch.stack(rows).T + torch.stack(biases), y).mean()


def fedntd(w, x, y, *, received, **_):
    ours, theirs = (scores(each, features(each, x)) / TAU for each in (w, received))
    kept = 0
    for i, label in enumerate(y.tolist()):
        others = [c for c in range(ours.shape[1]) if c != label]
        q, p = (each[i, others].exp() / each[i, others].exp().sum() for each in (ours, theirs))
        kept = kept + (p * (p / q).log()).sum() / len(y)
    return fedavg(w, x, y) + BETA * TAU**2 * kept


def feddecorr(w, x, y, **_):
    z = features(w, x)
    if len(z) == 1:
        return fedavg(w, x, y)
    d, mean = z.shape[1], z.mean(0)
    cov = sum(torch.outer(row - mean, row - mean) for row in z) / len(z)
    sd = (cov.diagonal() + 1e-8).sqrt()
    return fedavg(w, x, y) + BETA / d**2 * sum((cov[i, j] / (sd[i] * sd[j])) ** 2 for i in range(d) for j in range(d))


def train_locally(received, batches, rule, spec, *, frozen, **about):
    w = {name: value.clone().requires_grad_(name not in frozen) for name, value in received.items()}
    live = [name for name in w if name not in frozen]
    velocity = {name: torch.zeros_like(w[name]) for name in live}
    for x, y in batches:
        gradients = torch.autograd.grad(rule(w, x, y, received=received, **about), [w[name] for name in live])
        with torch.no_grad():
            for name, gradient in zip(live, gradients, strict=True):
                velocity[name] = spec.momentum * velocity[name] + gradient + spec.weight_decay * w[name]
                w[name] -= spec.lr * velocity[name]
    return {name: value.detach() for name, value in w.items()}


def federate(start, labels, batches_of, cohorts, rule, spec, *, frozen=(), server_momentum=0.0):
    """Yield the global weights after each round. ``labels`` are the clients' own, in lists."""
    weights, velocity = start, {name: torch.zeros_like(value) for name, value in start.items()}
    num_classes = len(start["W2"])
    counts = [np.bincount(own, minlength=num_classes).tolist() for own in labels]
    seen: set[int] = set()
    for number, cohort in enumerate(cohorts, 1):
        known = [sum(counts[k][c] for k in seen) for c in range(num_classes)]
        trained = {
            k: train_locally(
                weights, batches_of(k, number), rule, spec, frozen=frozen, n=counts[k], N=known, seen=k in seen
            )
            for k in cohort
        }
        seen |= set(cohort)
        total = sum(len(labels[k]) for k in cohort)
        mean = {name: sum(len(labels[k]) / total * trained[k][name] for k in cohort) for name in weights}
        velocity = {name: server_momentum * velocity[name] + weights[name] - mean[name] for name in weights}
        weights = {name: weights[name] - velocity[name] for name in weights}
        yield weights
