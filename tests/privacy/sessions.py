"""Whole sessions of secure aggregation in memory, with clients that vanish."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

import ccvr
from ccvr import secure
from ccvr.privacy.messages import Phase
from ccvr.statistics.source import Source

KINDS = ("full", "pooled", "diagonal", "means", "kernel")


def entropy(seed: int) -> Callable[[int], bytes]:
    return np.random.default_rng(seed).bytes


def part(seed: int, kind: str = "pooled", *, classes: int = 3, d: int = 4, n: int = 12, scale: float = 1.0):
    """One client's statistics."""
    rng = torch.Generator().manual_seed(seed)
    z = scale * torch.randn(n, d, generator=rng, dtype=torch.float64) + 0.5
    y = torch.randint(classes, (n,), generator=rng)
    projection, source = None, Source("backbone", "head")
    if kind == "kernel":
        projection = ccvr.Projection(torch.zeros(2).double(), torch.ones(2).double(), d, 1.0, 0)
        z, source = z.cos(), Source("backbone", "head", ("tap",), projection=projection.digest)
    return ccvr.statistics_of(z, y, classes, kind=kind, source=source, projection=projection)


@dataclass
class Session:
    """A server, its clients, and every message that was sent."""

    settings: secure.Settings
    parts: Sequence[ccvr.ClassStatistics]
    seed: int = 0
    asked: dict[tuple[Phase, int], bytes] = field(default_factory=dict)
    answered: dict[tuple[Phase, int], bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.server = secure.Server(self.settings, self.parts[0], entropy=entropy(self.seed))
        self.clients = [
            secure.Client(self.settings, index, each, entropy=entropy(10_000 * (self.seed + 1) + index))
            for index, each in enumerate(self.parts)
        ]
        self.messages = self.server.start()
        self.phase = Phase.KEYS

    def play(self, gone: Mapping[Phase, Collection[int]] | None = None, *, until: Phase | None = None) -> "Session":
        """Go on until a phase is about to begin, or to the end; clients vanish before they answer in a phase."""
        while self.messages and self.phase != until:
            self.exchange((gone or {}).get(self.phase, ()))
            self.advance()
        return self

    def exchange(self, gone: Collection[int] = ()) -> None:
        for index, message in self.messages.items():
            self.asked[self.phase, index] = message
            if index not in gone:
                answer = self.answered[self.phase, index] = self.clients[index].answer(message)
                self.server.receive(answer)

    def advance(self) -> None:
        self.messages = self.server.advance()
        if self.messages:
            self.phase = Phase(self.phase + 1)

    def masked(self, index: int) -> np.ndarray:
        """The masked vector of a client, as the server reads it."""
        message = self.answered[Phase.SUMS, index]
        body = self.server._channels[index].receive(Phase.SUMS, message[HEADER:], to_server=True)
        return np.frombuffer(body, "<u8")


HEADER = 46


def settings(num_clients: int, **fields: object) -> secure.Settings:
    return secure.Settings(num_clients=num_clients, **{"max_samples": 1000, "bound": 64.0, **fields})
