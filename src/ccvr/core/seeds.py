"""Random streams by name: every draw comes from (seed, purpose, client, round), none from a global generator."""

import hashlib

import numpy as np


def derive_seed(seed: int, purpose: str, *, client: int = 0, round: int = 0) -> int:
    """A 63-bit seed for one stream; any change of an argument gives an unrelated stream."""
    key = f"{seed}/{purpose}/{client}/{round}".encode()
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "little") >> 1


def stream(seed: int, purpose: str, *, client: int = 0, round: int = 0) -> np.random.Generator:
    """The NumPy generator of one stream."""
    return np.random.default_rng(derive_seed(seed, purpose, client=client, round=round))
