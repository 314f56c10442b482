"""Which blocks gain by compiled kernels: forward and backward over 64 images of 16 × 16 by torch and by the kernels.

Torch runs a block as with `--training.step torch`: channels last, pooling before ReLU. Each side takes one thread.
Blocks have twice as many outputs as inputs and pool 2 × 2.

    python -m bench.channels [--json] [--repeats 7]
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch

from ccvr.core.machine import keep_freed_memory
from ccvr.models.blocks import ConvBlock, use_kernels

INPUTS, KERNELS = (3, 6, 8, 16, 32, 64), (3, 5)
BATCH, SIDE, PASSES = 64, 16, 5


def passes(inputs: int, kernel: int, *, kernels: bool) -> Callable[[], None]:
    """Forward and backward through one block, with the gradient of its input."""
    block = ConvBlock(inputs, 2 * inputs, kernel, padding=kernel // 2).train()
    use_kernels(block, kernels)
    images = torch.randn(BATCH, inputs, SIDE, SIDE)
    if not kernels:
        images = images.contiguous(memory_format=torch.channels_last)
    images.requires_grad_()

    def run() -> None:
        for _ in range(PASSES):
            block(images).sum().backward()

    return run


def seconds(run: Callable[[], None]) -> float:
    started = time.perf_counter()
    run()
    return (time.perf_counter() - started) / PASSES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error("give at least 1 repeat")
    torch.set_num_threads(1)
    keep_freed_memory()
    gains: dict[str, dict[str, float]] = {}
    for kernel in KERNELS:
        for inputs in INPUTS:
            torchs, ours = (passes(inputs, kernel, kernels=kernels) for kernels in (False, True))
            seconds(torchs), seconds(ours)  # warm up, compile
            turns = [seconds(torchs) / seconds(ours) for _ in range(options.repeats)]
            gains.setdefault(f"{kernel} x {kernel}", {})[f"{inputs} to {2 * inputs}"] = statistics.median(turns)
    if options.json:
        print(json.dumps(gains))
        return
    print("torch's time over the kernels'")
    for kernel, row in gains.items():
        for channels, gain in row.items():
            print(f"{kernel:<8}{channels:<12}{gain:6.2f}")


if __name__ == "__main__":
    main()
