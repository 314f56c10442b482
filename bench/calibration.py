"""Claims about statistics and calibration, most as ratios in one run; the sides take turns, medians, one thread.

    python bench/calibration.py [--json] [--repeats 5]

collect_of_gemm     collecting and packing 50,000 features (d = 1280, C = 100): how fast it would be as sums of
                    z zᵀ, over the rate of a plain float64 matrix product of this machine           at least 0.5
draw_over_numpy     numpy.random.multivariate_normal over our drawing, one such class of 500        at least 2.5
draw_full_rank      the same for a class of more samples than dimensions
retrain_over_plain  a plain loop of the same SGD steps over ours
merge_memory        peak memory of merging 1,000 clients (C = 10, d = 256) over that of merging 2   at most 1.05
full_seconds        CPU seconds of collecting from features, packing, reading and merging 50,000    at most 60
                    features (d = 1280, C = 100) of 20 clients, Dirichlet 0.1, kind full
full_gigabytes      peak memory of all of that in one process                                       at most 3
full_megabytes      of one client's bytes, on average                                               at most 25
kernel_seconds, kernel_gigabytes, kernel_megabytes   the same of kind kernel with 5,000 random features
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ccvr.calibration.retrain import retrain
from ccvr.calibration.sampling import draw
from ccvr.calibration.virtual import Ccvr
from ccvr.models.heads import LinearHead
from ccvr.models.random_features import Projection
from ccvr.statistics.accumulate import Accumulator
from ccvr.statistics.collect import statistics_of
from ccvr.statistics.merge import merge
from ccvr.statistics.moments import ClassStatistics
from ccvr.statistics.request import Request

D, CLASSES, FEATURES, BATCH, DRAWS = 1280, 100, 50_000, 1000, 500
LEAST = {"collect_of_gemm": 0.5, "draw_over_numpy": 2.5}
MOST = {"merge_memory": 1.05, "full_seconds": 60, "full_gigabytes": 3, "full_megabytes": 25}
CLIENTS, ALPHA = 20, 0.1
WIDTHS = {"full": D, "kernel": 5000}


def seconds_of(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def alternate(ours: Callable[[], object], theirs: Callable[[], object], repeats: int) -> float:
    """Median of their time over ours, side by side."""
    return statistics.median(seconds_of(theirs) / seconds_of(ours) for _ in range(repeats))


def collect_of_gemm(repeats: int) -> float:
    rng = torch.Generator().manual_seed(0)
    z, y = torch.randn(BATCH, D, generator=rng), torch.randint(CLASSES, (FEATURES,), generator=rng)
    square = torch.randn(D, D, dtype=torch.float64, generator=rng)
    products = round(FEATURES / D)  # as many multiplications as Σ z zᵀ over all features

    def collect() -> None:
        sums = Accumulator(CLASSES)
        for labels in y.split(BATCH):
            sums.update(z, labels)
        sums.finish().to_bytes()

    def multiply() -> None:
        for _ in range(products):
            square @ square

    return alternate(collect, multiply, repeats)


def draw_over_numpy(repeats: int) -> float:
    return _draw_over_numpy(FEATURES // CLASSES, repeats)


def draw_full_rank(repeats: int) -> float:
    return _draw_over_numpy(2 * D, repeats)


def _draw_over_numpy(num_samples: int, repeats: int) -> float:
    rng = torch.Generator().manual_seed(0)
    z = torch.randn(num_samples, D, generator=rng) @ torch.randn(D, D, generator=rng)
    one = statistics_of(z, torch.zeros(len(z), dtype=torch.int64), 1)
    mean, cov = one.mean[0].numpy(), one.covariance(0).numpy()
    legacy = np.random.RandomState(0)
    return alternate(lambda: draw(one, [DRAWS], rng=rng), lambda: legacy.multivariate_normal(mean, cov, DRAWS), repeats)


def retrain_over_plain(repeats: int) -> float:
    rng = torch.Generator().manual_seed(0)
    options = Ccvr(epochs=2)
    t, y = torch.randn(20_000, 256, generator=rng), torch.randint(10, (20_000,), generator=rng)

    def plain() -> None:
        head = nn.Linear(256, 10)
        optimiser = torch.optim.SGD(head.parameters(), lr=0.001, momentum=0.9, weight_decay=1e-5)
        for _ in range(options.epochs):
            for batch in torch.randperm(len(t)).split(options.batch_size):
                optimiser.zero_grad()
                functional.cross_entropy(head(t[batch]), y[batch]).backward()
                optimiser.step()

    def ours() -> None:
        head = LinearHead(torch.zeros(10, 256), torch.zeros(10))
        retrain(head, t, y, options, rng=rng)

    return alternate(ours, plain, repeats)


def merge_memory() -> float:
    """In processes of their own, because a peak does not go down."""
    peaks = [
        int(subprocess.run([sys.executable, __file__, "--merge", number], check=True, capture_output=True).stdout)
        for number in ("2", "1000")
    ]
    return peaks[1] / peaks[0]


def peak_of_merging(number: int) -> int:
    def client(seed: int) -> ClassStatistics:
        z: Tensor = torch.randn(500, 256, generator=torch.Generator().manual_seed(seed))
        return statistics_of(z, torch.arange(500) % 10, 10)

    merge(client(seed) for seed in range(number))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def exchanges() -> dict[str, float]:
    """Time, memory and bytes of whole exchanges, each in a process of its own."""
    found = {}
    for kind in WIDTHS:
        done = subprocess.run([sys.executable, __file__, "--exchange", kind], check=True, capture_output=True)
        found |= {f"{kind}_{name}": number for name, number in json.loads(done.stdout).items()}
    return found


def exchange(kind: str) -> dict[str, float]:
    """All clients' statistics from features that are made as they are needed, their bytes, and the merge."""
    rng, d = np.random.default_rng(0), WIDTHS[kind]
    labels = np.arange(FEATURES) % CLASSES
    owners = np.empty(FEATURES, dtype=np.int64)
    for label in range(CLASSES):
        shares = rng.dirichlet([ALPHA] * CLIENTS)
        owners[labels == label] = rng.choice(CLIENTS, FEATURES // CLASSES, p=shares)
    projection = Projection(torch.zeros(64).double(), torch.ones(64).double(), d, 0.5, 0) if kind == "kernel" else None
    centres = torch.randn(CLASSES, d, generator=torch.Generator().manual_seed(0))
    seconds, blobs = 0.0, []
    for client in range(CLIENTS):
        y = torch.from_numpy(rng.permutation(labels[owners == client]))
        sums = Accumulator(CLASSES, Request(kind, projection=projection))
        for batch in y.split(BATCH):
            z = torch.randn(len(batch), d) + centres[batch]
            z = z.relu_() if projection is None else z.cos_()
            started = time.process_time()
            sums.update(z, batch)
            seconds += time.process_time() - started
        started = time.process_time()
        blobs.append(sums.finish().to_bytes())
        seconds += time.process_time() - started
    started = time.process_time()
    merge(blobs)
    seconds += time.process_time() - started
    return {
        "seconds": round(seconds, 1),
        "gigabytes": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
        "megabytes": round(sum(map(len, blobs)) / CLIENTS / 1e6, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one object")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--merge", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--exchange", choices=WIDTHS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.merge:
        print(peak_of_merging(arguments.merge))
        return
    if arguments.exchange:
        print(json.dumps(exchange(arguments.exchange)))
        return
    timed = (collect_of_gemm, draw_over_numpy, draw_full_rank, retrain_over_plain)
    ratios = {measure.__name__: round(measure(arguments.repeats), 3) for measure in timed}
    ratios |= {"merge_memory": round(merge_memory(), 3), **exchanges()}
    if arguments.json:
        print(json.dumps(ratios))
        return
    for name, ratio in ratios.items():
        bound = f"at least {LEAST[name]}" if name in LEAST else f"at most {MOST[name]}" if name in MOST else ""
        print(f"{name:20s} {ratio:8.3f}   {bound}")


if __name__ == "__main__":
    main()
