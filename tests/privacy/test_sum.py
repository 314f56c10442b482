"""The opened sum is the plain sum of the clients that stayed."""

import doctest
import time

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

import ccvr
from ccvr.core.errors import SecureAggregationError
from ccvr.privacy import client as client_module
from ccvr.privacy import settings as settings_module
from ccvr.privacy.layout import to_vector
from ccvr.privacy.messages import Phase
from tests.privacy.sessions import KINDS, Session, part, settings


def assert_same(total: ccvr.ClassStatistics, plain: ccvr.ClassStatistics) -> None:
    """Counts exactly, sums to 1e-9 of the largest."""
    for name in ("count", "clients", "withheld"):
        assert torch.equal(getattr(total, name), getattr(plain, name)), name
    for name in ("total", "second"):
        mine, theirs = getattr(total, name), getattr(plain, name)
        assert mine.shape == theirs.shape
        assert (mine - theirs).abs().max() <= 1e-9 * theirs.abs().max(), name
    plain.require_alike(total)


def plain_sum(parts) -> ccvr.ClassStatistics:
    if len(parts) > 1:
        return ccvr.merge(parts)
    zeros = ccvr.ClassStatistics.zeros(parts[0].num_classes, parts[0].num_features, kind=parts[0].kind)
    return zeros + parts[0]


@st.composite
def sessions(draw):
    """A federation, and who vanishes in which phase: as many as may."""
    num_clients = draw(st.integers(2, 14))
    found = settings(num_clients, threshold=draw(st.integers(num_clients // 2 + 1, num_clients)))
    clients = draw(st.permutations(range(num_clients)))
    leaving = clients[: draw(st.integers(0, num_clients - found.threshold))]
    gone = {phase: [c for c in leaving if draw(st.sampled_from(Phase)) == phase] for phase in Phase}
    return found, draw(st.sampled_from(KINDS)), gone, draw(st.integers(0, 10**6))


@given(sessions())
@examples(deadline=None, max_examples=40)
def test_the_sum_is_the_plain_one_whoever_vanishes(drawn):
    found, kind, gone, seed = drawn
    parts = [part(seed + index, kind) for index in range(found.num_clients)]
    session = Session(found, parts, seed).play(gone)
    early = {client for phase in (Phase.KEYS, Phase.SHARES, Phase.SUMS) for client in gone[phase]}
    assert session.server.clients == sorted(set(range(found.num_clients)) - early)
    assert_same(session.server.total, plain_sum([parts[index] for index in session.server.clients]))


@pytest.mark.parametrize("phase", Phase)
def test_forty_clients_of_a_graph(phase):
    parts = [part(index) for index in range(40)]
    found = settings(40, num_neighbours=8, threshold=27)
    session = Session(found, parts).play({phase: [3, 17, 18]})
    assert_same(session.server.total, plain_sum([parts[index] for index in session.server.clients]))
    assert len(session.server.clients) == (40 if phase == Phase.UNMASKING else 37)


def test_a_thousand_clients():
    began = time.process_time()
    parts = [part(index, classes=2, d=2, n=4) for index in range(1000)]
    gone = {phase: range(int(phase), 1000, 100) for phase in Phase}
    session = Session(settings(1000, num_neighbours=6, max_colluders=0), parts).play(gone)
    assert len(session.server.clients) == 970
    assert_same(session.server.total, plain_sum([parts[index] for index in session.server.clients]))
    assert time.process_time() - began < 30


@pytest.mark.parametrize("phase", Phase)
def test_below_the_threshold_nothing_is_opened(phase):
    session = Session(settings(6), [part(index) for index in range(6)])
    with pytest.raises(SecureAggregationError, match=r"4 clients are left, and threshold is 5") as error:
        session.play({phase: [1, 4]})
    assert "\n" not in str(error.value)
    with pytest.raises(SecureAggregationError, match="not open yet"):
        _ = session.server.total


@pytest.mark.parametrize("phase", [Phase.KEYS, Phase.SHARES, Phase.SUMS, Phase.UNMASKING])
def test_late_answers_of_the_same_phase_still_count(phase):
    session = Session(settings(6), [part(index) for index in range(6)]).play(until=phase)
    session.exchange(gone=[1, 4])
    with pytest.raises(SecureAggregationError, match="4 clients are left"):
        session.advance()
    session.messages = {1: session.asked[phase, 1]}
    session.exchange()
    session.advance()
    session.play()
    assert_same(session.server.total, plain_sum([session.parts[index] for index in session.server.clients]))


def test_a_neighbourhood_that_vanished_is_named():
    parts = [part(index) for index in range(20)]
    session = Session(settings(20, num_neighbours=4, threshold=11), parts).play(until=Phase.UNMASKING)
    around = set(session.server._session.neighbourhood(7))
    with pytest.raises(SecureAggregationError, match=r"\d shares of client \d+ came that fit, and 3 are"):
        session.play({Phase.UNMASKING: around - {7}})


def test_calibrators_take_the_total():
    torch.manual_seed(0)
    z, y = torch.randn(300, 5).relu() + 1, torch.randint(3, (300,))
    z[:, :3] += 2 * torch.nn.functional.one_hot(y, 3)
    model = torch.nn.Sequential(torch.nn.Identity(), torch.nn.Linear(5, 3))
    parts = [ccvr.collect(model, [(z[k::6], y[k::6])], num_classes=3) for k in range(6)]
    session = Session(settings(6), parts).play({Phase.SUMS: [2]})
    secure, plain = session.server.total, ccvr.merge([each for k, each in enumerate(parts) if k != 2])
    scores = [ccvr.calibrate(model, total, method="lda")(z) for total in (secure, plain)]
    torch.testing.assert_close(*scores, rtol=1e-5, atol=1e-5)
    read = ccvr.ClassStatistics.from_bytes(secure.to_bytes())
    assert torch.equal(read.count, plain.count)
    assert torch.equal(read.clients, plain.clients)


def test_withheld_classes_stay_withheld():
    z, y = torch.randn(20, 4), torch.tensor([0] * 17 + [1] * 3)
    parts = [ccvr.statistics_of(z + k, y, 2, min_count=8) for k in range(3)]
    assert not to_vector(parts[0], settings(3)).vector.reshape(-1)[1]
    total = Session(settings(3), parts).play().server.total
    assert total.count.tolist() == [51, 0]
    assert int(total.withheld) == 9
    assert not total.second[1].any()


def test_one_client_of_a_class_leaves_no_scatter():
    """Of one sample in all, or of one client's means, rounding of fixed point must not leave any either."""
    parts = [ccvr.statistics_of(torch.randn(1, 4), torch.tensor([k]), 3, kind="full") for k in range(3)]
    total = Session(settings(3), parts).play().server.total
    assert not any(total.scatter(label).any() for label in range(3))


@pytest.mark.parametrize("module", [client_module, settings_module])
def test_the_examples(module):
    found = doctest.testmod(module)
    assert (found.failed, found.attempted > 0) == (0, True)
