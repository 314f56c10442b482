"""Revisions between rounds over Flower: the model of a run in this process, and sums that are looked at."""

from dataclasses import replace

import pytest
import torch

from ccvr.core.errors import FederationError
from ccvr.core.run import RunFolder
from ccvr.experiment.pipeline import run, start
from ccvr.flower import client_app
from ccvr.flower.engine import FlowerEngine
from ccvr.training.checkpoint import read_checkpoint
from tests.experiment.test_revise import SPEC, every, with_buffers
from tests.flower.loopback import Loopback

pytestmark = [pytest.mark.flower, pytest.mark.usefixtures("trusted")]


def on_flower(spec, path):
    grid = Loopback(client_app.app, spec.partition.num_clients)
    return list(start(spec, path, engine=lambda setup: FlowerEngine.connect(grid, setup, simulated=True)))


@pytest.mark.parametrize(
    ("spec", "tolerance"),
    [(with_buffers("reestimated"), 0.0), (with_buffers("reestimated-at-end"), 0.0), (every(2), 1e-4)],
    ids=["every round", "at the end", "head"],
)
def test_the_model_is_the_same(spec, tolerance, tmp_path):
    """Sums travel in float64 and in order, so their bits are the same; class statistics travel in float32."""
    run(spec, tmp_path / "here")
    on_flower(spec, tmp_path / "flower")
    here, there = (read_checkpoint(RunFolder(tmp_path / name).checkpoint(3)) for name in ("here", "flower"))
    for name, tensor in here.model.tensors.items():
        torch.testing.assert_close(there.model.tensors[name], tensor, rtol=tolerance, atol=tolerance)
    rounds = [RunFolder(tmp_path / name).read_rounds() for name in ("here", "flower")]
    moved = [[each.get("revision_bytes") for each in found] for found in rounds]
    assert moved[0] == moved[1]
    assert any(moved[0])


def test_a_client_that_invents_samples_is_refused(tmp_path, monkeypatch):
    honest = client_app.client_moments

    def twice(model, setup, client, *, round):
        found = honest(model, setup, client, round=round)
        return {name: 2 * tensor for name, tensor in found.items()} if client == 1 else found

    monkeypatch.setattr(client_app, "client_moments", twice)
    spec = replace(SPEC, training=replace(SPEC.training, buffers="reestimated", client_fraction=1.0, rounds=1))
    with pytest.raises(FederationError, match=r"3 of 4 clients answered moments after round 1.*client 1 \(.*have less"):
        on_flower(spec, tmp_path / "run")
