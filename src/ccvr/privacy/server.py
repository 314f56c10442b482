"""The server's side of secure aggregation: four messages to each client, then the sum of those who stay."""

import secrets
from collections.abc import Callable

import numpy as np

from ccvr.core.errors import SecureAggregationError
from ccvr.privacy import layout
from ccvr.privacy.channel import Channel
from ccvr.privacy.messages import (
    SESSION,
    Header,
    Phase,
    PublicKeys,
    Roster,
    Shares,
    invitation,
    names_to_bytes,
    pieces,
    read,
    require_enough,
    require_settings,
)
from ccvr.privacy.primitives import KEY, SEED, Entropy, KeyPair
from ccvr.privacy.session import Session
from ccvr.privacy.settings import Settings
from ccvr.privacy.unmasking import Unmasking
from ccvr.statistics.moments import ClassStatistics

Messages = dict[int, bytes]
"""What is to be sent, by the client's index."""


class Server:
    """The server of one secure aggregation. It learns the sum of the clients that stay, and of no fewer than threshold.

    Args:
        settings: the same as the clients'.
        like: statistics of the same kind and source, say ``ccvr.collect`` of any batch. Others are refused.
        entropy: gives random bytes. For tests only.

    Attributes:
        clients: indices of the clients in the sum; before the third phase is over, of those who answered so far.

    Example:
        See ``Client``.
    """

    def __init__(self, settings: Settings, like: ClassStatistics, *, entropy: Entropy = secrets.token_bytes) -> None:
        self.settings, self._like = settings, like
        self._pair, self._id = KeyPair(entropy(KEY)), entropy(SESSION)
        self._layout, self._length = layout.digest(like), layout.length(like)
        self._phase: Phase | None = None
        self._channels: dict[int, Channel] = {}
        self._invited = self._awaited = frozenset[int]()
        self._keys: dict[int, PublicKeys] = {}
        self._shares: dict[int, Shares] = {}
        self._masked: set[int] = set()
        self._given: dict[int, bytes] = {}
        self._sum = np.zeros(self._length, np.uint64)
        self._session: Session
        self._total: ClassStatistics | None = None

    @property
    def clients(self) -> list[int]:
        return sorted(self._masked)

    @property
    def total(self) -> ClassStatistics:
        """The sum, as calibrators take it.

        Raises:
            SecureAggregationError: it is not open yet.
        """
        if self._total is None:
            raise SecureAggregationError("the sum is not open yet. Send messages until `advance` returns none.")
        return self._total

    # --- what goes out ------------------------------------------------------------------------------------------------

    def start(self) -> Messages:
        """The first message to each client."""
        if self._phase is not None:
            raise SecureAggregationError("this session has begun. Make a new Server for another one.")
        self._phase, self._awaited = Phase.KEYS, frozenset(range(self.settings.num_clients))
        return {
            client: invitation(Header(Phase.KEYS, False, self._id, self.settings.digest, client), self._pair.public)
            for client in sorted(self._awaited)
        }

    def advance(self) -> Messages:
        """End the phase: the next message to each client that answered, or none where the sum is open.

        Call it when all have answered, or when those who have not are given up. They are left out from here on.

        Raises:
            SecureAggregationError: too few answered. More answers may still be received before the next call.
        """
        if self._phase is None or self._total is not None:
            raise SecureAggregationError(
                "the session has not begun, or is over. Call `start` first, `advance` thrice more."
            )
        next_phase: Callable[[], Messages] = (self._rosters, self._mailboxes, self._requests, self._open)[self._phase]
        return next_phase()

    def _next(self, phase: Phase, bodies: dict[int, bytes]) -> Messages:
        self._phase, self._awaited = phase, frozenset(bodies)
        return {client: self._channels[client].send(phase, body, to_server=False) for client, body in bodies.items()}

    def _rosters(self) -> Messages:
        require_enough(len(self._keys), self.settings)
        self._session = Session(self._id, self.settings, Roster(dict(sorted(self._keys.items()))))
        return self._next(Phase.SHARES, dict.fromkeys(self._session.clients, self._session.roster.to_bytes()))

    def _mailboxes(self) -> Messages:
        require_enough(len(self._shares), self.settings)
        names = names_to_bytes(sorted(self._shares), self._session.clients)
        return self._next(Phase.SUMS, {client: names + self._mail(client) for client in sorted(self._shares)})

    def _mail(self, client: int) -> bytes:
        """What the neighbours that are left sealed for a client."""
        return b"".join(
            self._shares[peer].sealed[self._sealed_place(peer, client)]
            for peer in self._session.neighbourhood(client)
            if peer != client and peer in self._shares
        )

    def _sealed_place(self, dealer: int, holder: int) -> int:
        place = self._session.neighbourhood(dealer).index(holder)
        return place - (dealer < holder)  # nobody seals for itself

    def _requests(self) -> Messages:
        require_enough(len(self._masked), self.settings)
        names = names_to_bytes(sorted(self._masked), sorted(self._shares))
        return self._next(Phase.UNMASKING, dict.fromkeys(sorted(self._masked), names))

    def _open(self) -> Messages:
        require_enough(len(self._given), self.settings)
        unmasking = Unmasking(self._session, self._shares, frozenset(self._masked), self._given)
        opened = unmasking.apply(self._sum.copy())
        self._total = layout.from_vector(opened, self._like, self.settings, len(self._masked))
        return {}

    # --- what comes in ------------------------------------------------------------------------------------------------

    def receive(self, message: bytes) -> int:
        """Take a client's answer, and return the client's index.

        Raises:
            SecureAggregationError: it is not an answer that is awaited, or was altered. Nothing has changed: go on
                without that client, or with its right answer.
        """
        header, body = read(message)
        self._require_awaited(header)
        take = (self._take_keys, self._take_shares, self._take_sum, self._take_given)[header.phase]
        if header.phase != Phase.KEYS:
            body = self._channels[header.client].receive(header.phase, body, to_server=True)
        take(header.client, body)
        return header.client

    def _require_awaited(self, header: Header) -> None:
        client = header.client
        require_settings(header, self.settings, f"client {client}")
        if not header.to_server or header.session != self._id:
            raise SecureAggregationError(f"a message of client {client} ({header.phase}) is not of this session.")
        if self._phase is None or header.phase != self._phase or self._total is not None:
            raise SecureAggregationError(
                f"client {client} sent {header.phase} while {self._phase or 'nothing'} is awaited. It is left out."
            )
        if client not in self._awaited:
            raise SecureAggregationError(f"client {client} is not awaited ({header.phase}).")
        if client in (self._keys, self._shares, self._masked, self._given)[header.phase]:
            raise SecureAggregationError(f"client {client} answered already ({header.phase}).")

    def _take_keys(self, client: int, body: bytes) -> None:
        sealing = body[:KEY]
        if len(sealing) != KEY:
            raise SecureAggregationError(f"the keys of client {client} have a wrong size.")
        channel = Channel.between(self._pair, sealing, self._id, self.settings.digest, client)
        body = channel.receive(Phase.KEYS, body[KEY:], to_server=True, prefix=sealing)
        masking, digest = body[:KEY], body[KEY:]
        if digest != self._layout:
            raise SecureAggregationError(
                f"client {client} has statistics of another kind, model, head, layers or transform than the server. "
                "Collect them in the same way from the same model."
            )
        self._pair.agree(masking, b"", b"refuse what is no key")
        if {sealing, masking} & {key for keys in self._keys.values() for key in (keys.sealing, keys.masking)}:
            raise SecureAggregationError(f"client {client} has a public key of another client.")
        self._keys[client], self._channels[client] = PublicKeys(sealing, masking), channel

    def _take_shares(self, client: int, body: bytes) -> None:
        self._shares[client] = Shares.from_bytes(body, len(self._session.neighbourhood(client)))

    def _take_sum(self, client: int, body: bytes) -> None:
        if len(body) != 8 * self._length:
            raise SecureAggregationError(f"the masked sums of client {client} have a wrong size.")
        self._sum += np.frombuffer(body, "<u8")
        self._masked.add(client)

    def _take_given(self, client: int, body: bytes) -> None:
        held = sum(peer in self._shares for peer in self._session.neighbourhood(client))
        pieces(body, SEED, held, f"what client {client} gives of secrets")
        self._given[client] = body
