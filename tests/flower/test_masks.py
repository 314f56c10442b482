"""Statistics must not look protected where they are not: secure aggregation, however it is wrapped."""

import collections
import functools
import types
import weakref
from dataclasses import dataclass
from typing import NamedTuple

import flwr.client.mod
import numpy as np
import pytest
from flwr.app import ConfigRecord
from flwr.client.mod import secaggplus_mod
from flwr.client.mod.secure_aggregation.secaggplus_mod import SecAggPlusState
from flwr.clientapp.mod import LocalDpMod
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_STATE

import ccvr
import ccvr.flower
from ccvr.core.errors import FederationError
from tests.flower.loopback import Loopback
from tests.flower.small import EXAMPLE, app_of, batches_of, grid_of, small_model

pytestmark = pytest.mark.flower


def wrapped(mod):
    def inner(message, context, call_next):
        return mod(message, context, call_next)

    return inner


@dataclass(slots=True)
class Slotted:
    mod: object

    def __call__(self, message, context, call_next):
        return self.mod(message, context, call_next)


def wrapped_as_a_default(message, context, call_next, mod=secaggplus_mod):
    return mod(message, context, call_next)


def named(message, context, call_next):
    return next(secaggplus_mod(message, context, call_next) for _ in range(1))


def named_in_a_module(message, context, call_next):
    return flwr.client.mod.secaggplus_mod(message, context, call_next)


def imported_when_it_runs(message, context, call_next):
    from flwr.client.mod import secaggplus_mod as mask

    return mask(message, context, call_next)


def elsewhere(function):
    """The function in a module that has not imported the mod itself."""
    return types.FunctionType(function.__code__, {"flwr": flwr, "__name__": "elsewhere"})


def by_another_function(message, context, call_next):
    return named(message, context, call_next)


class Holds:
    def __init__(self, mods):
        self.mods = {"train": mods}

    def __call__(self, message, context, call_next):
        return self.mods["train"][0](message, context, call_next)


class HoldsKeys(Holds):
    def __call__(self, message, context, call_next):
        return next(iter(self.mods["train"]))(message, context, call_next)


class Names:
    def __call__(self, message, context, call_next):
        return self.masked(message, context, call_next)

    @staticmethod
    def masked(message, context, call_next):
        return secaggplus_mod(message, context, call_next)


class NamesLikeItsParent(Names):
    pass


class NamesAsATuple(NamedTuple):
    clip: float = 8.0

    def __call__(self, message, context, call_next):
        return secaggplus_mod(message, context, call_next)


class NamesAsAList(Names, list):
    pass


class HoldsAsADict(dict):
    def __init__(self, mod):
        self.mod = mod

    def __call__(self, message, context, call_next):
        return self.mod(message, context, call_next)


class NamesAsANumber(Names, int):
    pass


class NamesInItsMeta(type):
    def __call__(cls, message, context, call_next):
        return secaggplus_mod(message, context, call_next)


class OfThatMeta(metaclass=NamesInItsMeta):
    pass


KEPT = Holds([secaggplus_mod])


class Weak:
    def __init__(self, get):
        self.get = get
        self.held = get() if isinstance(get, types.FunctionType) else None

    def __call__(self, message, context, call_next):
        return self.get()(message, context, call_next)


def with_attributes(thing):
    vars(thing).update({f"a{number}": number for number in range(150)} | vars(thing))
    return thing


def filled(mapping):
    mapping.update(dict.fromkeys(range(1000)))
    return mapping


