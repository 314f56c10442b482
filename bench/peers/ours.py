"""Our simulation: rounds of FedAvg with two workers.

python -m bench.peers.ours {dirichlet,iid} CLIENTS [augment]
"""

import sys
import tempfile
from pathlib import Path

import torch
from bench import workload

from ccvr.training.memories import Memories
from ccvr.training.rounds import federate
from ccvr.training.workers import Workers


def main() -> None:
    torch.set_num_threads(1)  # as in `ccvr run`
    kind, num_clients, *rest = sys.argv[1:]
    clients = workload.clients(kind, int(num_clients), augment=rest == ["augment"])
    spec, seed = workload.TRAINING, workload.SEED
    with tempfile.TemporaryDirectory() as folder:
        memories = Memories(Path(folder))
        with Workers(workload.WORKERS, clients, workload.model, spec, seed=seed, memories=memories) as pool:
            rounds = federate(workload.model(), clients, spec, seed=seed, memories=memories, trainer=pool)
            workload.serve(lambda: next(rounds))


if __name__ == "__main__":
    main()
