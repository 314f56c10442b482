"""A model that talks: lines that look like ours, and one that does not end."""

import torch
from torch import nn

NOISE = ["my ccvr: client starts", "ccvr: {}", "ccvr: [1]", 'ccvr: {"event": "Finished", "results": {}}']


class Talking(nn.Module):
    def __init__(self, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(torch.Size(shape).numel(), 16), nn.Linear(16, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print(*NOISE, "and on it goes ", sep="\n", end="", flush=True)
        return self.head(self.hidden(x.flatten(1)).relu())


def make(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return Talking(shape, num_classes)
