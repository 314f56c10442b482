"""Peers that do not follow the protocol are refused by name, and nothing is revealed."""

import numpy as np
import pytest

from ccvr import secure
from ccvr.core.errors import SecureAggregationError
from ccvr.privacy.dealing import OWN_SEED
from ccvr.privacy.messages import Header, Phase, PublicKeys, Roster, Shares, invitation, names_to_bytes, read
from ccvr.privacy.primitives import KeyPair
from tests.privacy.sessions import HEADER, Session, entropy, part, settings

LOW_ORDER = bytes(32), b"\1" + bytes(31)
"""Public keys that make everybody's agreement the same."""


def session_at(phase: Phase | None, num_clients: int = 5, **fields: object) -> Session:
    return Session(settings(num_clients, **fields), [part(index) for index in range(num_clients)]).play(until=phase)


def refused(receive, message: object, said: str) -> None:
    with pytest.raises(SecureAggregationError, match=said) as error:
        receive(message)
    assert "\n" not in str(error.value)


def from_server(session: Session, index: int, body: bytes) -> bytes:
    """A message as a server that lies would send it."""
    return session.server._channels[index].send(session.phase, body, to_server=False)


def from_client(session: Session, index: int, body: bytes) -> bytes:
    return session.server._channels[index].send(session.phase, body, to_server=True)


# --- a server that lies -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", [Phase.SUMS, Phase.UNMASKING])
@pytest.mark.parametrize(
    ("named", "said"),
    [
        ([0, 1, 2], r"3 clients are left, and threshold is 4. Nothing is opened"),
        ([], "0 clients are left"),
        ([1, 2, 3, 4], "the server says that client 0 is not there"),
    ],
)
def test_a_client_refuses_lists_that_are_too_short_or_leave_it_out(phase, named, said):
    session = session_at(phase)
    bodies = names_to_bytes(named, range(5)) + (bytes(Shares.SEALED * 4) if phase == Phase.SUMS else b"")
    refused(session.clients[0].answer, from_server(session, 0, bodies), said)
    session.play()  # nothing has changed: the right message is still answered
    assert session.server.clients == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("phase", [Phase.SUMS, Phase.UNMASKING])
def test_a_client_refuses_lists_that_leave_out_its_neighbours(phase):
    session = session_at(phase, 30, num_neighbours=6, threshold=16)
    around = session.server._session.neighbourhood(0)
    left = sorted(set(range(30)) - set(around[:5]) | {0})
    body = names_to_bytes(left, range(30))
    if phase == Phase.SUMS:
        body += bytes(Shares.SEALED * (len(set(left) & set(around)) - 1))
    refused(session.clients[0].answer, from_server(session, 0, body), "of those who share masks with client 0")


def test_a_client_gives_one_kind_of_shares_once():
    """Asked again with the opposite list, it gives nothing: one of both secrets of each client at most."""
    session = session_at(Phase.UNMASKING)
    session.exchange()
    opposite = names_to_bytes([0, 1, 2, 3], range(5))
    refused(session.clients[0].answer, from_server(session, 0, opposite), "client 0 has finished")
    assert session.clients[0]._held == {}


def test_the_two_kinds_are_of_those_who_are_there_and_of_those_who_are_not():
    session = session_at(Phase.UNMASKING)
    held = dict(session.clients[0]._held)
    asked = from_server(session, 0, names_to_bytes([0, 1, 2, 3], range(5)))
    answer = session.clients[0].answer(asked)
    body = session.server._channels[0].receive(Phase.UNMASKING, answer[HEADER:], to_server=True)
    expected = [shares[OWN_SEED] if peer < 4 else shares[16:] for peer, shares in sorted(held.items())]
    assert body == b"".join(expected)


def test_different_lists_of_keys_are_noticed():
    """The server gives client 0 a key of its own in place of client 4's: nobody's shares open."""
    session = session_at(Phase.SHARES)
    roster = dict(session.server._session.roster.keys)
    roster[4] = PublicKeys(KeyPair(bytes(31) + b"1").public, roster[4].masking)
    session.messages[0] = from_server(session, 0, Roster(roster).to_bytes())
    session.exchange()
    session.advance()
    for index in range(5):
        refused(session.clients[index].answer, session.messages[index], "shares of client . were altered, or")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda keys: keys.pop(0), "does not have the keys of client 0"),
        (lambda keys: keys.update({0: keys[1]}), "same public key twice"),
        (lambda keys: keys.update({9: PublicKeys(b"a" * 32, b"b" * 32)}), "a wrong size|one that there cannot be"),
        (lambda keys: [keys.pop(index) for index in (3, 4)], "3 clients are left, and threshold is 4"),
        (lambda keys: keys.update({0: keys.pop(0)}), "twice, or one that there cannot be"),  # another order
        (lambda keys: keys.update({0: PublicKeys(keys[0].sealing, b"c" * 32)}), "does not have the keys of client 0"),
    ],
)
def test_lists_of_keys_that_cannot_be_are_refused(change, said):
    session = session_at(Phase.SHARES)
    keys = dict(session.server._session.roster.keys)
    change(keys)
    refused(session.clients[0].answer, from_server(session, 0, Roster(keys).to_bytes()), said)


