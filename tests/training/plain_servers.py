"""Plain server optimisers."""

from tests.training.plain import Server, zeros


class FedAvgM(Server):
    def __init__(self, momentum):
        self.momentum = momentum

    def begin(self, start):
        self.velocity = zeros(start)

    def step(self, weights, mean, trained, sizes):
        self.velocity = {n: self.momentum * self.velocity[n] + weights[n] - mean[n] for n in weights}
        return {n: weights[n] - self.velocity[n] for n in weights}