MASKS = {
    "the mod": secaggplus_mod,
    "partial": functools.partial(secaggplus_mod),
    "partial of a partial": functools.partial(functools.partial(wrapped(secaggplus_mod))),
    "argument of a partial": functools.partial(wrapped_as_a_default, mod=secaggplus_mod),
    "closure": wrapped(wrapped(secaggplus_mod)),
    "default": wrapped_as_a_default,
    "global name": named,
    "name in a module": elsewhere(named_in_a_module),
    "import": elsewhere(imported_when_it_runs),
    "function that names it": by_another_function,
    "attribute": Holds([secaggplus_mod]),
    "slot": Slotted(secaggplus_mod),
    "bound method": Holds([secaggplus_mod]).__call__,
    "class": Names(),
    "parent class": NamesLikeItsParent(),
    "tuple with a class of its own": NamesAsATuple(),
    "list with a class of its own": NamesAsAList(),
    "long list with a class of its own": NamesAsAList(range(1000)),
    "attribute of a dictionary": HoldsAsADict(secaggplus_mod),
    "attribute of a long dictionary": filled(HoldsAsADict(secaggplus_mod)),
    "number with a class of its own": NamesAsANumber(1),
    "metaclass": OfThatMeta,
    "key": HoldsKeys({secaggplus_mod: 1}),
    "factory": Holds(collections.defaultdict(lambda: secaggplus_mod)),
    "one of many attributes": with_attributes(Holds([secaggplus_mod])),
    "weak reference": Weak(weakref.ref(KEPT)),
    "proxy": Weak(lambda: weakref.proxy(KEPT)),
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("where", ["app", "train"])
def test_statistics_must_not_look_protected(name, where):
    """Flower's secure aggregation covers training alone; a client that uses it refuses, and the server reads why."""
    app = app_of(mods=[MASKS[name]] if where == "app" else None)

    @app.train(mods=[MASKS[name]] if where == "train" else None)
    def train(message, context):
        raise NotImplementedError

    with pytest.raises(FederationError, match=r"masks its training with secaggplus_mod.*register\(…, unmasked=True\)"):
        ccvr.flower.calibrate(Loopback(app, 2), small_model(), EXAMPLE, "lda")


def test_what_cannot_be_looked_through_is_not_taken_for_harmless(monkeypatch):
    monkeypatch.setattr("ccvr.flower.masks.MOST_OBJECTS", 10)
    with pytest.raises(FederationError, match=r"lead to more than 10 objects, too many to tell .*unmasked=True"):
        ccvr.flower.calibrate(grid_of(1), small_model(), EXAMPLE, "lda")


def test_a_training_that_was_masked_is_remembered():
    """However the mod was hidden: its keys are in the node's state."""
    grid = grid_of(2)
    grid.contexts[100].state[RECORD_KEY_STATE] = ConfigRecord(SecAggPlusState().to_dict())
    found = ccvr.flower.calibrate(grid, small_model(), EXAMPLE, "lda")
    assert "masks its training with secaggplus_mod" in found.missing[100]


def test_other_mods_do_no_harm():
    """Also where they come from a module that has the masking ones, and hold much."""

    class Counting:
        def __init__(self):
            self.model, self.data, self.names = small_model(), [object() for _ in range(1000)], {"a": self}

        def __call__(self, message, context, call_next):
            return flwr.client.mod.message_size_mod(message, context, call_next)

    app = app_of(mods=[Counting(), wrapped(flwr.client.mod.message_size_mod)])
    assert ccvr.flower.calibrate(Loopback(app, 2), small_model(), EXAMPLE, "lda").missing == {}


class AnswersEverything:
    """As settings and lazy objects do: it must not be asked."""

    __slots__ = ()

    def __getattr__(self, name):
        raise KeyError(name)

    @property
    def __class__(self):
        raise RuntimeError("not loaded yet")


def test_odd_objects_of_an_app_are_looked_at_from_outside():
    held = AnswersEverything(), weakref.proxy(AnswersNothing()), np.random.default_rng(0), np.random.seed

    def mod(message, context, call_next):
        return call_next(message, context) if held else None

    assert ccvr.flower.calibrate(grid_of(2, mods=[mod]), small_model(), EXAMPLE, "lda").missing == {}


class AnswersNothing:
    pass


def test_a_function_that_calls_itself_hides_no_mask():
    app = app_of()

    def again(message, context):
        return again(message, context)

    app.evaluate()(again)
    app.train(mods=[secaggplus_mod])(again)
    with pytest.raises(FederationError, match="masks its training with secaggplus_mod"):
        ccvr.flower.calibrate(Loopback(app, 2), small_model(), EXAMPLE, "lda")


def test_who_says_so_may_send_unmasked():
    """And then it is unmasked: the very bytes are in the answer."""
    grid = grid_of(1, mods=[secaggplus_mod], unmasked=True)
    ccvr.flower.calibrate(grid, small_model(), EXAMPLE, "lda")
    answer = grid.app(grid.sent[0], grid.contexts[100])
    expected = ccvr.collect(small_model(), batches_of(0), num_classes=4, kind="pooled").to_bytes()
    assert answer.content["ccvr.blobs"]["statistics"].data == expected


def test_noise_of_a_mod_is_an_error_and_no_spoilt_statistics():
    mod = LocalDpMod(clipping_norm=1.0, sensitivity=1.0, epsilon=1.0, delta=1e-5)
    with pytest.raises(FederationError, match="0 of 2 clients answered"):
        ccvr.flower.calibrate(grid_of(2, mods=[mod]), small_model(), EXAMPLE, "lda")
