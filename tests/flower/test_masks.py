"""Statistics must not look protected where they are not: secure aggregation, however it is wrapped."""

import functools

import pytest
from flwr.app import ConfigRecord
from flwr.client.mod import arrays_size_mod, message_size_mod, secagg_mod, secaggplus_mod
from flwr.client.mod.secure_aggregation.secaggplus_mod import SecAggPlusState
from flwr.clientapp.mod import LocalDpMod
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_STATE

import ccvr
import ccvr.flower
from ccvr.core.errors import FederationError
from tests.flower.loopback import Loopback
from tests.flower.small import EXAMPLE, app_of, batches_of, grid_of, small_model

pytestmark = pytest.mark.flower


def noise():
    return LocalDpMod(clipping_norm=1.0, sensitivity=1.0, epsilon=1.0, delta=1e-5)


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


MASKS = {
    "secaggplus_mod": secaggplus_mod,
    "secagg_mod": secagg_mod,
}
WRAPPED = {
    "inner": wrapped(secaggplus_mod),
    "partial": functools.partial(secaggplus_mod),
    "Holds": Holds(mod=secaggplus_mod),
    "harmless": harmless,
}


def app_with(mod, where):
    app = app_of(mods=[mod] if where == "app" else None, unmasked=False)

    @app.train(mods=[message_size_mod, mod] if where == "train" else None)
    def train(message, context):
        raise NotImplementedError

    return app


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("where", ["app", "train"])
def test_statistics_must_not_look_protected(name, where):
    """Flower's secure aggregation covers training alone; a client that uses it refuses, and the server reads why."""
    app = app_with(MASKS[name], where)
    with pytest.raises(
        FederationError, match=rf"client masks its training with {name}, .*register\(…, unmasked=True\)"
    ):
        ccvr.flower.calibrate(Loopback(app, 2), small_model(), EXAMPLE, "lda")


@pytest.mark.parametrize("name", WRAPPED)
@pytest.mark.parametrize("where", ["app", "train"])
def test_a_mod_that_nobody_knows_may_be_a_mask(name, where):
    app = app_with(WRAPPED[name], where)
    with pytest.raises(
        FederationError, match=rf"has a mod, {name}, that is not Flower's .*register\(…, unmasked=True\)"
    ):
        ccvr.flower.calibrate(Loopback(app, 2), small_model(), EXAMPLE, "lda")


def test_a_training_that_was_masked_is_remembered():
    """However the mod was hidden: its keys are in the node's state."""
    grid = grid_of(2)
    grid.contexts[100].state[RECORD_KEY_STATE] = ConfigRecord(SecAggPlusState().to_dict())
    found = ccvr.flower.calibrate(grid, small_model(), EXAMPLE, "lda")
    assert "masks its training with secaggplus_mod" in found.missing[100]


@pytest.mark.parametrize("where", ["app", "train"])
def test_mods_of_flower_that_mask_nothing_do_no_harm(where):
    grid = Loopback(app_with(arrays_size_mod, where), 2)
    assert ccvr.flower.calibrate(grid, small_model(), EXAMPLE, "lda").missing == {}


def test_noise_in_training_alone_does_no_harm():
    grid = Loopback(app_with(noise(), "train"), 2)
    assert ccvr.flower.calibrate(grid, small_model(), EXAMPLE, "lda").missing == {}


def test_who_says_so_may_send_unmasked():
    """And then it is unmasked: the very bytes are in the answer."""
    grid = grid_of(1, mods=[secaggplus_mod], unmasked=True)
    ccvr.flower.calibrate(grid, small_model(), EXAMPLE, "lda")
    answer = grid.app(grid.sent[0], grid.contexts[100])
    expected = ccvr.collect(small_model(), batches_of(0), num_classes=4, kind="pooled").to_bytes()
    assert answer.content["ccvr.blobs"]["statistics"].data == expected


def test_noise_of_a_mod_is_an_error_and_no_spoilt_statistics():
    grid = Loopback(app_with(noise(), "app"), 2)
    with pytest.raises(FederationError, match="0 of 2 clients answered"):
        ccvr.flower.calibrate(grid, small_model(), EXAMPLE, "lda")
