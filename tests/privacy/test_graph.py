import math

import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components

from ccvr.privacy.graph import SMALL, Neighbourhoods, choose_neighbourhoods, circle_of, neighbourhood_of
from ccvr.privacy.settings import Settings


@pytest.mark.parametrize(("num_clients", "size"), [(2, 2), (7, 3), (7, 7), (7, 9), (50, 11)])
def test_neighbours_are_mutual_and_as_many_as_asked_for(num_clients, size):
    clients = range(3, 3 + num_clients)
    circle = circle_of(clients, b"seed")
    around = {client: neighbourhood_of(circle, place, size) for place, client in enumerate(circle)}
    assert set(around) == set(clients)
    for client, neighbours in around.items():
        assert neighbours == tuple(sorted(set(neighbours)))
        assert len(neighbours) == min(size, num_clients)
        assert client in neighbours
        assert all(client in around[each] for each in neighbours)


def test_the_circle_is_random_and_the_same_everywhere():
    circles = {circle_of(range(100), bytes([seed])) for seed in range(20)}
    assert len(circles) == 20
    assert circle_of(range(5), b"") == (1, 2, 0, 3, 4)


def test_small_federations_are_complete():
    for num_clients in range(2, SMALL + 1):
        assert Settings(num_clients).neighbourhoods == Neighbourhoods(num_clients, 2 * num_clients // 3 + 1)


@pytest.mark.parametrize(
    ("num_clients", "threshold", "colluders", "found"),
    [
        (50, 40, 5, (33, 17)),
        (100, 80, 10, (43, 22)),
        (100, 67, 30, None),
        (1000, 850, 50, (49, 25)),
        (10_000, 8000, 1000, (89, 45)),
    ],
)
def test_the_parameters_that_the_page_states(num_clients, threshold, colluders, found):
    chosen = choose_neighbourhoods(num_clients, threshold, 0, colluders)
    assert chosen == Neighbourhoods(*(found or (num_clients, threshold)))


@pytest.mark.parametrize(("num_clients", "threshold", "colluders"), [(100, 80, 10), (300, 200, 30), (1000, 850, 50)])
def test_chosen_graphs_hold_what_they_promise(num_clients, threshold, colluders):
    """Drawn many times: no neighbourhood of too many colluders or too few survivors; honest survivors are connected."""
    rng, chosen = np.random.default_rng(0), choose_neighbourhoods(num_clients, threshold, 0, colluders)
    for _ in range(20):
        circle = circle_of(range(num_clients), rng.bytes(16))
        drawn = rng.permutation(num_clients)
        gone, bad = set(drawn[threshold:].tolist()), set(drawn[:colluders].tolist())
        edges = np.zeros((num_clients, num_clients), bool)
        for place, client in enumerate(circle):
            around = neighbourhood_of(circle, place, chosen.size)
            assert len(bad.intersection(around)) < chosen.threshold <= len(set(around) - gone)
            edges[client, list(around)] = True
        honest = drawn[colluders:threshold]
        assert connected_components(edges[np.ix_(honest, honest)])[0] == 1


def test_the_bounds_are_those_of_counting():
    """The tail of colluders by its formula in whole numbers."""
    chosen = choose_neighbourhoods(100, 80, 0, 10)
    k, t = chosen.num_neighbours, chosen.threshold
    tail = sum(math.comb(20, i) * math.comb(79, k - i) for i in range(k + 2 - t, 21)) / math.comb(99, k)
    row = 100 * math.comb(30, k // 2) / math.comb(100, k // 2)
    assert 100 * tail < 2**-20
    assert row < 2**-40 < 100 * math.comb(30, k // 2 - 1) / math.comb(100, k // 2 - 1)
