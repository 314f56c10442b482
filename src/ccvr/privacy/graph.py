"""Who shares masks with whom: everybody with everybody, or a random graph of few neighbours (Bell et al. 2020).

The clients stand in a circle in an order that nobody chose, and a client's neighbours are the k/2 before and the k/2
after it. Honest clients that remain are connected unless k/2 clients in a row are missing or colluding.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import exp, inf, lgamma, log

import numpy as np

from ccvr.core.errors import SecureAggregationError

SMALL = 32
"""Clients of a federation in which everybody is a neighbour unless the caller says otherwise."""
PRIVACY, SUCCESS = 40 * log(2), 20 * log(2)
"""A graph is bad for privacy with a probability below 2^-40, and for success below 2^-20."""


@dataclass(frozen=True)
class Neighbourhoods:
    """``size`` clients share the secrets of one of them, itself included; any ``threshold`` of these open a secret."""

    size: int
    threshold: int

    @property
    def num_neighbours(self) -> int:
        return self.size - 1


@lru_cache(maxsize=64)
def choose_neighbourhoods(num_clients: int, threshold: int, num_neighbours: int, colluders: int) -> Neighbourhoods:
    """The neighbourhoods of a federation that opens sums of at least ``threshold`` clients.

    Of a chosen graph, with D = num_clients - threshold clients that drop out and G colluders, at random places:
    no neighbourhood has as many colluders as open a secret and no k/2 clients in a row drop out or collude, but for a
    probability of 2^-40; in every neighbourhood enough clients remain, but for 2^-20.

    Raises:
        SecureAggregationError: a number of neighbours that is odd or too large for the threshold.
    """
    everybody = Neighbourhoods(num_clients, threshold)
    if num_neighbours:
        if num_neighbours == num_clients - 1:
            return everybody
        if num_neighbours % 2 or num_neighbours + 1 > threshold:
            raise SecureAggregationError(
                f"num_neighbours is {num_neighbours} of {num_clients} clients with threshold {threshold}. "
                f"Give an even number below {threshold}, {num_clients - 1} for all, or 0 to have it chosen."
            )
        return _smallest(num_clients, num_neighbours, colluders) or _majority(num_neighbours + 1)
    if num_clients <= SMALL:
        return everybody
    for k in range(2, threshold - 1, 2):
        if _row_of_bad(num_clients, num_clients - threshold + colluders, k // 2) > -PRIVACY:
            continue
        found = _smallest(num_clients, k, colluders)
        allowed = k + 1 - found.threshold if found else -1
        if found and log(num_clients) + _tail(num_clients - 1, num_clients - threshold, k, allowed + 1) <= -SUCCESS:
            return found
    return everybody


def _majority(size: int) -> Neighbourhoods:
    return Neighbourhoods(size, size // 2 + 1)


def _smallest(num_clients: int, k: int, colluders: int) -> Neighbourhoods | None:
    """The smallest majority of k + 1 that colluders do not reach; None where there is none."""
    for threshold in range((k + 1) // 2 + 1, k + 2):
        if log(num_clients) + _tail(num_clients - 1, colluders, k, threshold) <= -PRIVACY:
            return Neighbourhoods(k + 1, threshold)
    return None


def _tail(population: int, bad: int, drawn: int, least: int) -> float:
    """Log P[at least ``least`` bad ones among ``drawn`` of a population]."""
    terms = [
        _log_choose(bad, i) + _log_choose(population - bad, drawn - i) - _log_choose(population, drawn)
        for i in range(max(least, 0), min(bad, drawn) + 1)
    ]
    most = max(terms, default=-inf)
    return most if most == -inf else most + log(sum(exp(term - most) for term in terms))


def _log_choose(n: int, k: int) -> float:
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1) if 0 <= k <= n else -inf


def _row_of_bad(num_clients: int, bad: int, length: int) -> float:
    """A bound of log P[``length`` clients in a row are bad]: the sum over where the row begins."""
    if bad < length:
        return -inf
    return log(num_clients) + _log_choose(bad, length) - _log_choose(num_clients, length)


def circle_of(clients: Sequence[int], seed: bytes) -> tuple[int, ...]:
    """The clients, in order of their index, rearranged by 8 bytes of SHAKE-256(seed) each: alike on every machine."""
    numbers = np.frombuffer(hashlib.shake_256(seed).digest(8 * len(clients)), ">u8")
    return tuple(clients[place] for place in np.argsort(numbers, kind="stable").tolist())


def neighbourhood_of(circle: Sequence[int], place: int, size: int) -> tuple[int, ...]:
    """The sorted neighbourhood of the client at a place of the circle; everybody where there are no more than that."""
    if size >= len(circle):
        return tuple(sorted(circle))
    reach = (size - 1) // 2
    return tuple(sorted(circle[(place + step) % len(circle)] for step in range(-reach, reach + 1)))
