"""What server and clients of a secure aggregation agree on before it begins."""

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cached_property

from ccvr.core.errors import SecureAggregationError
from ccvr.privacy.graph import Neighbourhoods, choose_neighbourhoods

VERSION = "ccvr-secure/1"
MAX_CLIENTS = 100_000
MODULUS_BITS = 64
MAX_SAMPLES_TOGETHER = 2**32
"""Of all clients. Beyond it, fixed-point numbers of 64 bits would be coarser than 2^-30 of one sample's bound."""


@dataclass(frozen=True)
class FixedPoint:
    """Numbers in [-most, most] as integers round(x 2^bits)."""

    most: Fraction
    bits: int

    @property
    def limit(self) -> int:
        """The largest integer that one client sends."""
        return math.ceil(self.most * Fraction(2) ** self.bits)

    @classmethod
    def widest(cls, most: Fraction, num_clients: int) -> "FixedPoint":
        """As many fractional bits as fit: num_clients · most · 2^bits ≤ 2^62, so that the sum of all keeps its sign."""
        return cls(most, MODULUS_BITS - 2 - math.ceil(num_clients * most).bit_length())


@dataclass(frozen=True)
class Settings:
    """Public settings of one secure aggregation; every client and the server use the same.

    A sum of ``num_clients`` clients cannot wrap modulo 2⁶⁴: each number of a client is clipped to what ``max_samples``
    features below ``bound`` can give, and scaled so that all clients' sum stays below 2⁶³.

    Args:
        num_clients: clients that may take part; their indices are 0 to ``num_clients`` - 1.
        max_samples: the most samples of one client.
        bound: the largest |feature|. Sums beyond what it allows are clipped, see ``Client.clipped``. Precision is best
            if it is not much larger than the features: the sum of second moments is off by at most
            num_clients² · max_samples · bound² · 2⁻⁶².
        threshold: the fewest clients whose sum is opened; more than half. 0 is two thirds, and one more.
        num_neighbours: clients that each client shares masks with; even. 0 chooses: everybody in a federation of up to
            32 clients, otherwise as few as threshold and colluders permit.
        max_colluders: clients that may tell the server all they know. It serves to choose neighbours; where everybody
            is a neighbour, ``threshold`` - 1 is the bound. -1 is a tenth of the clients.

    Raises:
        SecureAggregationError: settings under which a sum could wrap, or that do not go together.

    Example:
        >>> settings = Settings(num_clients=10, max_samples=500, bound=20.0)
        >>> settings.threshold, settings.neighbourhoods.size
        (7, 10)
    """

    num_clients: int
    max_samples: int = 10_000
    bound: float = 1000.0
    threshold: int = 0
    num_neighbours: int = 0
    max_colluders: int = -1

    def __post_init__(self) -> None:
        self._require_types()
        object.__setattr__(self, "bound", float(self.bound))  # equal settings have equal digests
        if not self.threshold:
            object.__setattr__(self, "threshold", 2 * self.num_clients // 3 + 1)
        if self.max_colluders < 0:
            object.__setattr__(self, "max_colluders", self.num_clients // 10)
        if not self.num_clients < 2 * self.threshold <= 2 * self.num_clients:
            raise SecureAggregationError(
                f"threshold is {self.threshold} of {self.num_clients} clients. Give more than half, at most all."
            )
        self._require_no_wrap()
        self.neighbourhoods  # noqa: B018 - refuses numbers of neighbours that do not do

    def _require_types(self) -> None:
        for name, least, most in (
            ("num_clients", 2, MAX_CLIENTS),
            ("max_samples", 1, 10**9),
            ("threshold", 0, MAX_CLIENTS),
            ("num_neighbours", 0, MAX_CLIENTS),
            ("max_colluders", -1, MAX_CLIENTS),
        ):
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= most:
                raise SecureAggregationError(f"{name} is {value!r}. Give a whole number from {least} to {most:,}.")
        if type(self.bound) not in (int, float) or not 1e-9 <= self.bound <= 1e9:
            raise SecureAggregationError(f"bound is {self.bound!r}. Give the largest |feature|, from 1e-9 to 1e9.")

    def _require_no_wrap(self) -> None:
        """Prove it with integers: the sum of all clients' largest numbers stays below 2⁶³."""
        together = self.num_clients * self.max_samples
        if together > MAX_SAMPLES_TOGETHER or any(
            self.num_clients * part.limit >= 2**63 for part in (self.counts, self.totals, self.seconds)
        ):
            raise SecureAggregationError(
                f"{self.num_clients:,} clients of up to {self.max_samples:,} samples do not fit into sums of 64 bits; "
                f"{MAX_SAMPLES_TOGETHER:,} samples are the most. Lower max_samples."
            )

    @property
    def counts(self) -> FixedPoint:
        """How counts are scaled: they are whole."""
        return FixedPoint(Fraction(self.max_samples), 0)

    @property
    def totals(self) -> FixedPoint:
        """How Σ z is scaled: |Σ z| ≤ n · bound."""
        return FixedPoint.widest(self.max_samples * Fraction(self.bound), self.num_clients)

    @property
    def seconds(self) -> FixedPoint:
        """How second moments are scaled: |Σ z z'| ≤ n · bound²."""
        return FixedPoint.widest(self.max_samples * Fraction(self.bound) ** 2, self.num_clients)

    @cached_property
    def neighbourhoods(self) -> Neighbourhoods:
        """Who shares secrets with whom: how many there are in a neighbourhood, and how many of them open a secret."""
        return choose_neighbourhoods(self.num_clients, self.threshold, self.num_neighbours, self.max_colluders)

    @cached_property
    def digest(self) -> bytes:
        """16 bytes that differ where the settings, or the versions of the protocol, differ."""
        return hashlib.sha256(json.dumps([VERSION, asdict(self)], sort_keys=True).encode()).digest()[:16]
