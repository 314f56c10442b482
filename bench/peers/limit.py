"""One thread: a hundred steps of ours with their batches (`step`), or as many operations as products (`product`).

python -m bench.peers.limit {step,product}
"""

import sys
from collections.abc import Callable

import torch

from bench import workload
from bench.step import batches, ours
from ccvr.core.machine import keep_freed_memory

STEPS, SIDE = 100, 1024


def steps() -> Callable[[], None]:
    step = ours(batches(), kernels=True)

    def run() -> None:
        for _ in range(STEPS):
            step()

    return run


def products() -> Callable[[], None]:
    """Products of two matrices of 1024 x 1024, as many as make the operations of the steps; the last one in part."""
    matrix = torch.randn(SIDE, SIDE)
    rows = round(STEPS * workload.step_flop() / (2 * SIDE * SIDE))

    def run() -> None:
        for begin in range(0, rows, SIDE):
            _ = matrix[: min(SIDE, rows - begin)] @ matrix

    return run


def main() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    workload.serve({"step": steps, "product": products}[sys.argv[1]]())


if __name__ == "__main__":
    main()
