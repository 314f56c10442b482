"""The program of docs/privacy.md works as written, and its table of neighbours is what the code chooses."""

import re
from pathlib import Path

import torch
from torch import nn

import ccvr
from ccvr.privacy.graph import choose_neighbourhoods
from ccvr.privacy.layout import length

PAGE = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text()


def test_the_program(capsys):
    on_client, on_server = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 10))
    clients = []
    for index in range(10):
        y = torch.arange(200) % 10
        batches = [(torch.randn(200, 5) + y.unsqueeze(1), y)]
        scope = {"model": model, "batches": batches, "index": index}
        exec(on_client, scope)
        clients.append(scope["client"])

    def exchange(messages):
        yield b"noise"
        for index, message in messages.items():
            if index != 4:
                yield clients[index].answer(message)

    scope |= {"exchange": exchange, "expected": scope["statistics"]}
    exec(on_server, scope)
    assert scope["server"].clients == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert scope["fixed"](torch.randn(3, 5)).shape == (3, 10)
    assert capsys.readouterr().out.count("expected a message of secure aggregation, got 5 bytes") == 4


def test_the_table_of_neighbours():
    rows = re.findall(r"^\| ([\d,]+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 4
    for row in rows:
        clients, threshold, colluders, neighbours, shares = (int(word.replace(",", "")) for word in row)
        chosen = choose_neighbourhoods(clients, threshold, 0, colluders)
        assert (chosen.num_neighbours, chosen.threshold) == (neighbours, shares)


def test_the_sizes_of_masked_vectors():
    kinds = ("pooled", "diagonal", "full")
    sizes = {kind: 8 * length(ccvr.ClassStatistics.zeros(10, 256, kind=kind)) for kind in kinds}
    assert [round(sizes[kind] / 1e6, 2) for kind in kinds] == [0.28, 0.04, 2.65]
    assert round(sizes["diagonal"] / 1e3) == 41
