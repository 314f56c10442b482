"""Cryptography of secure aggregation, all of it from the packages ``cryptography`` and ``pycryptodome``.

Agreement: X25519. Keys: HKDF-SHA256. Masks: the ChaCha20 key stream. Sealing: ChaCha20-Poly1305, one message a key.
Shares: Shamir's, of 16-byte secrets.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ccvr.core.errors import SecureAggregationError
from ccvr.privacy.layout import Vector

try:
    from Crypto.Protocol.SecretSharing import Shamir
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError as error:
    raise SecureAggregationError(
        'secure aggregation needs cryptography and pycryptodome. Install them: pip install "ccvr[privacy]".'
    ) from error

Entropy = Callable[[int], bytes]
KEY, SEED, TAG = 32, 16, 16
"""Bytes of a key, of a secret that is shared, and of what sealing adds."""
CHUNK = 1 << 20
ZEROS = bytes(CHUNK)


class KeyPair:
    """An X25519 key pair of a 32-byte secret."""

    def __init__(self, secret: bytes) -> None:
        self._private = X25519PrivateKey.from_private_bytes(secret)
        self.public = self._private.public_key().public_bytes_raw()

    def agree(self, public: bytes, salt: bytes, purpose: bytes) -> bytes:
        """The key of this pair, another's public key and a purpose.

        Raises:
            SecureAggregationError: a public key that gives everybody the same secret.
        """
        try:
            shared = self._private.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError as error:
            raise SecureAggregationError("a public key is not one of X25519.") from error
        return derive(shared, salt, purpose)


def derive(secret: bytes, salt: bytes, purpose: bytes) -> bytes:
    """32 bytes for one purpose."""
    return HKDF(algorithm=hashes.SHA256(), length=KEY, salt=salt, info=b"ccvr-secure/1 " + purpose).derive(secret)


def seal(key: bytes, message: bytes, header: bytes) -> bytes:
    """The message encrypted; it opens only with the same key and header. The key must never seal another message."""
    return ChaCha20Poly1305(key).encrypt(bytes(12), message, header)


def open_sealed(key: bytes, sealed: bytes, header: bytes) -> bytes | None:
    """The message; None where it was altered, or sealed with another key or header."""
    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), sealed, header)
    except InvalidTag:
        return None


def add_mask(vector: Vector, key: bytes, *, sign: int = 1) -> None:
    """Add the key's mask to a vector modulo 2⁶⁴, in place, or take it off with sign -1."""
    for part, mask in zip(_chunks(vector), _stream(key, vector.nbytes), strict=True):
        (np.add if sign > 0 else np.subtract)(part, mask, out=part)


def _chunks(vector: Vector) -> Iterator[Vector]:
    step = CHUNK // 8
    return (vector[start : start + step] for start in range(0, len(vector), step))


def _stream(key: bytes, num_bytes: int) -> Iterator[Vector]:
    cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    for start in range(0, num_bytes, CHUNK):
        yield np.frombuffer(cipher.update(ZEROS[: min(CHUNK, num_bytes - start)]), "<u8")


def split(secret: bytes, size: int, threshold: int) -> list[bytes]:
    """Shares 1 to ``size`` of a 16-byte secret, of which any ``threshold`` give it back."""
    return [share for _, share in Shamir.split(threshold, size, secret, False)]


def combine(shares: Sequence[tuple[int, bytes]]) -> bytes:
    """The secret of as many shares as its threshold, each with its number from 1."""
    secret: bytes = Shamir.combine(list(shares), False)
    return secret


def fingerprint(purpose: bytes, *parts: bytes) -> bytes:
    """16 bytes that say which secret it is and nothing about it."""
    return hashlib.sha256(b"ccvr-secure/1 " + purpose + b"".join(parts)).digest()[:SEED]
