"""The messages of a secure aggregation as bytes: a header of fixed size, which sealing protects, and a body.

What arrives is untrusted: sizes are looked at before anything of that size is made.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from ccvr.core.errors import SecureAggregationError
from ccvr.privacy.primitives import KEY, SEED, TAG, fingerprint
from ccvr.privacy.settings import Settings

MAGIC = b"CCVRsec1"
SERVER = 2**32 - 1
SESSION = 16
_HEADER = struct.Struct(f">8sBB{SESSION}s16sI")


class Phase(IntEnum):
    """The four phases; each is one message to every client and its answer."""

    KEYS = 0
    SHARES = 1
    SUMS = 2
    UNMASKING = 3

    def __str__(self) -> str:
        return ("keys", "shares", "masked sums", "unmasking")[self]


@dataclass(frozen=True)
class Header:
    """What a message says about itself. Sealing binds it."""

    phase: Phase
    to_server: bool
    session: bytes
    settings: bytes
    client: int
    """Who wrote to the server, or whom the server wrote to."""

    def to_bytes(self) -> bytes:
        return _HEADER.pack(MAGIC, self.phase, self.to_server, self.session, self.settings, self.client)


def read(message: bytes) -> tuple[Header, bytes]:
    """The header and the body.

    Raises:
        SecureAggregationError: no message of this version of the protocol.
    """
    if not isinstance(message, bytes) or len(message) < _HEADER.size:
        raise SecureAggregationError(f"expected a message of secure aggregation, got {_described(message)}.")
    magic, phase, to_server, session, settings, client = _HEADER.unpack_from(message)
    if magic != MAGIC or phase >= len(Phase) or to_server > 1:
        raise SecureAggregationError("these bytes are not a message of secure aggregation, or of another version.")
    return Header(Phase(phase), bool(to_server), session, settings, client), message[_HEADER.size :]


def _described(message: object) -> str:
    return f"{len(message)} bytes" if isinstance(message, bytes) else type(message).__name__


def require_settings(header: Header, settings: Settings, sender: str) -> None:
    if header.settings != settings.digest:
        raise SecureAggregationError(
            f"{sender} has other settings, or another version of ccvr. Give server and clients the same."
        )


# --- bodies ---------------------------------------------------------------------------------------------------------


class PublicKeys(NamedTuple):
    """One client's public keys: for what it seals for its neighbours, and for the masks that it shares with them."""

    sealing: bytes
    masking: bytes


@dataclass(frozen=True)
class Roster:
    """All clients of a session by index, and their public keys."""

    keys: dict[int, PublicKeys]

    _ENTRY = struct.Struct(f">I{KEY}s{KEY}s")

    def to_bytes(self) -> bytes:
        return b"".join(self._ENTRY.pack(client, keys.sealing, keys.masking) for client, keys in self.keys.items())

    @classmethod
    def from_bytes(cls, body: bytes, settings: Settings) -> "Roster":
        """The roster in a body; clients that are unknown, too few, not in order, or share a key are refused."""
        if len(body) % cls._ENTRY.size or len(body) // cls._ENTRY.size > settings.num_clients:
            raise SecureAggregationError("the server's list of clients has a wrong size.")
        entries = list(cls._ENTRY.iter_unpack(body))
        clients = [entry[0] for entry in entries]
        if clients != sorted(set(clients)) or any(client >= settings.num_clients for client in clients):
            raise SecureAggregationError("the server's list names a client twice, or one that there cannot be.")
        keys = [key for entry in entries for key in entry[1:]]
        if len(set(keys)) < len(keys):
            raise SecureAggregationError("the server's list gives the same public key twice.")
        require_enough(len(clients), settings)
        return cls({client: PublicKeys(sealing, masking) for client, sealing, masking in entries})


def require_enough(found: int, settings: Settings) -> None:
    if found < settings.threshold:
        raise SecureAggregationError(
            f"{found} clients are left, and threshold is {settings.threshold}. Nothing is opened. "
            "Begin again with more clients."
        )


@dataclass(frozen=True)
class Shares:
    """What a client deals: fingerprints of its mask's seed and of all shares, and two sealed shares a neighbour."""

    own: bytes
    fingerprints: tuple[bytes, ...]
    """Of the share of the own seed, then of the key's seed, for each of the neighbourhood."""
    sealed: tuple[bytes, ...]
    """Both shares for each neighbour, in order of clients."""

    SEALED = 2 * SEED + TAG

    def to_bytes(self) -> bytes:
        return b"".join([self.own, *self.fingerprints, *self.sealed])

    @classmethod
    def from_bytes(cls, body: bytes, size: int) -> "Shares":
        prints = SEED + 2 * size * SEED
        if len(body) != prints + (size - 1) * cls.SEALED:
            raise SecureAggregationError("the shares have a wrong size.")
        own, *others = _cut(body[:prints], SEED)
        return cls(own, tuple(others), tuple(_cut(body[prints:], cls.SEALED)))


def _cut(body: bytes, size: int) -> list[bytes]:
    return [body[start : start + size] for start in range(0, len(body), size)]


def pieces(body: bytes, size: int, number: int, what: str) -> list[bytes]:
    """A body as ``number`` pieces of one size."""
    if len(body) != size * number:
        raise SecureAggregationError(f"{what} has a wrong size.")
    return _cut(body, size)


def names_to_bytes(named: Sequence[int], roster: Sequence[int]) -> bytes:
    """Some clients of a roster, as one bit each."""
    return np.packbits(np.isin(roster, named)).tobytes()


def names_from_bytes(body: bytes, roster: Sequence[int]) -> list[int]:
    """The clients whose bits are set."""
    if len(body) != names_size(roster):
        raise SecureAggregationError("the server's list of clients that are left has a wrong size.")
    bits = np.unpackbits(np.frombuffer(body, np.uint8))
    if bits[len(roster) :].any():
        raise SecureAggregationError("the server's list of clients that are left names more than there are.")
    return [client for client, bit in zip(roster, bits.tolist(), strict=False) if bit]


def names_size(roster: Sequence[int]) -> int:
    return (len(roster) + 7) // 8


def invitation(header: Header, public: bytes) -> bytes:
    """The server's first message: its public key, with a checksum against accidents."""
    return header.to_bytes() + public + fingerprint(b"invitation", header.to_bytes(), public)


def invitation_key(header: Header, body: bytes) -> bytes:
    """The server's public key."""
    public = body[:KEY]
    if len(body) != KEY + SEED or body[KEY:] != fingerprint(b"invitation", header.to_bytes(), public):
        raise SecureAggregationError("the server's first message was altered.")
    return public
