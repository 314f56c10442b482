"""The model, the data and the loops, as in any app of Flower's."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """Digits of 8 × 8 pixels → ten scores."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 16, 3)
        self.fc1 = nn.Linear(16 * 3 * 3, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool2d(functional.relu(self.conv(x)), 2)
        return self.fc2(functional.relu(self.fc1(x.flatten(1))))


def _digits() -> tuple[torch.Tensor, torch.Tensor]:
    pixels, labels = load_digits(return_X_y=True)
    return torch.as_tensor(pixels).float().view(-1, 1, 8, 8) / 16, torch.as_tensor(labels)


def load_data(partition_id: int, num_partitions: int, batch_size: int) -> tuple[DataLoader, DataLoader]:
    """A client's training and test part: it has most of two or three classes and a little of the others."""
    images, labels = _digits()
    images, labels = images[:1500], labels[:1500]
    home = labels * num_partitions // 10
    stray = torch.arange(len(labels)) % 10 == 0
    owner = torch.where(stray, torch.arange(len(labels)) // 10 % num_partitions, home)
    mine = (owner == partition_id).nonzero().flatten()
    test, train = mine[::5], mine[torch.arange(len(mine)) % 5 != 0]
    return (
        DataLoader(TensorDataset(images[train], labels[train]), batch_size=batch_size, shuffle=True),
        DataLoader(TensorDataset(images[test], labels[test]), batch_size=batch_size),
    )


def load_server_data() -> DataLoader:
    images, labels = _digits()
    return DataLoader(TensorDataset(images[1500:], labels[1500:]), batch_size=100)


def train(net: nn.Module, loader: DataLoader, epochs: int, lr: float) -> float:
    optimiser = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    loss = torch.zeros(())
    for _ in range(epochs):
        for images, labels in loader:
            optimiser.zero_grad()
            loss = functional.cross_entropy(net(images), labels)
            loss.backward()
            optimiser.step()
    return loss.item()


def test(net: nn.Module, loader: DataLoader) -> float:
    """Accuracy."""
    net.eval()
    with torch.no_grad():
        right = sum(int((net(images).argmax(1) == labels).sum()) for images, labels in loader)
    return right / max(len(loader.dataset), 1)
