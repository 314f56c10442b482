"""What all members of a session know once the roster is there, and what pairs of them derive from it."""

import hashlib
from dataclasses import dataclass
from functools import cached_property

from ccvr.privacy.graph import circle_of, neighbourhood_of
from ccvr.privacy.messages import Roster
from ccvr.privacy.primitives import KeyPair, derive, fingerprint
from ccvr.privacy.settings import Settings


@dataclass(frozen=True)
class Session:
    """One roster under one session id. All keys depend on both, so clients with different lists share no key."""

    identifier: bytes
    settings: Settings
    roster: Roster

    @cached_property
    def salt(self) -> bytes:
        return hashlib.sha256(self.identifier + self.settings.digest + self.roster.to_bytes()).digest()

    @cached_property
    def clients(self) -> list[int]:
        return list(self.roster.keys)

    @cached_property
    def _circle(self) -> tuple[int, ...]:
        return circle_of(self.clients, self.salt)

    @cached_property
    def _places(self) -> dict[int, int]:
        return {client: place for place, client in enumerate(self._circle)}

    def neighbourhood(self, client: int) -> tuple[int, ...]:
        """Those who hold shares of a client's secrets, in order, the client among them."""
        return neighbourhood_of(self._circle, self._places[client], self.settings.neighbourhoods.size)

    def mask_key(self, pair: KeyPair, client: int, peer: int) -> bytes:
        """The key of the mask that a client, whose masking keys are ``pair``, shares with a peer."""
        purpose = b"mask %d %d" % (min(client, peer), max(client, peer))
        return pair.agree(self.roster.keys[peer].masking, self.salt, purpose)

    def own_mask_key(self, seed: bytes) -> bytes:
        return derive(seed, self.salt, b"own mask")

    def share_key(self, pair: KeyPair, peer: int, sender: int, receiver: int) -> bytes:
        """The key of the shares that one of a pair of clients sends to the other."""
        return pair.agree(self.roster.keys[peer].sealing, self.salt, b"shares %d %d" % (sender, receiver))

    def share_header(self, sender: int, receiver: int) -> bytes:
        return self.salt + b"shares %d %d" % (sender, receiver)

    def share_print(self, dealer: int, holder: int, index: int, share: bytes) -> bytes:
        """The fingerprint of a share: index 0 of the seed of the own mask, 1 of the masking key's."""
        return fingerprint(b"share %d %d %d" % (dealer, holder, index), self.salt, share)

    def seed_print(self, dealer: int, seed: bytes) -> bytes:
        return fingerprint(b"seed %d" % dealer, self.salt, seed)


def masking_pair(seed: bytes, session: bytes) -> KeyPair:
    """The masking keys of a seed, which is what is shared of them."""
    return KeyPair(derive(seed, session, b"masking key"))


def sign(client: int, peer: int) -> int:
    """Of a mask that two clients share, the one adds what the other takes off."""
    return 1 if client < peer else -1