@pytest.mark.parametrize("public", LOW_ORDER)
def test_keys_of_low_order_are_refused_by_both_sides(public):
    session = session_at(Phase.SHARES)
    keys = dict(session.server._session.roster.keys)
    keys[1] = PublicKeys(public, keys[1].masking)
    message = from_server(session, 0, Roster(keys).to_bytes())
    refused(session.clients[0].answer, message, "not one of X25519")
    client = secure.Client(settings(3), 0, part(0))
    header = Header(Phase.KEYS, False, bytes(16), settings(3).digest, 0)
    refused(client.answer, invitation(header, public), "not one of X25519")


def test_a_second_session_under_the_same_keys_is_refused():
    session = session_at(Phase.SHARES)
    other = secure.Server(session.settings, session.parts[0])
    refused(session.clients[0].answer, other.start()[0], "client 0 is in another session. A client takes part once")
    session.play()
    refused(session.clients[0].answer, session.asked[Phase.KEYS, 0], "has finished")


@pytest.mark.parametrize("phase", Phase)
def test_replayed_and_swapped_messages_of_the_server_are_refused(phase):
    session = session_at(phase)
    refused(session.clients[0].answer, session.messages[1], "this is client 0, and a message .* is for client 1")
    session.exchange()
    refused(session.clients[0].answer, session.asked[phase, 0], "client 0 (awaits|has finished)")
    refused(session.clients[0].answer, session.answered[phase, 1], "came from client 1")


def test_shares_that_the_server_swaps_do_not_open():
    session = session_at(Phase.SUMS)
    body = session.server._channels[0].receive(Phase.SUMS, session.messages[0][HEADER:], to_server=False)
    size = Shares.SEALED
    swapped = body[:1] + body[1 + size : 1 + 2 * size] + body[1 : 1 + size] + body[1 + 2 * size :]
    refused(session.clients[0].answer, from_server(session, 0, swapped), "shares of client 1 were altered")


# --- clients that lie -------------------------------------------------------------------------------------------------


def test_keys_of_another_client_or_of_low_order_are_refused():
    session = session_at(Phase.KEYS)
    session.exchange(gone=[1, 2])
    thief = secure.Client(session.settings, 1, session.parts[1])
    thief._key_seed = session.clients[0]._key_seed
    refused(session.server.receive, thief.answer(session.messages[1]), "client 1 has a public key of another client")
    header, body = read(session.clients[2].answer(session.messages[2]))
    refused(session.server.receive, header.to_bytes() + LOW_ORDER[0] + body[32:], "not one of X25519")
    assert sorted(session.server._keys) == [0, 3, 4]


@pytest.mark.parametrize("phase", Phase)
def test_answers_that_come_twice_or_under_another_name_are_refused(phase):
    session = session_at(phase)
    session.exchange(gone=[4])
    refused(session.server.receive, session.answered[phase, 0], f"client 0 answered already \\({phase}\\)")
    header, body = read(session.answered[phase, 0])
    forged = Header(header.phase, True, header.session, header.settings, 4).to_bytes() + body
    refused(session.server.receive, forged, "a message .* that names client 4 was altered, or another sent it")
    unknown = Header(header.phase, True, header.session, header.settings, 77).to_bytes() + body
    refused(session.server.receive, unknown, "client 77 is not awaited")


def test_answers_that_come_too_late_are_refused():
    session = session_at(Phase.SUMS)
    session.exchange(gone=[4])
    session.advance()
    late = session.clients[4].answer(session.asked[Phase.SUMS, 4])
    refused(session.server.receive, late, "client 4 sent masked sums while unmasking is awaited. It is left out")
    session.play()
    assert session.server.clients == [0, 1, 2, 3]
    refused(session.server.receive, session.answered[Phase.UNMASKING, 0], "while .* is awaited")


def test_other_settings_and_other_statistics_are_refused_by_name():
    session = session_at(Phase.KEYS)
    other = secure.Client(settings(5, bound=65.0), 0, session.parts[0])
    refused(other.answer, session.messages[0], "the server has other settings")
    header = Header(Phase.KEYS, True, session.server._id, other.settings.digest, 0)
    refused(session.server.receive, header.to_bytes(), "client 0 has other settings")
    stranger = secure.Client(session.settings, 1, part(1, d=9))
    refused(session.server.receive, stranger.answer(session.messages[1]), "client 1 has statistics of another kind")


@pytest.mark.parametrize("cut", [-1, 0, 1])
@pytest.mark.parametrize("phase", [Phase.SHARES, Phase.SUMS, Phase.UNMASKING])
def test_bodies_of_a_wrong_size_are_refused(phase, cut):
    session = session_at(phase)
    body = session.server._channels[0].receive(
        phase, session.clients[0].answer(session.messages[0])[HEADER:], to_server=True
    )
    wrong = {-1: body[:-1], 0: b"", 1: body + b"\0"}[cut]
    refused(session.server.receive, from_client(session, 0, wrong), "wrong size")
    session.server.receive(from_client(session, 0, body))


