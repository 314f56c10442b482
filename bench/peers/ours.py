"""Our simulation: rounds of an algorithm with two workers.

python -m bench.peers.ours {dirichlet,iid} CLIENTS [--step torch] [--augment] [--algorithm moon] [--fraction 0.01]
"""

import argparse
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from bench import workload
from ccvr.core.machine import keep_freed_memory
from ccvr.training.client_state import ClientStates
from ccvr.training.rounds import federate
from ccvr.training.workers import Workers


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("clients", type=int)
    parser.add_argument("--step", choices=("halide", "torch"), default="halide")
    parser.add_argument("--augment", action="store_true")
    parser.add_argument("--algorithm", default="fedavg")
    parser.add_argument("--fraction", type=float, default=1.0)
    options = parser.parse_args()
    torch.set_num_threads(1)  # as in `ccvr run`
    keep_freed_memory()
    clients = workload.clients(options.kind, options.clients, augment=options.augment)
    spec = replace(workload.TRAINING, algorithm=options.algorithm, client_fraction=options.fraction, step=options.step)
    build = partial(workload.model, kernels=options.step == "halide")
    with tempfile.TemporaryDirectory() as folder:
        states, seed = ClientStates(Path(folder)), workload.SEED
        with Workers(workload.WORKERS, clients, build, spec, seed=seed, states=states) as pool:
            rounds = federate(build(), clients, spec, seed=seed, states=states, trainer=pool)
            workload.serve(lambda: next(rounds))


if __name__ == "__main__":
    main()
