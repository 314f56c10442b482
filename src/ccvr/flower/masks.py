"""Whether a client may mask what it sends in training: Flower's secure aggregation, which does not cover queries."""

from collections.abc import Iterator
from typing import Any

import flwr.client.mod
import flwr.clientapp.mod
from flwr.app import Context
from flwr.client.mod.utils import make_ffn
from flwr.clientapp import ClientApp
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_STATE

MASKS = (flwr.client.mod.secagg_mod, flwr.client.mod.secaggplus_mod)
FLOWERS = [getattr(package, name) for package in (flwr.client.mod, flwr.clientapp.mod) for name in package.__all__]
"""All mods that come with Flower: functions, and classes that mods are made of."""
AROUND = make_ffn(lambda message, context: message, [MASKS[0]]).__code__
"""The code that Flower puts around a function, once for each mod."""


def mask_of(app: ClientApp, context: Context) -> str | None:
    """In words, what masks this client's training or may do so; None where nothing can.

    A mod that is not Flower's may be a wrapping of one that masks, so it counts: who knows better can say so. Keys in
    the client's state tell of a training that was masked, however that was done.
    """
    for mod in (*app._mods, *_of_functions(app)):
        if any(mod is mask for mask in MASKS):
            return f"masks its training with {mod.__name__}"
        if not any(mod is known or type(mod) is known for known in FLOWERS):
            return f"has a mod, {_name(mod)}, that is not Flower's and may mask its training"
    return f"masks its training with {MASKS[1].__name__}" if RECORD_KEY_STATE in context.state else None


def _of_functions(app: ClientApp) -> Iterator[Any]:
    """Mods of single functions: Flower keeps them only in the closures that it puts around a function."""
    function: Any
    for function in app._registered_funcs.values():
        while getattr(function, "__code__", None) is AROUND:
            held = dict(zip(AROUND.co_freevars, function.__closure__, strict=True))
            yield held["_mod"].cell_contents
            function = held["_ffn"].cell_contents


def _name(mod: Any) -> str:
    return str(getattr(mod, "__name__", type(mod).__name__))
