"""The sealed channel between one client and the server: its keys come from the first two messages."""

from dataclasses import dataclass

from ccvr.core.errors import SecureAggregationError
from ccvr.privacy.messages import Header, Phase
from ccvr.privacy.primitives import KeyPair, derive, open_sealed, seal


@dataclass(frozen=True)
class Channel:
    """Seals and opens what one client and the server send each other; each phase and direction has its own key."""

    secret: bytes
    session: bytes
    settings: bytes
    client: int

    @classmethod
    def between(cls, own: KeyPair, peer: bytes, session: bytes, settings: bytes, client: int) -> "Channel":
        return cls(own.agree(peer, session + settings, b"channel"), session, settings, client)

    def header(self, phase: Phase, *, to_server: bool) -> Header:
        return Header(phase, to_server, self.session, self.settings, self.client)

    def send(self, phase: Phase, body: bytes, *, to_server: bool, prefix: bytes = b"") -> bytes:
        """A whole message; the prefix stands before the sealed body and is bound by it."""
        header = self.header(phase, to_server=to_server).to_bytes() + prefix
        return header + seal(self._key(phase, to_server), body, header)

    def receive(self, phase: Phase, sealed: bytes, *, to_server: bool, prefix: bytes = b"") -> bytes:
        """The body of a message.

        Raises:
            SecureAggregationError: it was altered, or another sent it.
        """
        header = self.header(phase, to_server=to_server).to_bytes() + prefix
        body = open_sealed(self._key(phase, to_server), sealed, header)
        if body is None:
            sender = f"client {self.client}" if to_server else "the server"
            raise SecureAggregationError(f"a message ({phase}) that names {sender} was altered, or another sent it.")
        return body

    def _key(self, phase: Phase, to_server: bool) -> bytes:
        return derive(self.secret, self.session, b"message %d %d" % (phase, to_server))
