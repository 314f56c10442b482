"""Orders of neurons in which the networks of several clients are most alike."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ccvr.core.arrays import IntArray

FloatArray = NDArray[np.float64]


def best_order(target: FloatArray, neurons: FloatArray) -> IntArray:
    """The order of neurons [n, d] that minimises Σ_i ‖target_i − neurons_order(i)‖², by the Hungarian algorithm.

    The squares are the same in every order, so it maximises Σ_i target_i · neurons_order(i).

    Example:
    >>> best_order(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[0.1, 0.9], [0.8, 0.3]]))
    array([1, 0])
    """
    from scipy.optimize import linear_sum_assignment  # here, because the import takes long

    _, order = linear_sum_assignment(target @ neurons.T, maximize=True)
    return np.asarray(order, dtype=np.int64)


def match(clients: Sequence[FloatArray], weights: Sequence[FloatArray], *, iterations: int) -> list[IntArray]:
    """An order of each client's neurons [n, d] that makes Σ_k Σ_i Σ_d w_kd (θ_id − neurons_k,order_k(i),d)² small.

    θ is the clients' mean by their ``weights`` w_k [d]. The first client keeps its order, and each next one is matched
    to the mean of those before it. Then each in turn is matched to the mean of all others, until no order changes, in
    at most ``iterations`` passes. Each step minimises the sum over one client's order, so it never grows.
    """
    orders = [np.arange(len(clients[0]))]
    total, mass = weights[0] * clients[0], weights[0]
    for neurons, weight in zip(clients[1:], weights[1:], strict=True):
        orders.append(best_order(_target(total, mass, weight), neurons))
        total, mass = total + weight * neurons[orders[-1]], mass + weight
    for _ in range(iterations):
        changed = False
        for k, (neurons, weight) in enumerate(zip(clients, weights, strict=True)):
            others = total - weight * neurons[orders[k]]
            order = best_order(_target(others, mass - weight, weight), neurons)
            changed = changed or bool((order != orders[k]).any())
            orders[k], total = order, others + weight * neurons[order]
        if not changed:
            break
    return orders


def _target(others: FloatArray, mass: FloatArray, weight: FloatArray) -> FloatArray:
    """What a client of this ``weight`` is matched to: the ``others``' weighted sum, of the weight ``mass``.

    A coordinate adds w m / (w + m) (others / m − neuron)² to the sum, because θ moves with the neuron.
    """
    together = weight + mass
    return others * np.divide(weight, together, out=np.zeros_like(together), where=together > 0)
