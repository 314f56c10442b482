import numpy as np
import pytest
import torch

from ccvr.algorithms.messages import Client
from ccvr.data.batches import TrainingSamples
from ccvr.data.samples import Samples
from tests.algorithms.small import NUM_CLASSES

SIZES = (7, 12, 20)


@pytest.fixture(scope="session")
def clients():
    rng = np.random.default_rng(0)
    number = sum(SIZES)
    pixels = torch.from_numpy(rng.integers(0, 256, (number, 1, 2, 3), dtype=np.uint8))
    labels = torch.from_numpy(rng.integers(0, NUM_CLASSES, number))
    images = TrainingSamples.prepare(Samples(pixels, labels), None)
    shards = np.split(rng.permutation(number), np.cumsum(SIZES)[:-1])
    return [Client(k, images, np.sort(shard)) for k, shard in enumerate(shards)]
