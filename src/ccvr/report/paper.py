"""Numbers that the paper states: Luo et al. 2021, appendix; accuracy in percent on CIFAR-10 (mean of three seeds)."""

ALPHAS = (0.5, 0.1, 0.05)

BEFORE = {
    "fedavg": (68.62, 58.55, 52.33),
    "fedprox": (69.07, 58.93, 53.00),
    "moon": (70.48, 57.36, 49.91),
}
"""Algorithm → accuracy without calibration, by alpha."""

VIRTUAL = {
    "fedavg": {
        50: (70.99, 61.07, 54.24),
        100: (71.03, 61.43, 54.48),
        500: (70.85, 62.29, 54.63),
        1000: (70.71, 62.59, 55.03),
        2000: (71.33, 62.68, 54.95),
    },
    "fedprox": {
        50: (70.72, 61.34, 54.78),
        100: (70.99, 61.89, 55.01),
        500: (70.94, 62.29, 55.54),
        1000: (71.16, 62.59, 55.55),
        2000: (70.81, 62.60, 55.79),
    },
    "moon": {
        50: (71.16, 61.36, 53.36),
        100: (71.29, 62.17, 54.09),
        500: (71.22, 62.10, 55.02),
        1000: (71.11, 62.79, 55.61),
        2000: (71.10, 62.22, 55.60),
    },
}
"""Algorithm → virtual features per class → accuracy of CCVR, by alpha ("different numbers of virtual features")."""

CLIENTS = {
    "fedavg": {10: (58.55, 62.68), 50: (57.94, 61.89), 100: (55.42, 59.19)},
    "fedprox": {10: (58.93, 62.60), 50: (58.49, 61.69), 100: (55.85, 59.04)},
    "moon": {10: (57.36, 62.22), 50: (58.51, 61.63), 100: (56.26, 59.49)},
}
"""Algorithm → number of clients → accuracy before and after CCVR, alpha 0.1 ("a varying number of clients")."""

AMOUNTS = {
    "fedavg": {"100": (72.06, 63.58, 55.65), "1000": (72.30, 64.55, 56.86), "all": (72.51, 64.70, 57.53)},
    "fedprox": {"100": (71.90, 63.21, 55.63), "1000": (72.09, 64.14, 56.85), "all": (72.26, 64.63, 57.33)},
}
"""Algorithm → real samples per class → accuracy of calibration with them, by alpha ("whole data and partial data")."""


def column(data: object, alpha: object) -> int | None:
    """Where the tables have a run's data set and alpha; None where the paper has no such numbers."""
    return ALPHAS.index(alpha) if data == "cifar10" and alpha in ALPHAS else None
