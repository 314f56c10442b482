"""What a client deals: shares of its two secrets, sealed for each of its neighbours."""

from dataclasses import dataclass

from ccvr.privacy.messages import Shares
from ccvr.privacy.primitives import SEED, KeyPair, seal, split
from ccvr.privacy.session import Session

OWN_SEED, KEY_SEED = slice(0, SEED), slice(SEED, 2 * SEED)
"""Where the share of each secret stands in what one client seals for another."""


@dataclass(frozen=True)
class Dealt:
    """For the server to forward, and what the client holds of its own secrets."""

    shares: Shares
    kept: bytes


def deal(session: Session, client: int, sealing: KeyPair, own_seed: bytes, key_seed: bytes) -> Dealt:
    """Shares of the seeds of the own mask and of the masking key for the client's neighbourhood, itself included."""
    holders, threshold = session.neighbourhood(client), session.settings.neighbourhoods.threshold
    both = (split(seed, len(holders), threshold) for seed in (own_seed, key_seed))
    dealt = {holder: own + key for holder, own, key in zip(holders, *both, strict=True)}
    prints = [
        session.share_print(client, holder, which, shares[part])
        for holder, shares in dealt.items()
        for which, part in enumerate((OWN_SEED, KEY_SEED))
    ]
    kept = dealt.pop(client)
    sealed = [
        seal(session.share_key(sealing, holder, client, holder), shares, session.share_header(client, holder))
        for holder, shares in dealt.items()
    ]
    return Dealt(Shares(session.seed_print(client, own_seed), tuple(prints), tuple(sealed)), kept)