def test_shares_that_do_not_fit_are_not_used():
    """One client gives wrong shares; four others' are enough."""
    session = session_at(Phase.UNMASKING)
    session.exchange(gone=[2])
    session.server.receive(from_client(session, 2, bytes(5 * 16)))
    session.advance()
    assert int(session.server.total.count.sum()) == 60
    session = session_at(Phase.UNMASKING, threshold=5)
    session.exchange(gone=[2])
    session.server.receive(from_client(session, 2, bytes(5 * 16)))
    with pytest.raises(SecureAggregationError, match="4 shares of client 0 came that fit, and 5 are needed"):
        session.advance()


def test_a_dealer_whose_shares_do_not_fit_its_secret_is_named():
    session = session_at(Phase.SHARES)
    session.clients[3]._own_seed, kept = b"x" * 16, session.clients[3]._own_seed
    wrong = session.clients[3].answer(session.messages[3])
    session.clients[3]._own_seed = kept
    body = session.server._channels[3].receive(Phase.SHARES, wrong[HEADER:], to_server=True)
    print_of_kept = session.server._session.seed_print(3, kept)
    session.exchange(gone=[3])
    session.server.receive(from_client(session, 3, print_of_kept + body[16:]))
    session.advance()
    with pytest.raises(SecureAggregationError, match=r"client 3 dealt shares that do not fit\. Begin again without it"):
        session.play()


def test_masks_that_do_not_cancel_are_seen():
    session = session_at(Phase.SUMS)
    session.clients[1]._vector = np.random.default_rng(0).integers(0, 2**64, 31, dtype=np.uint64)[
        : len(session.clients[1]._vector)
    ]
    with pytest.raises(SecureAggregationError, match="some masks do not cancel"):
        session.play()


@pytest.mark.parametrize("call", ["advance", "start"])
def test_calls_in_a_wrong_order_are_refused(call):
    server = secure.Server(settings(3), part(0))
    if call == "start":
        server.start()
    with pytest.raises(SecureAggregationError, match=r"has (not )?begun"):
        getattr(server, call)()


@pytest.mark.parametrize("index", [-1, 3, 1.0, True])
def test_a_client_that_there_cannot_be_is_refused(index):
    with pytest.raises(SecureAggregationError, match=f"client {index} is not one of 3"):
        secure.Client(settings(3), index, part(0))


# --- fuzz -------------------------------------------------------------------------------------------------------------


def mutations(message: bytes, others: list[bytes], rng: np.random.Generator, number: int):
    """Messages that are not the right one: flipped, cut, lengthened, spliced, of another, random, no bytes at all."""
    for _ in range(number):
        kind, place = rng.integers(7), int(rng.integers(len(message)))
        other = others[rng.integers(len(others))]
        flipped = bytearray(message)
        flipped[place] ^= int(rng.integers(1, 256))
        yield (
            bytes(flipped),
            message[:place],
            message + rng.bytes(1 + place),
            message[:place] + other[place:],
            other,
            rng.bytes(len(message)),
            (None, "text", b"", 7, bytearray(message))[rng.integers(5)],
        )[kind]


def fuzz(number: int, seed: int) -> int:
    """Every message of a session among ``number`` wrong ones; returns how many wrong ones were tried."""
    rng, tried = np.random.default_rng(seed), 0
    session = Session(settings(4, threshold=3), [part(index, d=3, n=9) for index in range(4)], seed)
    foreign = Session(settings(4, threshold=3), session.parts, seed + 1).play()
    others = [*foreign.asked.values(), *foreign.answered.values()]
    while session.messages:
        others = [*others, *session.messages.values()]
        answers = {}
        for index, message in session.messages.items():
            for wrong in mutations(message, others, rng, number):
                if wrong != message:
                    refused(session.clients[index].answer, wrong, ".")
                    tried += 1
            answers[index] = session.clients[index].answer(message)
        for answer in answers.values():
            for wrong in mutations(answer, [*others, *answers.values()], rng, number):
                if wrong not in answers.values():
                    refused(session.server.receive, wrong, ".")
                    tried += 1
            session.server.receive(answer)
        others += answers.values()
        session.advance()
    assert int(session.server.total.count.sum()) == 36
    return tried


def test_thousands_of_hostile_messages_are_all_refused():
    assert sum(fuzz(50, seed=seed) for seed in range(3)) > 4000


def test_the_entropy_of_tests_repeats_a_session():
    first, second = (Session(settings(3), [part(index) for index in range(3)], 5).play() for _ in range(2))
    assert all(np.array_equal(first.masked(index), second.masked(index)) for index in range(3))
    assert entropy(1)(4) == entropy(1)(4)
