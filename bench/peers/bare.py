"""As many one-thread processes as there are workers, each with its half of an epoch and nothing around it.

`eager`: steps as a good user writes them (channels last, fused SGD) on batches that are ready in memory.
`loop`: our local loop over half of the clients: no messages, no server; by our kernels, or by torch's step.

    python -m bench.peers.bare eager
    python -m bench.peers.bare loop {dirichlet,iid} CLIENTS {halide,torch}
"""

import multiprocessing
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection

import torch
from torch.nn import functional

from bench import workload
from ccvr.core.machine import keep_freed_memory


def eager(half: int) -> Callable[[], None]:
    size, spec = workload.TRAINING.batch_size, workload.TRAINING
    model = workload.eager_network().to(memory_format=torch.channels_last).train()
    optimiser = torch.optim.SGD(
        model.parameters(), lr=spec.lr, momentum=spec.momentum, weight_decay=spec.weight_decay, fused=True
    )
    batches = torch.randn(20, size, *workload.SHAPE)
    ready = [batch.contiguous(memory_format=torch.channels_last) for batch in batches]
    labels = torch.arange(size) % workload.NUM_CLASSES

    def run() -> None:
        for step in range(workload.NUM_IMAGES // size // workload.WORKERS):
            optimiser.zero_grad()
            functional.cross_entropy(model(ready[step % len(ready)]), labels).backward()
            optimiser.step()

    return run


def loop(half: int, kind: str, num_clients: str, step: str) -> Callable[[], None]:
    shards = workload.shards(kind, int(num_clients))
    loads: list[list[int]] = [[] for _ in range(workload.WORKERS)]
    for client in sorted(range(len(shards)), key=lambda k: -len(shards[k])):
        min(loads, key=lambda load: sum(len(shards[k]) for k in load)).append(client)
    parameters = workload.start().parameters

    def run() -> None:
        for client in loads[half]:
            workload.train_locally(kind, int(num_clients), client, parameters, 1, kernels=step == "halide")

    return run


def work(pipe: Connection, half: int, name: str, *arguments: str) -> None:
    torch.set_num_threads(1)
    keep_freed_memory()  # as our workers do
    run = {"eager": eager, "loop": loop}[name](half, *arguments)
    while True:
        pipe.send("ready")
        if not pipe.recv():
            return
        run()


def main() -> None:
    context, pipes = multiprocessing.get_context("spawn"), []
    for half in range(workload.WORKERS):
        ours, theirs = context.Pipe()
        context.Process(target=work, args=(theirs, half, *sys.argv[1:]), daemon=True).start()
        pipes.append(ours)

    def all_ready() -> None:
        for pipe in pipes:
            pipe.recv()

    def round(more: bool = True) -> None:
        for pipe in pipes:
            pipe.send(more)
        if more:
            all_ready()

    all_ready()
    workload.serve(round)
    round(more=False)


if __name__ == "__main__":
    main()
