"""Plain server optimisers."""

import torch

from tests.algorithms.plain import Server, zeros


class FedAvgM(Server):
    def __init__(self, momentum):
        self.momentum = momentum

    def begin(self, start):
        self.velocity = zeros(start)

    def step(self, weights, mean, trained, sizes):
        self.velocity = {n: self.momentum * self.velocity[n] + weights[n] - mean[n] for n in weights}
        return {n: weights[n] - self.velocity[n] for n in weights}


class Adaptive(Server):
    def __init__(self, lr, beta1, tau, beta2=None):
        self.lr, self.beta1, self.tau, self.beta2 = lr, beta1, tau, beta2

    def begin(self, start):
        self.m, self.v = zeros(start), {n: torch.full_like(w, self.tau**2) for n, w in start.items()}

    def step(self, weights, mean, trained, sizes):
        d = {n: mean[n] - weights[n] for n in weights}
        self.m = {n: self.beta1 * self.m[n] + (1 - self.beta1) * d[n] for n in d}
        self.v = {n: self.square(self.v[n], d[n] * d[n]) for n in d}
        return {n: w + self.lr * self.m[n] / (self.v[n].sqrt() + self.tau) for n, w in weights.items()}


class FedAdagrad(Adaptive):
    def square(self, v, d2):
        return v + d2


class FedAdam(Adaptive):
    def square(self, v, d2):
        return self.beta2 * v + (1 - self.beta2) * d2


class FedYogi(Adaptive):
    def square(self, v, d2):
        return torch.where(v > d2, v - (1 - self.beta2) * d2, v + (1 - self.beta2) * d2)


class FedExp(Server):
    def __init__(self, eps):
        self.eps, self.rates = eps, []

    def step(self, weights, mean, trained, sizes):
        def squared(ends):
            return sum((ends[n] - w).pow(2).sum() for n, w in weights.items())

        total = sum(sizes[k] for k in trained)
        above = sum(sizes[k] / total * squared(trained[k]) for k in trained)
        self.rates.append(max(1.0, (above / (2 * (squared(mean) + self.eps))).item()))
        return {n: w + self.rates[-1] * (mean[n] - w) for n, w in weights.items()}
