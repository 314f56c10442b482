"""Plain rules of algorithms that act on features."""

from tests.algorithms.plain import Rule, features


def cosine(a, b):
    return (a * b).sum(1) / (a.pow(2).sum(1).sqrt() * b.pow(2).sum(1).sqrt())


class Moon(Rule):
    def __init__(self, mu, temperature):
        self.mu, self.temperature, self.previous = mu, temperature, {}

    def loss(self, local, w, x, y):
        z, previous = features(w, x), self.previous.get(local.client, local.received)
        near = (cosine(z, features(local.received, x)) / self.temperature).exp()
        far = (cosine(z, features(previous, x)) / self.temperature).exp()
        return super().loss(local, w, x, y) - self.mu * (near / (near + far)).log().mean()

    def finish(self, local, w):
        self.previous[local.client] = w
