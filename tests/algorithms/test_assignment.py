"""Orders of neurons against trying every order."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccvr.algorithms.assignment import best_order, match


def spread(clients, weights, orders):
    """Σ_k Σ_i Σ_d w_kd (θ_id − v_k,order_k(i),d)²."""
    ordered = [neurons[list(order)] for neurons, order in zip(clients, orders, strict=True)]
    mass = np.maximum(sum(weights), 1e-300)
    mean = sum(w * v for w, v in zip(weights, ordered, strict=True)) / mass
    return sum((w * (mean - v) ** 2).sum() for w, v in zip(weights, ordered, strict=True))


def drawn(seed, number, width, dimension, *, absent=0.3):
    """Neurons of some clients, and weights of which some are 0."""
    rng = np.random.default_rng(seed)
    clients = list(rng.standard_normal((number, width, dimension)))
    weights = rng.random((number, dimension)) * (rng.random((number, dimension)) >= absent)
    return clients, list(weights)


@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 4))
def test_the_best_order_is_the_best_of_all(seed, width, dimension):
    target, neurons = np.random.default_rng(seed).standard_normal((2, width, dimension))
    distances = {each: ((target - neurons[list(each)]) ** 2).sum() for each in permutations(range(width))}
    assert distances[tuple(best_order(target, neurons))] <= min(distances.values()) + 1e-12


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))
def test_no_client_has_a_better_order_among_the_others(seed, number, width, dimension):
    clients, weights = drawn(seed, number, width, dimension)
    orders = match(clients, weights, iterations=100)
    found = spread(clients, weights, orders)
    for k in range(number):
        assert sorted(orders[k]) == list(range(width))
        for other in permutations(range(width)):
            assert found <= spread(clients, weights, [*orders[:k], other, *orders[k + 1 :]]) + 1e-9


@given(st.integers(0, 10**6), st.integers(2, 5))
def test_more_passes_are_never_worse(seed, number):
    clients, weights = drawn(seed, number, 6, 3)
    sums = [spread(clients, weights, match(clients, weights, iterations=k)) for k in (1, 2, 5)]
    assert sums[0] >= sums[1] - 1e-9 >= sums[2] - 2e-9


def test_the_number_of_passes_is_bounded():
    differ = 0
    for seed in range(40):
        clients, weights = drawn(seed, 6, 8, 3)
        one, all_ = (match(clients, weights, iterations=k) for k in (1, 100))
        differ += any((a != b).any() for a, b in zip(one, all_, strict=True))
    assert differ > 10, "one pass is often not enough here, so it must have stopped"


@pytest.mark.parametrize("width", [1, 7, 64])
def test_copies_in_other_orders_are_put_into_the_first_one_s(width):
    rng = np.random.default_rng(0)
    neurons = rng.standard_normal((width, 20))
    copies = [neurons[rng.permutation(width)] for _ in range(4)]
    orders = match(copies, [np.ones(20)] * 4, iterations=20)
    assert all((copy[order] == copies[0]).all() for copy, order in zip(copies, orders, strict=True))


def test_neurons_that_are_alike_stay_where_they_are():
    clients = [np.ones((5, 3)), np.ones((5, 3)), np.zeros((5, 3))]
    assert all((order == np.arange(5)).all() for order in match(clients, [np.ones(3)] * 3, iterations=20))
