"""The client's side of secure aggregation: it answers four messages of the server."""

import secrets

from ccvr.core.errors import SecureAggregationError
from ccvr.privacy import layout
from ccvr.privacy.channel import Channel
from ccvr.privacy.dealing import KEY_SEED, OWN_SEED, deal
from ccvr.privacy.messages import (
    Header,
    Phase,
    Roster,
    Shares,
    invitation_key,
    names_from_bytes,
    names_size,
    pieces,
    read,
    require_enough,
    require_settings,
)
from ccvr.privacy.primitives import KEY, SEED, Entropy, KeyPair, add_mask, open_sealed
from ccvr.privacy.session import Session, masking_pair, sign
from ccvr.privacy.settings import Settings
from ccvr.statistics.moments import ClassStatistics


class Client:
    """One client in one secure aggregation. It has keys of its own, and takes part once.

    Args:
        settings: the same as the server's.
        index: which of the ``settings.num_clients`` clients this is.
        statistics: what ``ccvr.collect`` returned here. Classes below its ``min_count`` are withheld already.
        entropy: gives random bytes. For tests only; others must not know what it gives.

    Attributes:
        clipped: how many numbers of the statistics were beyond what ``settings.bound`` allows, and were clipped. If
            it is not 0, agree on a larger bound, because the sum will be wrong by what was cut off.

    Raises:
        SecureAggregationError: statistics that the settings do not allow.

    Example:
        >>> import torch
        >>> from ccvr import secure, statistics_of
        >>> settings = secure.Settings(num_clients=2, max_samples=10, bound=4.0)
        >>> parts = [statistics_of(torch.randn(5, 3), torch.tensor([0, 0, 1, 1, 1]), 2) for _ in range(2)]
        >>> clients = [secure.Client(settings, index, part) for index, part in enumerate(parts)]
        >>> server = secure.Server(settings, like=parts[0])
        >>> messages = server.start()
        >>> while messages:  # four times; a transport carries bytes to clients, and back
        ...     for index, message in messages.items():
        ...         _ = server.receive(clients[index].answer(message))
        ...     messages = server.advance()
        >>> server.total.count.tolist()
        [4, 6]
    """

    def __init__(
        self, settings: Settings, index: int, statistics: ClassStatistics, *, entropy: Entropy = secrets.token_bytes
    ) -> None:
        if type(index) is not int or not 0 <= index < settings.num_clients:
            raise SecureAggregationError(f"client {index!r} is not one of {settings.num_clients}. Count from 0.")
        self.settings, self.index = settings, index
        encoded = layout.to_vector(statistics, settings)
        self.clipped = encoded.clipped
        self._vector, self._layout = encoded.vector, layout.digest(statistics)
        self._sealing, self._key_seed, self._own_seed = KeyPair(entropy(KEY)), entropy(SEED), entropy(SEED)
        self._answered = 0
        self._channel: Channel
        self._session: Session
        self._left: list[int]  # who masks: all of them dealt shares
        self._held: dict[int, bytes] = {}  # both shares of each neighbour, and of itself

    def answer(self, message: bytes) -> bytes:
        """The answer to a message of the server.

        A message that is refused changes nothing: the right one may still come. One that was answered is not answered
        again, so keep the answer until it has arrived.

        Raises:
            SecureAggregationError: the message is not the next one of this session, was altered, or asks for what would
                open too small a sum. Nothing was revealed.
        """
        header, body = read(message)
        self._require_next(header)
        if header.phase == Phase.KEYS:
            answer = self._keys(header, body)
        else:
            body = self._channel.receive(header.phase, body, to_server=False)
            step = {Phase.SHARES: self._shares, Phase.SUMS: self._sums, Phase.UNMASKING: self._unmasking}[header.phase]
            answer = self._channel.send(header.phase, step(body), to_server=True)
        self._answered += 1
        return answer

    def _require_next(self, header: Header) -> None:
        require_settings(header, self.settings, "the server")
        if header.to_server or header.client != self.index:
            wrong = f"came from client {header.client}" if header.to_server else f"is for client {header.client}"
            raise SecureAggregationError(f"this is client {self.index}, and a message ({header.phase}) {wrong}.")
        if self._answered and header.session != self._channel.session:
            raise SecureAggregationError(
                f"client {self.index} is in another session. A client takes part once: make a new one for another run."
            )
        if header.phase != self._answered:
            awaited = f"awaits {Phase(self._answered)}" if self._answered < len(Phase) else "has finished"
            raise SecureAggregationError(
                f"client {self.index} {awaited}, and a message of {header.phase} came. A client answers each once."
            )

    def _keys(self, header: Header, body: bytes) -> bytes:
        server = invitation_key(header, body)
        channel = Channel.between(self._sealing, server, header.session, self.settings.digest, self.index)
        masking = masking_pair(self._key_seed, header.session).public
        self._channel = channel
        return channel.send(Phase.KEYS, masking + self._layout, to_server=True, prefix=self._sealing.public)

    def _shares(self, body: bytes) -> bytes:
        session = Session(self._channel.session, self.settings, Roster.from_bytes(body, self.settings))
        self._masking = masking_pair(self._key_seed, session.identifier)
        mine = session.roster.keys.get(self.index)
        if mine is None or (mine.sealing, mine.masking) != (self._sealing.public, self._masking.public):
            raise SecureAggregationError(f"the server's list does not have the keys of client {self.index}.")
        dealt = deal(session, self.index, self._sealing, self._own_seed, self._key_seed)
        self._session, self._held = session, {self.index: dealt.kept}
        return dealt.shares.to_bytes()

    def _sums(self, body: bytes) -> bytes:
        session, size = self._session, names_size(self._session.clients)
        left = names_from_bytes(body[:size], session.clients)
        peers = self._present_peers(left)
        sealed = pieces(body[size:], Shares.SEALED, len(peers), "what the server forwards")
        held = {peer: self._opened(peer, part) for peer, part in zip(peers, sealed, strict=True)}
        own = session.own_mask_key(self._own_seed)
        keys = {
            peer: session.mask_key(self._masking, self.index, peer) for peer in peers
        }  # all, before anything changes
        add_mask(self._vector, own)
        for peer, key in keys.items():
            add_mask(self._vector, key, sign=sign(self.index, peer))
        self._held |= held
        self._left, masked = left, self._vector.astype("<u8", copy=False).tobytes()
        del self._vector, self._key_seed, self._own_seed, self._masking
        return masked

    def _present_peers(self, left: list[int]) -> list[int]:
        """The neighbours who are left, where these and all clients are enough, and this client is among them."""
        require_enough(len(left), self.settings)
        if self.index not in left:
            raise SecureAggregationError(f"the server says that client {self.index} is not there.")
        present = sorted(set(self._session.neighbourhood(self.index)).intersection(left))
        if len(present) < self.settings.neighbourhoods.threshold:
            raise SecureAggregationError(
                f"{len(present)} clients are left of those who share masks with client {self.index}, and "
                f"{self.settings.neighbourhoods.threshold} are needed. Nothing is opened. Begin again."
            )
        return [peer for peer in present if peer != self.index]

    def _opened(self, peer: int, sealed: bytes) -> bytes:
        key = self._session.share_key(self._sealing, peer, peer, self.index)
        shares = open_sealed(key, sealed, self._session.share_header(peer, self.index))
        if shares is None:
            raise SecureAggregationError(
                f"shares of client {peer} were altered, or that client was given another list of clients."
            )
        return shares

    def _unmasking(self, body: bytes) -> bytes:
        named = names_from_bytes(body, self._left)
        self._present_peers(named)
        chosen = set(named)
        given = [shares[OWN_SEED if peer in chosen else KEY_SEED] for peer, shares in sorted(self._held.items())]
        self._held = {}
        return b"".join(given)
