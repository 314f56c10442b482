"""Nothing but steps: as many one-thread processes as there are workers, on batches that are ready in memory.

`eager` is the loop as a good user writes it: channels last, fused SGD, gradients dropped. `quick` is the same loop over our
network, whose passes take a shorter way in training. Each process takes its half of an epoch's batches.

    python -m bench.peers.bare {eager,quick} BATCH_SIZE
"""

import multiprocessing
import sys
from collections import OrderedDict
from collections.abc import Callable
from multiprocessing.connection import Connection

import torch
from torch import nn
from torch.nn import functional

from bench import workload


def eager_network() -> nn.Module:
    """The paper's network, layer by layer."""
    return nn.Sequential(
        OrderedDict(
            layer1=nn.Sequential(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
            layer2=nn.Sequential(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            layer3=nn.Sequential(nn.Linear(400, 120), nn.ReLU()),
            layer4=nn.Sequential(nn.Linear(120, 84), nn.ReLU()),
            layer5=nn.Sequential(nn.Linear(84, 84), nn.ReLU()),
            layer6=nn.Linear(84, 256),
            head=nn.Linear(256, workload.NUM_CLASSES),
        )
    )


NETWORKS: dict[str, Callable[[], nn.Module]] = {"eager": eager_network, "quick": workload.model}


def steps(name: str, batch_size: int) -> Callable[[], None]:
    """A function that takes one process's steps of an epoch."""
    model = NETWORKS[name]().to(memory_format=torch.channels_last).train()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-5, fused=True)
    number = workload.NUM_IMAGES // batch_size // workload.WORKERS
    batches = torch.randn(20, batch_size, *workload.SHAPE)
    ready = [batch.contiguous(memory_format=torch.channels_last) for batch in batches]
    labels = torch.arange(batch_size) % workload.NUM_CLASSES

    def run() -> None:
        for step in range(number):
            optimiser.zero_grad()
            functional.cross_entropy(model(ready[step % len(ready)]), labels).backward()
            optimiser.step()

    return run


def work(pipe: Connection, name: str, batch_size: int) -> None:
    torch.set_num_threads(1)
    run = steps(name, batch_size)
    pipe.send("ready")
    while pipe.recv():
        run()
        pipe.send("done")


def main() -> None:
    name, batch_size = sys.argv[1], int(sys.argv[2])
    context = multiprocessing.get_context("spawn")
    pipes = []
    for _ in range(workload.WORKERS):
        ours, theirs = context.Pipe()
        context.Process(target=work, args=(theirs, name, batch_size), daemon=True).start()
        pipes.append(ours)
    for pipe in pipes:
        pipe.recv()

    def round() -> None:
        for pipe in pipes:
            pipe.send(True)
        for pipe in pipes:
            pipe.recv()

    workload.serve(round)


if __name__ == "__main__":
    main()
