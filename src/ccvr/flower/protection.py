"""Whether a client protects what it sends in training: Flower's mods that mask or add noise do not cover queries."""

from collections.abc import Iterator
from typing import Any

from flwr.app import Context
from flwr.client.mod import make_ffn, secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import arrays_size_mod, message_size_mod
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_STATE

HARMLESS = (arrays_size_mod, message_size_mod)
"""Flower's mods that protect nothing."""
AROUND = make_ffn(lambda message, context: message, [message_size_mod]).__code__
"""The code that Flower puts around a function, once for each mod; a copy of it in the processes of a simulation."""


def protection_of(app: ClientApp, context: Context) -> str | None:
    """The name of a mod that may protect this client's training; None where there is none.

    Any mod but the harmless may, for what a mod wraps cannot be seen: who knows better can say so. Keys in the client's
    state tell of a training that was masked in this run of Flower's, however that was done.
    """
    for mod in (*app._mods, *_of_functions(app)):
        if not any(mod is harmless for harmless in HARMLESS):
            return str(getattr(mod, "__name__", type(mod).__name__))
    return secaggplus_mod.__name__ if RECORD_KEY_STATE in context.state else None


def _of_functions(app: ClientApp) -> Iterator[Any]:
    """Mods of single functions: Flower keeps them only in the closures that it puts around a function."""
    function: Any
    for function in app._registered_funcs.values():
        while getattr(function, "__code__", None) == AROUND:
            held = dict(zip(AROUND.co_freevars, function.__closure__, strict=True))
            yield held["_mod"].cell_contents
            function = held["_ffn"].cell_contents
