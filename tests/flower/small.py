"""A model of five numbers in, four classes out, and clients whose data it was never trained on."""

import json
import struct
from dataclasses import dataclass
from typing import ClassVar

import torch
from flwr.app import Context
from flwr.clientapp import ClientApp
from torch import nn

import ccvr.flower
from ccvr.calibration.calibrator import Calibrator
from ccvr.models.heads import LinearHead
from ccvr.statistics.kinds import Pooled
from tests.flower.loopback import Loopback

EXAMPLE = torch.zeros(1, 5)
NUM_CLASSES = 4


def small_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, NUM_CLASSES))


def batches_of(client: int, *, part: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Two batches that are this client's own; another ``part`` is as much again."""
    rng = torch.Generator().manual_seed(1000 * part + client)
    y = torch.arange(80) % NUM_CLASSES
    x = torch.randn(80, 5, generator=rng) + y.unsqueeze(1)
    return [(x[:50], y[:50]), (x[50:], y[50:])]


def load(context: Context):
    client = int(context.node_config["partition-id"])
    return small_model(), batches_of(client), batches_of(client, part=1)


def app_of(load=load, mods=None, **options) -> ClientApp:
    """Mods here let clients misbehave; that they protect nothing is said for them, unless a test is about that."""
    app = ClientApp(mods=mods)
    ccvr.flower.register(app, load, **{"unprotected": bool(mods)} | options)
    return app


def grid_of(number: int = 3, load=load, mods=None, silent=(), **options) -> Loopback:
    return Loopback(app_of(load, mods, **options), number, silent=silent)


def overflowing(format: str, name: str) -> bytes:
    """A tensor of no bytes, and of more rows than there are numbers for."""
    entry = {"dtype": "F32", "shape": [0, 2**62, 2**62], "data_offsets": [0, 0]}
    header = json.dumps({"__metadata__": {"ccvr": json.dumps({"format": format})}, name: entry}).encode()
    return struct.pack("<Q", len(header)) + header


@dataclass(frozen=True, kw_only=True)
class Nearest(Calibrator):
    """A calibrator of the user's own that has no options for what is collected."""

    kinds: ClassVar[tuple[str, ...]] = ("means", "pooled")

    def fit(self, head, statistics, *, rng):
        return LinearHead(statistics.mean.float(), -0.5 * statistics.mean.float().square().sum(1))


class Bounded(Pooled):
    """Pooled sums of features that are no longer than 2."""

    stands_for = "pooled"

    def prepare(self, z):
        return z * (2.0 / z.norm(dim=1, keepdim=True)).clamp(max=1)


bounded, alone = Bounded(), Pooled()


def misbehaving(*nodes, how):
    """A mod that lets some nodes answer as ``how(message)`` says."""

    def mod(message, context, call_next):
        return how(message) if context.node_id in nodes else call_next(message, context)

    return mod


def fail(message):
    raise RuntimeError("out of luck\nand more lines")
