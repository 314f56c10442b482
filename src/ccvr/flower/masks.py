"""Whether a client masks what it sends in training with Flower's secure aggregation, however that is wrapped."""

import contextlib
import gc
import sys
from collections import deque
from collections.abc import Iterator
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any
from weakref import ProxyTypes, ref

import numpy as np
import torch
from flwr.app import RecordDict
from flwr.clientapp import ClientApp
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_STATE

from ccvr.core.errors import FederationError

SECURE_AGGREGATION = "flwr.client.mod.secure_aggregation"
"""Where Flower's mods are that mask what clients send: in training. Queries pass through them as they are."""
LIBRARIES = {*sys.stdlib_module_names, "ccvr", "flwr", "numpy", "torch"}
"""Packages whose code names no mod."""
DATA = (str, bytes, bytearray, int, float, complex, bool, type(None), torch.Tensor, torch.nn.Parameter, np.ndarray)
"""Types whose own objects hold no mods; those of classes made from them may."""
CONTAINERS = (list, tuple, set, frozenset, deque, dict)
MOST_ITEMS = 100
"""Of a list that may hold mods; longer ones are data."""
MOST_OBJECTS = 500_000
"""Of those that mods and functions lead to."""
REMEDY = "If its answers may travel unmasked, say so in its app: register(…, unmasked=True)."


def mask_in(state: RecordDict) -> str | None:
    """The mod that has masked a training of this client: it keeps its keys in the state."""
    return "secaggplus_mod" if RECORD_KEY_STATE in state else None


def mask_of(app: ClientApp) -> str | None:
    """The name of the mod that masks, if the app's mods and functions, or what these hold and call, lead to one.

    Mods of single functions are only in the closures around them. Nothing is called, so what a mod imports under a name
    that it makes when it runs is not found.
    """
    waiting, seen = deque[Any]([*app._mods, *app._registered_funcs.values()]), dict[int, Any]()
    while waiting:
        if len(seen) > MOST_OBJECTS:
            raise FederationError(
                f"this client's mods and functions lead to more than {MOST_OBJECTS:,} objects, too many to tell "
                f"whether secure aggregation is among them. {REMEDY}"
            )
        thing = waiting.popleft()
        if id(thing) in seen or type(thing) in DATA:
            continue
        seen[id(thing)] = thing  # held, so that nothing else gets its id
        if _is(thing, FunctionType) and (thing.__module__ or "").startswith(SECURE_AGGREGATION):
            return str(thing.__name__)
        waiting.extend(_reached(thing))
    return None


def _is(thing: Any, *kinds: type) -> bool:
    """Whether it is of one of these types, without a word to the thing itself: it may be a stand-in that answers."""
    return issubclass(type(thing), kinds)


def _reached(thing: Any) -> Iterator[Any]:
    """What a thing holds, and what its code and that of its class names."""
    if _is(thing, FunctionType):
        yield from _of_function(thing)
    elif _is(thing, type):
        own = partial(type.__getattribute__, thing)  # a metaclass may answer otherwise
        if not _is_library(own("__module__")):
            yield from (type(thing), *own("__dict__").values(), *own("__bases__"))
    elif _is(thing, ref):
        yield ref.__call__(thing)
    elif _is(thing, *ProxyTypes):
        with contextlib.suppress(Exception):  # of what it stands for, if that is there
            yield thing.__init__.__self__
    elif not _is(thing, ModuleType):
        yield type(thing)
        with contextlib.suppress(AttributeError):
            yield from object.__getattribute__(thing, "__dict__").values()
        if not any(_is(thing, kind) and kind.__len__(thing) > MOST_ITEMS for kind in CONTAINERS):
            yield from gc.get_referents(thing)  # slots, items, parts of a partial


def _of_function(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # a variable that was never set
            continue
    yield from (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), *vars(function).values())
    if not _is_library(function.__globals__.get("__name__")):
        yield from _named(function)


def _named(function: FunctionType) -> Iterator[Any]:
    """The globals and imported modules that a function's code names; of modules the members that it names as well."""
    names, known = set(_names(function.__code__)), function.__globals__
    found = deque[Any]([*(known.get(name) for name in names), *(sys.modules.get(name) for name in names)])
    modules = set[str]()
    while found:
        value = found.popleft()
        if not _is(value, ModuleType):
            yield value
        elif value.__name__ not in modules:
            modules.add(value.__name__)
            found.extend(vars(value).get(name) for name in names)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _is_library(module: Any) -> bool:
    """Whether its code names no mod; some C classes have no name there but a descriptor."""
    return _is(module, str) and module.partition(".")[0] in LIBRARIES
