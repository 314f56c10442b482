"""Plain rules of algorithms that keep clients from drifting apart."""

from tests.training.plain import Rule


class FedProx(Rule):
    def __init__(self, mu):
        self.mu = mu

    def loss(self, local, w, x, y):
        distance = sum((w[name] - local.received[name]).pow(2).sum() for name in w)
        return super().loss(local, w, x, y) + self.mu / 2 * distance
