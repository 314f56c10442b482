"""What every side of bench/simulation.py works on, and how it is told to run a round.

A side is a script that gets ready, prints `ready`, runs one round for every line that it reads, and prints the seconds.
So all sides wait warm, and take turns.
"""

import sys
import time
from collections.abc import Callable
from functools import cache

import numpy as np
import torch

from ccvr.data.batches import TrainingImages
from ccvr.data.images import IntArray, LabelledImages
from ccvr.data.partition import PartitionSpec, draw_partition
from ccvr.models.build import ModelSpec, build_model
from ccvr.models.split import SplitModel
from ccvr.training.local import Client
from ccvr.training.spec import TrainingSpec

NUM_IMAGES, SHAPE, NUM_CLASSES, WORKERS, SEED = 50_000, (3, 32, 32), 10, 2, 0
TRAINING = TrainingSpec(rounds=200, local_epochs=1, batch_size=64, lr=0.01, momentum=0.9, weight_decay=1e-5)


@cache
def images() -> LabelledImages:
    """Images of CIFAR-10's shape. What they show does not matter to the time that they take."""
    rng = np.random.default_rng(SEED)
    pixels = rng.integers(0, 256, (NUM_IMAGES, *SHAPE), dtype=np.uint8)
    return LabelledImages(torch.from_numpy(pixels), torch.arange(NUM_IMAGES) % NUM_CLASSES)


@cache
def shards(kind: str, num_clients: int) -> tuple[IntArray, ...]:
    """Each client's images: ``dirichlet`` (0.1) or ``iid``."""
    spec = PartitionSpec(kind, num_clients, alpha=0.1, seed=SEED, min_size=1)
    return tuple(draw_partition(images().labels.numpy(), spec).shards)


def clients(kind: str, num_clients: int, *, augment: bool = False) -> list[Client]:
    ready = TrainingImages.prepare(images(), augment=augment)
    return [Client(number, ready, shard) for number, shard in enumerate(shards(kind, num_clients))]


def model() -> SplitModel:
    return build_model(ModelSpec("simple-cnn"), SHAPE, NUM_CLASSES, mean=[0.5] * 3, std=[0.25] * 3, seed=SEED)


def serve(round: Callable[[], object]) -> None:
    """Run a round for every line that comes in."""
    print("ready", flush=True)
    for _ in sys.stdin:
        started = time.perf_counter()
        round()
        print(time.perf_counter() - started, flush=True)
