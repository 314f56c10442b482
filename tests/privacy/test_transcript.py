"""What the server holds says nothing of a single client."""

import numpy as np
import pytest
import torch
from scipy.stats import chi2_contingency, chisquare, ks_2samp

import ccvr
from ccvr.privacy.layout import to_vector
from ccvr.privacy.messages import Phase
from ccvr.privacy.primitives import add_mask
from ccvr.privacy.session import masking_pair, sign
from ccvr.privacy.unmasking import Unmasking
from tests.privacy.sessions import KINDS, Session, part, settings

SMALLEST_P = 1e-4
"""All draws have seeds, so a test that passes goes on passing."""
NUM_CLIENTS = 6


def histogram(vectors) -> np.ndarray:
    return np.bincount(np.concatenate([np.asarray(v, "<u8") for v in vectors]).view(np.uint8), minlength=256)


@pytest.fixture(scope="module")
def session():
    found = settings(NUM_CLIENTS, threshold=4)
    return Session(found, [part(index, d=40, n=30) for index in range(NUM_CLIENTS)], seed=3).play({Phase.SUMS: [5]})


def known_to_the_server(session: Session, index: int) -> np.ndarray:
    """A client's masked vector without the masks whose secrets the server opened: its own, and that with client 5."""
    server, vector = session.server, session.masked(index).copy()
    unmasking = Unmasking(server._session, server._shares, frozenset(server._masked), server._given)
    add_mask(vector, server._session.own_mask_key(unmasking._secret(index)), sign=-1)
    pair = masking_pair(unmasking._secret(5), server._session.identifier)
    add_mask(vector, server._session.mask_key(pair, 5, index), sign=-sign(index, 5))
    return vector


def test_masked_vectors_are_uniform_bytes(session):
    assert chisquare(histogram(session.masked(index) for index in range(5))).pvalue > SMALLEST_P


def test_statistics_that_are_not_masked_fail_that_test(session):
    plain = [to_vector(each, session.settings).vector for each in session.parts]
    assert chisquare(histogram(plain)).pvalue < 1e-100


def test_what_the_server_opened_leaves_every_vector_uniform(session):
    """Own masks and those of the client that dropped out are off; masks between clients that stayed are not."""
    for index in range(5):
        left = known_to_the_server(session, index)
        assert chisquare(histogram([left])).pvalue > SMALLEST_P


def test_only_all_vectors_together_are_the_sum(session):
    """The sum of all but one stays masked, and that of all is exactly the clients' integers."""
    known = [known_to_the_server(session, index) for index in range(5)]
    plain = [to_vector(each, session.settings).vector for each in session.parts[:5]]
    assert np.array_equal(np.sum(known, 0, dtype=np.uint64), np.sum(plain, 0, dtype=np.uint64))
    assert chisquare(histogram([np.sum(known[1:], 0, dtype=np.uint64)])).pvalue > SMALLEST_P


@pytest.mark.parametrize("kind", KINDS)
def test_no_message_holds_a_clients_numbers(kind):
    session = Session(settings(4), [part(index, kind, d=6, n=40) for index in range(4)]).play()
    sent = b"".join([*session.answered.values(), *session.asked.values()])
    opened = b"".join(session.masked(index).tobytes() for index in range(4))
    for each in session.parts:
        vector = to_vector(each, session.settings).vector
        numbers = {int(v).to_bytes(8, "little") for v in vector if 2**24 < v < 2**64 - 2**24}
        sums = torch.cat([each.total.flatten(), each.second.flatten(), each.mean.flatten()])
        floats = {value.tobytes() for value in sums.numpy() if value}
        assert len(numbers) > 10
        assert not any(number in sent or number in opened for number in numbers | floats)


def masked_vectors(parts, seeds) -> list[np.ndarray]:
    found = settings(NUM_CLIENTS, threshold=4)
    sessions = [Session(found, parts, seed).play({Phase.SUMS: [5]}) for seed in seeds]
    return [session.masked(index) for session in sessions for index in range(5)]


def test_two_inputs_give_transcripts_that_no_test_tells_apart():
    much = [part(k, d=40, n=900, scale=20) for k in range(NUM_CLIENTS)]
    nothing = [ccvr.ClassStatistics.zeros(3, 40, kind="pooled", source=much[0].source)] * NUM_CLIENTS
    first, second = masked_vectors(nothing, range(4)), masked_vectors(much, range(4, 8))
    assert chi2_contingency([histogram(first), histogram(second)]).pvalue > SMALLEST_P
    highs = [(np.concatenate(each) >> np.uint64(11)).astype(np.float64) for each in (first, second)]
    assert ks_2samp(*highs).pvalue > SMALLEST_P
    correlations = [np.corrcoef((v >> np.uint64(11)).astype(float), plain_of(much[0]))[0, 1] for v in first + second]
    assert max(map(abs, correlations)) < 5 / len(first[0]) ** 0.5
    lengths = [{len(v) for v in each} for each in (first, second)]
    assert lengths[0] == lengths[1]


def plain_of(statistics) -> np.ndarray:
    return to_vector(statistics, settings(NUM_CLIENTS)).vector.view(np.int64).astype(float)


def test_the_same_statistics_never_give_the_same_bytes_twice():
    sessions = [Session(settings(3), [part(index) for index in range(3)], seed).play() for seed in (0, 1)]
    for key in sessions[0].answered:
        assert sessions[0].answered[key][46:] != sessions[1].answered[key][46:]


def test_without_a_test_at_work_the_system_gives_the_secrets():
    clients = [ccvr.secure.Client(settings(3), 0, part(0)) for _ in range(2)]
    assert len({client._own_seed for client in clients} | {client._key_seed for client in clients}) == 4
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    first = ccvr.secure.Client(settings(3), 0, part(0))
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    assert first._own_seed != ccvr.secure.Client(settings(3), 0, part(0))._own_seed
