"""Masks off the sum: own masks of clients in it, and masks that they share with clients that are not."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ccvr.core.errors import SecureAggregationError
from ccvr.privacy.layout import Vector
from ccvr.privacy.messages import Shares
from ccvr.privacy.primitives import SEED, add_mask, combine
from ccvr.privacy.session import Session, masking_pair, sign


@dataclass(frozen=True)
class Unmasking:
    """What the last answers open.

    Attributes:
        dealt: what each client that dealt shares sent to the server.
        summed: the clients whose masked vectors are in the sum.
        given: the shares that each client gave, of all who dealt in its neighbourhood, in order.
    """

    session: Session
    dealt: Mapping[int, Shares]
    summed: frozenset[int]
    given: Mapping[int, bytes]

    def apply(self, vector: Vector) -> Vector:
        """The vector without masks, in place.

        Raises:
            SecureAggregationError: too few shares of a client that fit.
        """
        secrets = {client: self._secret(client) for client in self.dealt}  # all of them before the first mask is made
        for client, secret in secrets.items():
            if client in self.summed:
                add_mask(vector, self.session.own_mask_key(secret), sign=-1)
            else:
                self._take_off_shared(vector, client, secret)
        return vector

    def _take_off_shared(self, vector: Vector, missing: int, seed: bytes) -> None:
        pair = masking_pair(seed, self.session.identifier)
        for peer in self.session.neighbourhood(missing):
            if peer in self.summed:
                add_mask(vector, self.session.mask_key(pair, missing, peer), sign=-sign(peer, missing))

    def _secret(self, dealer: int) -> bytes:
        """The seed of the own mask of a client in the sum, of the masking key of another."""
        threshold = self.session.settings.neighbourhoods.threshold
        fitting = self._fitting(dealer)
        if len(fitting) < threshold:
            raise SecureAggregationError(
                f"{len(fitting)} shares of client {dealer} came that fit, and {threshold} are needed. "
                "Nothing is opened. Wait for more answers, or begin again with more neighbours."
            )
        secret = combine(fitting[:threshold])
        if not self._is_secret(dealer, secret):
            raise SecureAggregationError(f"client {dealer} dealt shares that do not fit. Begin again without it.")
        return secret

    def _fitting(self, dealer: int) -> list[tuple[int, bytes]]:
        """The shares of a client's secret that are those it dealt, each with its number."""
        which = 0 if dealer in self.summed else 1
        found = []
        for place, holder in enumerate(self.session.neighbourhood(dealer)):
            if holder in self.given:
                share = self._share(dealer, holder)
                expected = self.dealt[dealer].fingerprints[2 * place + which]
                if self.session.share_print(dealer, holder, which, share) == expected:
                    found.append((place + 1, share))
        return found

    def _share(self, dealer: int, holder: int) -> bytes:
        place = self._places[holder][dealer]
        return self.given[holder][place * SEED : (place + 1) * SEED]

    @cached_property
    def _places(self) -> dict[int, dict[int, int]]:
        """Where the share of each dealer stands in what a holder gave."""
        return {
            holder: {
                dealer: place
                for place, dealer in enumerate(d for d in self.session.neighbourhood(holder) if d in self.dealt)
            }
            for holder in self.given
        }

    def _is_secret(self, dealer: int, secret: bytes) -> bool:
        if dealer in self.summed:
            return self.session.seed_print(dealer, secret) == self.dealt[dealer].own
        public = masking_pair(secret, self.session.identifier).public
        return public == self.session.roster.keys[dealer].masking
