"""Federated averaging the way tutorials show it: a DataLoader with transforms per image, one process, client by client.

It trains on every tenth image, and so a round of it is a tenth of the others'.

    python -m bench.peers.quickstart {dirichlet,iid} CLIENTS
"""

import copy
import sys

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from bench import workload


class Pictures(Dataset[tuple[Tensor, int]]):
    """One client's images, each made a tensor and normalised when it is asked for."""

    def __init__(self, indices: np.ndarray) -> None:
        images = workload.images()
        self.pictures = [Image.fromarray(images.images[i].permute(1, 2, 0).numpy()) for i in indices]
        self.labels = images.labels[torch.from_numpy(indices)].tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        pixels = torch.from_numpy(np.array(self.pictures[place])).permute(2, 0, 1).contiguous().float().div(255)
        mean, std = torch.tensor([0.5] * 3).view(3, 1, 1), torch.tensor([0.25] * 3).view(3, 1, 1)
        return pixels.sub_(mean).div_(std), self.labels[place]


def main() -> None:
    shards, spec = [shard[::10] for shard in workload.shards(sys.argv[1], int(sys.argv[2]))], workload.TRAINING
    loaders = [DataLoader(Pictures(shard), batch_size=spec.batch_size, shuffle=True) for shard in shards]
    model = workload.eager_network()

    def round() -> None:
        total, average = sum(len(shard) for shard in shards), None
        for loader, shard in zip(loaders, shards, strict=True):
            local = copy.deepcopy(model).train()
            optimiser = torch.optim.SGD(
                local.parameters(), lr=spec.lr, momentum=spec.momentum, weight_decay=spec.weight_decay
            )
            for images, labels in loader:
                optimiser.zero_grad()
                functional.cross_entropy(local(images), labels).backward()
                optimiser.step()
            part = {name: tensor * (len(shard) / total) for name, tensor in local.state_dict().items()}
            average = part if average is None else {name: average[name] + tensor for name, tensor in part.items()}
        assert average is not None
        model.load_state_dict(average)

    workload.serve(round)


if __name__ == "__main__":
    main()
