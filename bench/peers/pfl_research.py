"""Rounds under pfl-research (PyPI: pfl): its FederatedAveraging and its SGD loop over our network, under torchrun.

Two processes of one thread, users balanced between them by their images (pfl's own way), images as uint8 in memory.

    torchrun --standalone --nproc-per-node 2 -m bench.peers.pfl_research {dirichlet,iid} CLIENTS [--keep]
"""

import sys
import time
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional

from bench import workload
from ccvr.core.machine import keep_freed_memory


class Network(nn.Module):
    """Our network with the two methods that pfl asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.network = workload.model().train()

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(self.network(images), labels)

    def metrics(self, images: Tensor, labels: Tensor) -> dict[str, Any]:
        return {}


class Turns(TrainingProcessCallback):
    """Both processes begin a round when the first is told to, which then tells how long it took."""

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        self.first = torch.distributed.get_rank() == 0
        if self.first:
            workload.say("ready")
        self._await()
        return Metrics()

    def after_central_iteration(self, *args: Any, **kwargs: Any) -> tuple[bool, Metrics]:
        if self.first:
            workload.say(time.perf_counter() - self.started)
        return not self._await(), Metrics()

    def _await(self) -> bool:
        told = torch.tensor(float(bool(self.first and sys.stdin.readline())))
        torch.distributed.broadcast(told, 0)
        self.started = time.perf_counter()
        return bool(told)


def main() -> None:
    kind, num_clients = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    if "--keep" in sys.argv:
        keep_freed_memory()  # as our workers do, and nobody who runs pfl
    images, shards = workload.images(), workload.shards(kind, num_clients)
    pixels, labels = images.images.numpy(), images.labels.numpy()
    users = {str(k): [torch.from_numpy(pixels[s]), torch.from_numpy(labels[s])] for k, s in enumerate(shards)}
    data = FederatedDataset(
        lambda user: Dataset(users[user], user_id=user),
        MinimizeReuseUserSampler(list(users)),
        {user: len(owned[1]) for user, owned in users.items()},
    )
    network, spec = Network(), workload.TRAINING

    def local(parameters: Any, lr: float) -> torch.optim.Optimizer:
        decay, momentum = spec.weight_decay, spec.momentum
        return torch.optim.SGD(parameters, lr=lr, momentum=momentum, weight_decay=decay, fused=True)

    FederatedAveraging().run(
        NNAlgorithmParams(10_000, evaluation_frequency=100_000, train_cohort_size=num_clients, val_cohort_size=0),
        SimulatedBackend(data, data, postprocessors=[WeightByDatapoints()]),
        PyTorchModel(network, local, torch.optim.SGD(network.parameters(), lr=1.0)),
        NNTrainHyperParams(local_batch_size=spec.batch_size, local_num_epochs=1, local_learning_rate=spec.lr),
        callbacks=[Turns()],
    )


if __name__ == "__main__":
    main()
