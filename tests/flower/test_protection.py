"""Answers must not look protected where they are not: secure aggregation and noise cover training alone."""

import functools
import re

import flwr.client.mod
import flwr.clientapp.mod
import pytest
import ray.cloudpickle as cloudpickle
from flwr.app import ConfigRecord, Message
from flwr.client.mod import arrays_size_mod, message_size_mod, secaggplus_mod
from flwr.client.mod.secure_aggregation.secaggplus_mod import SecAggPlusState
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_STATE

import ccvr
import ccvr.flower
from ccvr.core.errors import FederationError
from ccvr.flower.messages import pack
from ccvr.flower.questions import SCORES
from tests.flower.loopback import Loopback
from tests.flower.small import EXAMPLE, app_of, batches_of, grid_of, small_model

pytestmark = pytest.mark.flower


def harmless(message, context, call_next):
    return call_next(message, context)


def wrapped(mod):
    def inner(message, context, call_next):
        return mod(message, context, call_next)

    return inner


class Holds(dict):
    """As awkward as a callable can be: no hash, no name of its own."""

    def __call__(self, message, context, call_next):
        return self["mod"](message, context, call_next)


NOISE = {"clipping_norm": 1.0, "sensitivity": 1.0, "epsilon": 1.0, "delta": 1e-5}
NEWER = {
    "LocalDpMod": flwr.clientapp.mod.LocalDpMod(**NOISE),
    "fixedclipping_mod": flwr.clientapp.mod.fixedclipping_mod,
    "adaptiveclipping_mod": flwr.clientapp.mod.adaptiveclipping_mod,
}
"""These read every answer that passes, whatever the question."""
PASSING = [
    ("secaggplus_mod", secaggplus_mod),
    ("secagg_mod", flwr.client.mod.secagg_mod),
    ("LocalDpMod", flwr.client.mod.LocalDpMod(**NOISE)),
    ("fixedclipping_mod", flwr.client.mod.fixedclipping_mod),
    ("adaptiveclipping_mod", flwr.client.mod.adaptiveclipping_mod),
    ("inner", wrapped(secaggplus_mod)),
    ("partial", functools.partial(secaggplus_mod)),
    ("Holds", Holds(mod=secaggplus_mod)),
    ("harmless", harmless),
]
"""Queries pass through these as they are; what one of the last holds, nobody can see."""


def app_with(mod, where, **options):
    app = app_of(mods=[mod] if where == "app" else None, **{"unprotected": False} | options)

    @app.train(mods=[message_size_mod, mod] if where == "train" else None)
    def train(message, context):
        raise NotImplementedError

    return app


def refusal(name):
    return rf"this client has the mod {name}, which may protect its training .*register\(…, unprotected=True\)"


@pytest.mark.parametrize(("name", "mod"), PASSING)
@pytest.mark.parametrize("where", ["app", "train"])
def test_statistics_must_not_look_protected(name, mod, where):
    """Flower's protection covers training alone; a client that has some refuses, and the server reads why."""
    with pytest.raises(FederationError, match=refusal(name)):
        ccvr.flower.calibrate(Loopback(app_with(mod, where), 2), small_model(), EXAMPLE, "lda")


@pytest.mark.parametrize("where", ["app", "train"])
def test_protection_is_seen_in_the_processes_of_a_simulation(where):
    """They have a copy of the app, which came through Ray's pickle."""
    app = cloudpickle.loads(cloudpickle.dumps(app_with(secaggplus_mod, where)))
    with pytest.raises(FederationError, match=refusal("secaggplus_mod")):
        ccvr.flower.calibrate(Loopback(app, 2), small_model(), EXAMPLE, "lda")


@pytest.mark.parametrize("name", NEWER)
def test_protection_of_training_alone_is_seen(name):
    with pytest.raises(FederationError, match=refusal(name)):
        ccvr.flower.calibrate(Loopback(app_with(NEWER[name], "train"), 2), small_model(), EXAMPLE, "lda")


@pytest.mark.parametrize("name", NEWER)
def test_noise_of_a_mod_is_an_error_and_no_spoilt_statistics(name):
    grid = Loopback(app_with(NEWER[name], "app", unprotected=True), 2)
    with pytest.raises(FederationError, match="0 of 2 clients answered"):
        ccvr.flower.calibrate(grid, small_model(), EXAMPLE, "lda")


def test_scores_must_not_look_protected_either():
    message = Message(pack({"state": b""}), 100, f"query.{SCORES}")
    grid = Loopback(app_with(secaggplus_mod, "app"), 1)
    (answer,) = grid.pull_messages(grid.push_messages([message]))
    assert re.search(refusal("secaggplus_mod"), answer.content["ccvr.settings"]["error"])


def test_a_training_that_was_masked_is_remembered():
    """However the mod was hidden: its keys are in the node's state."""
    grid = grid_of(2)
    grid.contexts[100].state[RECORD_KEY_STATE] = ConfigRecord(SecAggPlusState().to_dict())
    found = ccvr.flower.calibrate(grid, small_model(), EXAMPLE, "lda")
    assert re.search(refusal("secaggplus_mod"), found.absent[100])


@pytest.mark.parametrize("where", ["app", "train"])
@pytest.mark.parametrize("mod", [arrays_size_mod, message_size_mod])
def test_mods_that_protect_nothing_do_no_harm(mod, where):
    found = ccvr.flower.calibrate(Loopback(app_with(mod, where), 2), small_model(), EXAMPLE, "lda")
    assert found.absent == {}


def test_who_says_so_may_send_unprotected():
    """And then it is unprotected: the very bytes are in the answer."""
    grid = grid_of(1, mods=[secaggplus_mod], unprotected=True)
    ccvr.flower.calibrate(grid, small_model(), EXAMPLE, "lda")
    answer = grid.app(grid.sent[0], grid.contexts[100])
    expected = ccvr.collect(small_model(), batches_of(0), num_classes=4, kind="pooled").to_bytes()
    assert answer.content["ccvr.blobs"]["statistics"].data == expected
