"""What every side of bench/simulation.py works on, and how it is told to run a round.

A side is a script that gets ready, says so, runs one round for every line that it reads, and tells the seconds. So all
sides wait warm, and take turns.
"""

import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from torch import nn

from ccvr.algorithms.drift import FedAvg
from ccvr.algorithms.messages import Client, GlobalState, LocalResult
from ccvr.algorithms.spec import TrainingSpec
from ccvr.core.arrays import IntArray
from ccvr.core.machine import keep_freed_memory
from ccvr.data.augment import ShiftAndMirror
from ccvr.data.batches import TrainingSamples
from ccvr.data.partition import PartitionSpec, draw_partition
from ccvr.data.samples import Samples
from ccvr.kernels.shape import BlockShape
from ccvr.models.build import ModelSpec, build_model
from ccvr.models.preprocess import Normalize
from ccvr.models.split import SplitModel
from ccvr.models.state import Scratch, Tensors, buffers_of, parameters_of
from ccvr.training.local import train_client

NUM_IMAGES, SHAPE, NUM_CLASSES, WORKERS, SEED = 50_000, (3, 32, 32), 10, 2, 0
TRAINING = TrainingSpec(rounds=200, local_epochs=1, batch_size=64, lr=0.01, momentum=0.9, weight_decay=1e-5)
BLOCKS = (BlockShape(3, 6, 32, 32, 5), BlockShape(6, 16, 14, 14, 5))
SAYS = "bench:"


@cache
def images() -> Samples:
    """Images of CIFAR-10's shape. What they show does not matter to the time that they take."""
    rng = np.random.default_rng(SEED)
    pixels = rng.integers(0, 256, (NUM_IMAGES, *SHAPE), dtype=np.uint8)
    return Samples(torch.from_numpy(pixels), torch.arange(NUM_IMAGES) % NUM_CLASSES)


@cache
def shards(kind: str, num_clients: int) -> tuple[IntArray, ...]:
    """Each client's images: ``dirichlet`` (0.1) or ``iid``; ``iid/64`` is the first 64 of each."""
    name, _, most = kind.partition("/")
    spec = PartitionSpec(name, num_clients, alpha=0.1, seed=SEED, min_size=1)
    drawn = draw_partition(images().labels.numpy(), spec).shards
    return tuple(shard[: int(most)] if most else shard for shard in drawn)


@cache
def clients(kind: str, num_clients: int, *, augment: bool = False) -> tuple[Client, ...]:
    ready = TrainingSamples.prepare(images(), ShiftAndMirror() if augment else None)
    return tuple(Client(number, ready, shard) for number, shard in enumerate(shards(kind, num_clients)))


def model(*, kernels: bool = False) -> SplitModel:
    """The paper's network, run by torch or by our kernels."""
    before = Normalize([0.5] * 3, [0.25] * 3)
    spec, inputs = ModelSpec("simple-cnn"), images().first(2)
    return build_model(spec, inputs, NUM_CLASSES, preprocess=before, kernels=kernels, seed=SEED)


def eager_network() -> nn.Module:
    """The same network as anybody writes it, layer by layer."""
    return nn.Sequential(
        OrderedDict(
            layer1=nn.Sequential(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
            layer2=nn.Sequential(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            layer3=nn.Sequential(nn.Linear(400, 120), nn.ReLU()),
            layer4=nn.Sequential(nn.Linear(120, 84), nn.ReLU()),
            layer5=nn.Sequential(nn.Linear(84, 84), nn.ReLU()),
            layer6=nn.Linear(84, 256),
            head=nn.Linear(256, NUM_CLASSES),
        )
    )


def step_flop() -> int:
    """Floating-point operations of a step: forward, and gradients of all parameters and inputs but the images.

    Two for every product and sum; convolutions as far as pooling reads them. What kernels leave out counts as well.
    """
    first, second = (shape.flop(TRAINING.batch_size) for shape in BLOCKS)
    linear = sum(2 * layer.weight.numel() for layer in eager_network().modules() if isinstance(layer, nn.Linear))
    return 2 * first + 3 * second + 3 * linear * TRAINING.batch_size


@cache
def scratch(*, kernels: bool = False) -> Scratch[SplitModel]:
    return Scratch(model(kernels=kernels))


@cache
def start() -> GlobalState:
    return GlobalState(parameters_of(scratch().model), buffers_of(scratch().model), {})


def train_locally(
    kind: str, num_clients: int, number: int, received: Tensors, round: int, *, kernels: bool = False
) -> LocalResult:
    """Our local loop for one client, by torch's step, for a peer that brings its own server; or by our kernels."""
    torch.set_num_threads(1)
    keep_freed_memory()
    state, client = GlobalState(received, start().buffers, {}), clients(kind, num_clients)[number]
    return train_client(scratch(kernels=kernels), state, client, {}, FedAvg(), TRAINING, round=round, seed=SEED)


def say(what: object) -> None:
    print(SAYS, what, flush=True)


def serve(round: Callable[[], object]) -> None:
    """Run a round for every line that comes in."""
    say("ready")
    for _ in sys.stdin:
        started = time.perf_counter()
        round()
        say(time.perf_counter() - started)
