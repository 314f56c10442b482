"""The paper's numbers as figures of single runs need them: CIFAR-10, mean of three seeds, by alpha."""

from ccvr.report.published import published

ALPHAS = (0.5, 0.1, 0.05)
MODEL, NUM_CLIENTS = "simple-cnn", 10
"""What the numbers are of, but for the sweep over clients."""
ALGORITHMS = ("fedavg", "fedprox", "moon")


def _by_alpha(table: str, algorithm: str, head: str) -> tuple[float, ...]:
    return tuple(published(table)[f"cifar10-a{alpha}-{algorithm}", head].mean for alpha in ALPHAS)


def _by_clients(algorithm: str, clients: int) -> tuple[float, ...]:
    cell = f"cifar10-a0.1-{algorithm}" + (f"-n{clients}" if clients != 10 else "")
    return tuple(published("table4")[cell, head].mean for head in ("uncalibrated", "ccvr"))


BEFORE = {algorithm: _by_alpha("table3", algorithm, "uncalibrated") for algorithm in ALGORITHMS}
"""Algorithm → accuracy without calibration, by alpha."""

VIRTUAL = {
    algorithm: {number: _by_alpha("table3", algorithm, f"ccvr-m{number}") for number in (50, 100, 500, 1000, 2000)}
    for algorithm in ALGORITHMS
}
"""Algorithm → virtual features per class → accuracy of CCVR, by alpha."""

CLIENTS = {name: {number: _by_clients(name, number) for number in (10, 50, 100)} for name in ALGORITHMS}
"""Algorithm → number of clients → accuracy before and after CCVR, alpha 0.1."""

REAL = {"100": "oracle-partial-100", "1000": "oracle-partial-1000", "all": "oracle"}
AMOUNTS = {
    algorithm: {amount: _by_alpha("table5", algorithm, head) for amount, head in REAL.items()}
    for algorithm in ("fedavg", "fedprox")
}
"""Algorithm → real samples per class → accuracy of calibration with them, by alpha."""


def column(data: object, alpha: object) -> int | None:
    """Where the tables have a run's data set and alpha; None where the paper has no such numbers."""
    return ALPHAS.index(alpha) if data == "cifar10" and alpha in ALPHAS else None
