"""Plain rules of algorithms that keep clients from drifting apart."""

from tests.algorithms.plain import Rule, zeros


class FedProx(Rule):
    def __init__(self, mu):
        self.mu = mu

    def loss(self, local, w, x, y):
        distance = sum((w[name] - local.received[name]).pow(2).sum() for name in w)
        return super().loss(local, w, x, y) + self.mu / 2 * distance


def step_weight(num_steps, spec, mu=0.0):
    """How far a constant gradient of 1 moves a weight, in units of lr: the sum of what each step's gradient does."""
    total = 0.0
    for pushed in range(num_steps):
        moved, velocity = 0.0, 0.0
        for step in range(num_steps):
            velocity = spec.momentum * velocity + (step == pushed) - mu * spec.lr * moved
            moved += velocity
        total += moved
    return total


def shares(trained, sizes, by_samples):
    total = sum(sizes[k] for k in trained)
    return {k: sizes[k] / total if by_samples else 1 / len(trained) for k in trained}


class Scaffold(Rule):
    def __init__(self, lr=1.0, by_samples=False):
        self.lr, self.by_samples, self.mine, self.changes = lr, by_samples, {}, {}

    def begin(self, start, num_clients):
        self.server, self.num_clients = zeros(start), num_clients

    def gradients(self, local, w, x, y):
        found, mine = super().gradients(local, w, x, y), self.mine.get(local.client, zeros(w))
        return {name: found[name] + self.server[name] - mine[name] for name in found}

    def finish(self, local, w):
        mine, scale = self.mine.get(local.client, zeros(w)), local.spec.lr * step_weight(local.num_steps, local.spec)
        new = {n: mine[n] - self.server[n] + (local.received[n] - w[n]) / scale for n in w}
        self.changes[local.client] = {n: new[n] - mine[n] for n in w}
        self.mine[local.client] = new

    def merge(self, weights, trained, sizes):
        p, part = shares(trained, sizes, self.by_samples), len(trained) / self.num_clients
        self.server = {n: c + part * sum(p[k] * self.changes[k][n] for k in trained) for n, c in self.server.items()}
        return {n: w + self.lr * sum(p[k] * (trained[k][n] - w) for k in trained) for n, w in weights.items()}


class FedNova(FedProx):
    HEAD = ("W2", "b2")

    def __init__(self, mu=0.0):
        super().__init__(mu)
        self.steps = {}

    def finish(self, local, w):
        pulls = {n: self.mu + (local.spec.clsprox if n in self.HEAD else 0.0) for n in w}
        self.steps[local.client] = {n: step_weight(local.num_steps, local.spec, pull) for n, pull in pulls.items()}

    def merge(self, weights, trained, sizes):
        p, a = shares(trained, sizes, True), self.steps
        effective = {n: sum(p[k] * a[k][n] for k in trained) for n in weights}
        mean = {n: sum(p[k] * (w - trained[k][n]) / a[k][n] for k in trained) for n, w in weights.items()}
        return {n: w - effective[n] * mean[n] for n, w in weights.items()}


class FedDyn(Rule):
    def __init__(self, alpha, clip=0.0, by_samples=False):
        self.alpha, self.clip, self.by_samples, self.mine, self.clipped = alpha, clip, by_samples, {}, 0

    def begin(self, start, num_clients):
        self.server, self.num_clients = zeros(start), num_clients

    def loss(self, local, w, x, y):
        mine = self.mine.get(local.client, zeros(w))
        linear = sum((mine[n] * w[n]).sum() for n in w)
        distance = sum((w[n] - local.received[n]).pow(2).sum() for n in w)
        return super().loss(local, w, x, y) - linear + self.alpha / 2 * distance

    def gradients(self, local, w, x, y):
        found = super().gradients(local, w, x, y)
        norm = sum(g.pow(2).sum() for g in found.values()).sqrt()
        if not self.clip or norm <= self.clip:
            return found
        self.clipped += 1
        # torch adds 1e-6 to the norm before it divides.
        return {n: g * self.clip / (norm + 1e-6) for n, g in found.items()}

    def finish(self, local, w):
        mine = self.mine.get(local.client, zeros(w))
        self.mine[local.client] = {n: mine[n] - self.alpha * (w[n] - local.received[n]) for n in w}

    def merge(self, weights, trained, sizes):
        p, part = shares(trained, sizes, self.by_samples), len(trained) / self.num_clients
        mean = {n: sum(p[k] * trained[k][n] for k in trained) for n in weights}
        self.server = {n: h - self.alpha * part * (mean[n] - weights[n]) for n, h in self.server.items()}
        return {n: mean[n] - self.server[n] / self.alpha for n in weights}


class FedSam(Rule):
    def __init__(self, rho):
        self.rho = rho

    def gradients(self, local, w, x, y):
        here = super().gradients(local, w, x, y)
        norm = sum(g.pow(2).sum() for g in here.values()).sqrt()
        return super().gradients(local, {n: w[n] + self.rho * here[n] / norm for n in w}, x, y)
