"""What clients remember comes back as it was."""

import pytest
import torch

from ccvr.core.errors import RunError
from ccvr.training.client_state import ClientStates


def test_channels_last_and_tied_tensors_come_back(tmp_path):
    filters = torch.randn(6, 3, 5, 5).contiguous(memory_format=torch.channels_last)
    state = {"filters": filters, "tied": filters, "count": torch.tensor(3)}
    states = ClientStates(tmp_path)
    states.write(4, 2, state)
    read = states.read(4, 2)
    assert read.keys() == state.keys()
    assert all(torch.equal(read[name], tensor) for name, tensor in state.items())


def test_a_sweep_leaves_those_that_are_named(tmp_path):
    states = ClientStates(tmp_path)
    for client, round in ((1, 1), (1, 2), (2, 1)):
        states.write(client, round, {"x": torch.tensor([client, round])})
    states.sweep({(1, 2), (2, 1), (7, 7)})
    assert states.read(1, 2)["x"].tolist() == [1, 2]
    assert states.read(2, 1)["x"].tolist() == [2, 1]
    with pytest.raises(RunError, match="cannot be read"):
        states.read(1, 1)
