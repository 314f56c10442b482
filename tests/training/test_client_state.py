"""What clients remember comes back as it was."""

import pytest
import torch

from ccvr.core.errors import RunError
from ccvr.training.client_state import ClientStates


def test_channels_last_and_tied_tensors_come_back(tmp_path):
    filters = torch.randn(6, 3, 5, 5).contiguous(memory_format=torch.channels_last)
    memory = {"filters": filters, "tied": filters, "count": torch.tensor(3)}
    memories = ClientStates(tmp_path)
    memories.write(4, 2, memory)
    read = memories.read(4, 2)
    assert read.keys() == memory.keys()
    assert all(torch.equal(read[name], tensor) for name, tensor in memory.items())


def test_a_sweep_leaves_those_that_are_named(tmp_path):
    memories = ClientStates(tmp_path)
    for client, round in ((1, 1), (1, 2), (2, 1)):
        memories.write(client, round, {"x": torch.tensor([client, round])})
    memories.sweep({(1, 2), (2, 1), (7, 7)})
    assert memories.read(1, 2)["x"].tolist() == [1, 2]
    assert memories.read(2, 1)["x"].tolist() == [2, 1]
    with pytest.raises(RunError, match="cannot be read"):
        memories.read(1, 1)
