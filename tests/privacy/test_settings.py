from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

import ccvr
from ccvr.core.errors import SecureAggregationError
from ccvr.privacy import layout
from ccvr.privacy.settings import MAX_SAMPLES_TOGETHER, Settings
from tests.privacy.sessions import KINDS, part


@given(st.integers(2, 5000), st.integers(1, 10**6), st.floats(1e-9, 1e9))
@examples(deadline=None)
def test_no_sum_of_all_clients_wraps(num_clients, max_samples, bound):
    if num_clients * max_samples > MAX_SAMPLES_TOGETHER:
        with pytest.raises(SecureAggregationError, match="do not fit into sums of 64 bits"):
            Settings(num_clients, max_samples, bound, num_neighbours=num_clients - 1)
        return
    found = Settings(num_clients, max_samples, bound, num_neighbours=num_clients - 1)
    for power, scale in enumerate((found.counts, found.totals, found.seconds)):
        largest = max_samples * Fraction(bound) ** power * Fraction(2) ** scale.bits  # one client's, exactly
        assert largest <= scale.limit
        assert num_clients * scale.limit < 2**63
        assert power == 0 or largest * num_clients > 2**60 or scale.most < 1  # and no bit is left unused


@pytest.mark.parametrize("kind", KINDS)
def test_clients_at_the_bound_do_not_wrap(kind):
    found = Settings(num_clients=3, max_samples=5, bound=2.0)
    z = torch.full((5, 2), -2.0)
    mine = ccvr.statistics_of(z, torch.zeros(5, dtype=torch.int64), 2, kind="full")
    if kind in ("pooled", "diagonal"):
        mine = mine.as_kind(kind)
    encoded = layout.to_vector(mine, found)
    assert encoded.clipped == 0
    total = layout.from_vector(3 * encoded.vector, mine, found, 3)
    torch.testing.assert_close(total.total, 3 * mine.total, rtol=1e-12, atol=0)
    torch.testing.assert_close(total.second, 3 * mine.second, rtol=1e-12, atol=0)


def test_sums_beyond_the_bound_are_clipped_and_counted():
    z = torch.tensor([[1.0, 9.0], [1.0, 9.0]])
    mine = ccvr.statistics_of(z, torch.tensor([0, 0]), 1, kind="pooled")
    encoded = layout.to_vector(mine, Settings(num_clients=2, max_samples=2, bound=4.0))
    assert encoded.clipped == 2  # Σ z is 18 > 8, Σ z² is 162 > 32, Σ z z' is 18
    total = layout.from_vector(encoded.vector, mine, Settings(num_clients=2, max_samples=2, bound=4.0), 1)
    assert total.total.tolist() == [[2.0, 8.0]]
    assert total.second.tolist() == [[2.0, 18.0], [18.0, 32.0]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_vector_is_as_long_as_its_layout_says(kind):
    mine = part(0, kind)
    assert len(layout.to_vector(mine, Settings(num_clients=2)).vector) == layout.length(mine)


def test_layouts_of_statistics_that_do_not_add_up_differ():
    others = [part(0), part(0, "full"), part(0, d=5), part(0, classes=4), part(0, "kernel")]
    assert len({layout.digest(each) for each in others}) == 5
    assert layout.digest(part(0)) == layout.digest(part(1))


def test_a_client_with_too_many_samples_or_of_several_is_refused():
    with pytest.raises(SecureAggregationError, match="has 12 samples, and max_samples is 11"):
        layout.to_vector(part(0), Settings(num_clients=2, max_samples=11))
    with pytest.raises(SecureAggregationError, match="several clients"):
        layout.to_vector(part(0) + part(1), Settings(num_clients=2))


@pytest.mark.parametrize("place", ["count", "clients", "withheld", "total", "second"])
@pytest.mark.parametrize("value", [2**63, 2**63 - 1, 2**64 - 1, 2**62 + 2**61])
def test_sums_that_cannot_be_are_refused(place, value):
    """Masks that do not cancel leave any number; -2^63 has no absolute value."""
    found, mine = Settings(num_clients=3, max_samples=12), part(0)
    index = {"count": 0, "clients": 3, "withheld": 6, "total": 7, "second": 7 + 12}[place]
    vector = 3 * layout.to_vector(mine, found).vector
    vector[index] = value
    if place in ("total", "second") and value == 2**64 - 1:
        layout.from_vector(vector, mine, found, 3)  # -1 is a number like others
        return
    with pytest.raises(SecureAggregationError, match="masks do not cancel"):
        layout.from_vector(vector, mine, found, 3)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"num_clients": 1}, "num_clients is 1"),
        ({"num_clients": True}, "num_clients is True"),
        ({"num_clients": 10, "threshold": 5}, "threshold is 5 of 10 clients"),
        ({"num_clients": 10, "threshold": 11}, "threshold is 11"),
        ({"num_clients": 10, "bound": float("nan")}, "bound is nan"),
        ({"num_clients": 10, "bound": float("inf")}, "bound is inf"),
        ({"num_clients": 10, "bound": "4"}, "bound is '4'"),
        ({"num_clients": 10, "max_samples": 0}, "max_samples is 0"),
        ({"num_clients": 10, "max_samples": 10**9}, "do not fit into sums of 64 bits"),
        ({"num_clients": 40, "num_neighbours": 7}, "num_neighbours is 7"),
        ({"num_clients": 40, "num_neighbours": 38}, "num_neighbours is 38"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(fields, said):
    with pytest.raises(SecureAggregationError, match=said) as error:
        Settings(**fields)
    assert "\n" not in str(error.value)


def test_settings_that_differ_have_other_digests():
    variants = [{}, {"bound": 2.0}, {"max_samples": 7}, {"threshold": 9}, {"num_neighbours": 9}]
    assert len({Settings(num_clients=10, **each).digest for each in variants}) == 5
    assert Settings(num_clients=10).digest == Settings(num_clients=10, threshold=7).digest


def test_vectors_add_up_modulo_two_to_the_64():
    found = Settings(num_clients=2)
    mine, other = (layout.to_vector(part(seed), found).vector for seed in (0, 1))
    mask = np.random.default_rng(0).integers(0, 2**64, len(mine), dtype=np.uint64)
    assert np.array_equal((mine + mask) + (other - mask), mine + other)
