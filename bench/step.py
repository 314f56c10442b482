"""Where the time of a training step goes: simple-cnn, 64 augmented images, one thread.

`ours` runs on compiled kernels, `torch` is our step without them, `eager` the same network as anybody writes it, on a
batch that is ready. The parts are timed by torch's profiler, which slows small operations more than large ones; so read
them as shares. The whole is timed without it, in turns.

    python -m bench.step [--json] [--steps 100] [--repeats 7]
"""

import argparse
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable
from itertools import count

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile, record_function

from bench import workload
from ccvr.algorithms.sgd import Sgd
from ccvr.core.machine import keep_freed_memory
from ccvr.data.batches import Batch, epoch

GROUPS = {
    "batch: gather, shift, mirror, normalise": ("prepare", "aten::mul_", "aten::sub_", "aten::copy_"),
    "convolutions, forward": ("Compiled", "aten::mkldnn_convolution"),
    "convolutions, backward": ("CompiledBackward", "aten::convolution_backward"),
    "max-pooling": ("aten::max_pool2d_with_indices", "aten::max_pool2d_with_indices_backward"),
    "ReLU": ("aten::clamp_min", "aten::threshold_backward"),
    "linear layers": ("aten::addmm", "aten::mm", "aten::sum"),
    "SGD": ("aten::_fused_sgd_",),
}


def batches() -> Callable[[], Batch]:
    client, rng = workload.clients("iid", 1, augment=True)[0], np.random.default_rng(0)

    endless = (batch for _ in count() for batch in epoch(client.data, client.indices, 64, rng=rng))
    return lambda: next(endless)


def ours(take: Callable[[], Batch], *, kernels: bool) -> Callable[[], None]:
    model = workload.model(kernels=kernels).train()
    optimiser = Sgd(list(model.parameters()), workload.TRAINING)

    def step() -> None:
        with record_function("prepare"):
            crops, labels = take()
            inputs = model.inputs(crops)
        optimiser.drop_gradients()
        functional.cross_entropy(model.head(model.features(inputs)), labels).backward()
        optimiser.step()

    return step


def eager(take: Callable[[], Batch]) -> Callable[[], None]:
    """The same without our network's shorter way; the batch is ready."""
    model: nn.Module = workload.eager_network().to(memory_format=torch.channels_last).train()
    spec, labels = workload.TRAINING, take().labels
    images = torch.randn(64, *workload.SHAPE).contiguous(memory_format=torch.channels_last)
    optimiser = torch.optim.SGD(
        model.parameters(), lr=spec.lr, momentum=spec.momentum, weight_decay=spec.weight_decay, fused=True
    )

    def step() -> None:
        optimiser.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimiser.step()

    return step


def shares(step: Callable[[], None], steps: int) -> dict[str, float]:
    """Percent of a step's time by group of operations."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        for _ in range(steps):
            step()
    own: Counter[str] = Counter()
    inside = {operation: group for group, operations in GROUPS.items() for operation in operations}
    for event in seen.key_averages():
        own[inside.get(event.key, "all else")] += event.self_cpu_time_total
    return {group: 100 * own[group] / own.total() for group in (*GROUPS, "all else")}


def milliseconds(step: Callable[[], None], steps: int) -> float:
    started = time.perf_counter()
    for _ in range(steps):
        step()
    return 1000 * (time.perf_counter() - started) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    if options.steps < 1 or options.repeats < 1:
        parser.error("give at least 1 step and 1 repeat")
    torch.set_num_threads(1)
    keep_freed_memory()
    take = batches()
    sides = {"ours": ours(take, kernels=True), "torch": ours(take, kernels=False), "eager": eager(take)}
    for step in sides.values():
        milliseconds(step, 10)
    turns = [{name: milliseconds(step, options.steps) for name, step in sides.items()} for _ in range(options.repeats)]
    found = {f"{name}_ms": statistics.median(turn[name] for turn in turns) for name in sides}
    found |= {
        f"ours_over_{name}": statistics.median(turn[name] / turn["ours"] for turn in turns)
        for name in ("torch", "eager")
    }
    tables = {name: shares(step, options.steps) for name, step in sides.items()}
    if options.json:
        print(json.dumps(found | tables))
        return
    for name, value in found.items():
        print(f"{name:<40} {value:6.2f}")
    print(f"{'percent of a step':<40}" + "".join(f"{name:>7}" for name in sides))
    for group in tables["ours"]:
        print(f"{group:<40}" + "".join(f"{tables[name][group]:7.1f}" for name in sides))


if __name__ == "__main__":
    main()
