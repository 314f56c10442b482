from dataclasses import replace

import pytest
import torch

from ccvr.algorithms.messages import GlobalState
from ccvr.algorithms.objectives import LocalObjective
from ccvr.algorithms.spec import TrainingSpec
from ccvr.models.state import Scratch, buffers_of, parameters_of
from ccvr.training.local import train_client
from tests.algorithms.small import NUM_CLASSES, Using, norm_model

SPEC = TrainingSpec(rounds=1, local_epochs=2, batch_size=4, lr=0.1)


def contexts_of(clients, objective):
    """Train every client with the same scratch model; the contexts in which the objective found itself."""
    scratch, contexts = Scratch(norm_model()), []
    sent = GlobalState(parameters_of(scratch.model), buffers_of(scratch.model), {})

    def factory(context):
        contexts.append(context)
        return objective(context)

    for client in clients:
        train_client(scratch, sent, client, {}, Using(factory), SPEC, round=1, seed=0)
    return sent, contexts


class AtOnce(LocalObjective):
    def __init__(self, context):
        super().__init__(context)
        assert context.anchor is context.anchor


class InTheMidst(LocalObjective):
    steps = 0

    def correct_gradients(self):
        self.steps += 1
        if self.steps == 3:
            assert self.context.anchor is self.context.anchor


class Late(LocalObjective):
    def finish(self, num_steps):
        assert self.context.anchor is self.context.anchor
        return super().finish(num_steps)


@pytest.mark.parametrize("objective", [AtOnce, InTheMidst, Late])
def test_the_anchor_is_the_received_model_whenever_it_is_first_asked_for(objective, clients):
    sent, contexts = contexts_of(clients, objective)
    received = sent.parameters | sent.buffers
    assert len(contexts) == len(clients)
    for context in contexts:
        anchor = context.anchor.state_dict()
        assert anchor.keys() == received.keys()
        assert all(torch.equal(anchor[name], received[name]) for name in anchor)
        assert not any(parameter.requires_grad for parameter in context.anchor.parameters())
        assert not any(part.training for part in context.anchor.modules())
    trained = contexts[-1].model.state_dict()
    changed = {name for name in trained if not torch.equal(trained[name], received[name])}
    assert {"head.weight", "backbone.model.2.running_mean", "backbone.model.2.num_batches_tracked"} <= changed


def test_an_anchor_shares_nothing_with_the_model_in_training(clients):
    _, (context, *_) = contexts_of(clients[:1], LocalObjective)
    anchor, model = context.anchor.state_dict(keep_vars=True), context.model.state_dict(keep_vars=True)
    assert not {t.data_ptr() for t in anchor.values()} & {t.data_ptr() for t in model.values()}
    assert not {t.data_ptr() for t in anchor.values()} & {t.data_ptr() for t in context.received.values()}
    assert all(parameter.requires_grad for parameter in context.model.parameters())


def test_label_counts_are_the_clients_own(clients):
    lacking = replace(clients[2], indices=clients[2].indices[clients[2].data.samples.labels[clients[2].indices] != 2])
    for client in (*clients, lacking):
        _, (context,) = contexts_of([client], LocalObjective)
        labels = [int(client.data.samples.labels[index]) for index in client.indices]
        assert context.labels.tolist() == labels
        assert context.label_counts.tolist() == [labels.count(label) for label in range(NUM_CLASSES)]
    assert context.label_counts[2] == 0
