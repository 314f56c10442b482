"""The product beside the plain implementation: the same clients, batches and cohorts."""

import torch

from ccvr.algorithms.spec import TrainingSpec
from ccvr.core.seeds import stream
from ccvr.data.batches import epoch
from ccvr.training.client_state import ClientStates
from ccvr.training.rounds import ServerPart, draw_cohorts, federate
from tests.algorithms import plain
from tests.algorithms.small import small_model

BASE = TrainingSpec(rounds=3, local_epochs=2, batch_size=4, lr=0.05, momentum=0.9, weight_decay=1e-3)
SEED = 5
NAMES = {"backbone.model.1.weight": "W1", "backbone.model.1.bias": "b1", "head.weight": "W2", "head.bias": "b2"}


def named(state, names=NAMES):
    """Tensors by the names of the plain implementation."""
    return {names[name]: value for name, value in state.items()}


def epochs_of(clients, spec):
    """The batches of each local epoch of a client in a round, as the product draws them."""
    normalize = small_model().normalize

    def epochs(client, number):
        rng = stream(SEED, "batches", client=client, round=number)
        for _ in range(spec.local_epochs):
            batches = epoch(clients[client].data, clients[client].indices, spec.batch_size, rng=rng)
            yield [(normalize(crops.images).flatten(1), labels) for crops, labels in batches]

    return epochs


def require_equal(spec, clients, folder, rule=None, server=None, *, unlabelled=None, build=small_model, names=NAMES):
    """Every round of the product ends in the plain implementation's weights, to 1e-9. Returns the product's states."""
    model = build(clsnorm=spec.clsnorm)
    start = named({name: value.detach().clone() for name, value in model.named_parameters()}, names)
    sizes, cohorts = [len(client.indices) for client in clients], draw_cohorts(len(clients), spec, seed=SEED)
    expected = list(plain.federate(start, sizes, epochs_of(clients, spec), cohorts, spec, rule, server))
    states = ClientStates(folder)
    found = list(federate(model, clients, spec, seed=SEED, states=states, server=ServerPart(unlabelled)))
    assert len(found) == len(expected) == spec.rounds
    for state, theirs in zip(found, expected, strict=True):
        ours = named(state.parameters, names)
        assert ours.keys() == theirs.keys()
        for name in ours:
            torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=1e-9)
    return found
