"""Claim: preparing a batch costs at most 10 % of the training step that it feeds.

A batch is 64 CIFAR-shaped images, gathered, shifted, mirrored and normalised; a step is forward, backward and SGD of
simple-cnn on a batch that is ready. One thread; the two sides take turns, so a busy machine slows both alike.

    python bench/batches.py [--json] [--steps 100] [--repeats 7]
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ccvr.data.augment import ShiftAndMirror
from ccvr.data.batches import TrainingSamples
from ccvr.data.samples import Samples
from ccvr.kernels.lanes import Lanes
from ccvr.models.build import ModelSpec, build_model
from ccvr.models.preprocess import Normalize
from ccvr.models.split import SplitModel

CLAIM = 0.10
NUM_IMAGES, SHAPE, BATCH = 10_000, (3, 32, 32), 64


def preparation(model: SplitModel) -> Callable[[], Tensor | Lanes]:
    rng = np.random.default_rng(0)
    pixels = torch.from_numpy(rng.integers(0, 256, (NUM_IMAGES, *SHAPE), dtype=np.uint8))
    images = TrainingSamples.prepare(Samples(pixels, torch.arange(NUM_IMAGES) % 10), ShiftAndMirror())

    def prepare() -> Tensor | Lanes:
        return model.inputs(images.take(rng.integers(0, NUM_IMAGES, BATCH), rng=rng).inputs)

    return prepare


def training_step(model: SplitModel, ready: Tensor | Lanes) -> Callable[[], None]:
    labels = torch.arange(BATCH) % 10
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-5, fused=True)
    model.train()

    def step() -> None:
        optimiser.zero_grad()
        functional.cross_entropy(model.head(model.features(ready)), labels).backward()
        optimiser.step()

    return step


def seconds_of(work: Callable[[], object], times: int) -> float:
    started = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - started) / times


def measure(steps: int, repeats: int) -> dict[str, float]:
    torch.set_num_threads(1)
    model = build_model(
        ModelSpec("simple-cnn"),
        torch.zeros(2, *SHAPE, dtype=torch.uint8),
        10,
        preprocess=Normalize([0.5] * 3, [0.25] * 3),
        kernels=True,
        seed=0,
    )
    prepare = preparation(model)
    step = training_step(model, prepare())
    seconds_of(prepare, 10), seconds_of(step, 10)  # warm up
    pairs = [(seconds_of(prepare, steps), seconds_of(step, steps)) for _ in range(repeats)]
    ratios = [preparing / stepping for preparing, stepping in pairs]
    return {
        "ratio": statistics.median(ratios),
        "least": min(ratios),
        "most": max(ratios),
        "batch_ms": 1000 * statistics.median(preparing for preparing, _ in pairs),
        "step_ms": 1000 * statistics.median(stepping for _, stepping in pairs),
        "repeats": repeats,
        "claim": CLAIM,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--steps", type=int, default=100, help="batches and steps per repeat")
    parser.add_argument("--repeats", type=int, default=7, help="repeats, at least 5")
    arguments = parser.parse_args()
    if arguments.repeats < 5 or arguments.steps < 1:
        parser.error("give at least 5 repeats of at least 1 step")
    found = measure(arguments.steps, arguments.repeats)
    if arguments.json:
        print(json.dumps(found))
        return
    print(
        f"batch {found['batch_ms']:.3f} ms / step {found['step_ms']:.3f} ms = {found['ratio']:.1%} "
        f"({found['least']:.1%} to {found['most']:.1%}, {arguments.repeats} repeats); claimed: at most {CLAIM:.0%}"
    )


if __name__ == "__main__":
    main()
