"""The client's side of the stage: a ClientApp that answers questions about the server's model."""

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.client.mod import make_ffn, secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import arrays_size_mod, message_size_mod
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_STATE
from torch import nn

from ccvr.core.errors import CcvrError, FederationError
from ccvr.flower.messages import ERROR, pack
from ccvr.flower.questions import SCORES, STATISTICS, answer_scores, answer_statistics, require_count, trusts_server
from ccvr.statistics.collect import Batches

HARMLESS = (arrays_size_mod, message_size_mod)
"""Flower's mods that protect nothing."""
AROUND = make_ffn(lambda message, context: message, [message_size_mod]).__code__
"""The code that Flower puts around a function, once for each mod; a copy of it in the processes of a simulation."""
Load = Callable[[Context], tuple[nn.Module, Batches] | tuple[nn.Module, Batches, Batches]]


def register(app: ClientApp, load: Load, *, min_count: int = 8, unprotected: bool = False, trust: bool = False) -> None:
    """Let ``app`` answer ``ccvr.flower.calibrate``.

    ``load(context)`` gives a model, whose weights are replaced by the server's, batches (inputs, labels [B]) of this
    client's training data and, for a validation, batches that entered neither training nor statistics. Classes of fewer
    than ``min_count`` samples are withheld, of either, whatever the server asks for. ``unprotected`` lets answers go
    out although the app has mods that may protect its training, say by secure aggregation, and do not cover them.
    ``trust`` lets the server name a kind of statistics that is not ours, as ``package.module:name``, which is imported.
    """
    require_count("min_count", min_count)

    def loaded(context: Context) -> tuple[nn.Module, Batches, Batches]:
        if not unprotected:
            _require_no_protection(app, context)
        found = load(context)
        if not isinstance(found, tuple | list) or len(found) not in (2, 3):
            kind = f"{len(found)} things" if isinstance(found, tuple | list) else f"one {type(found).__name__}"
            raise FederationError(
                f"this client's load() gives {kind}; let it give its model, batches, and held-out batches "
                "if it has some."
            )
        model, batches, held_out = (*found, ())[:3]
        return model, batches, held_out

    @app.query(STATISTICS)
    @answering
    def statistics(message: Message, context: Context) -> RecordDict:
        model, batches, _ = loaded(context)
        return answer_statistics(model, batches, message.content, min_count=min_count, trust=trust or trusts_server())

    @app.query(SCORES)
    @answering
    def scores(message: Message, context: Context) -> RecordDict:
        model, _, held_out = loaded(context)
        return answer_scores(model, held_out, message.content, min_count=min_count)


def answering(answer: Callable[[Message, Context], RecordDict]) -> Callable[[Message, Context], Message]:
    """A handler that replies with what ``answer`` returns, or with its error in one line."""

    @wraps(answer)
    def handler(message: Message, context: Context) -> Message:
        try:
            content = answer(message, context)
        except CcvrError as error:
            content = pack({}, **{ERROR: str(error)})
        return Message(content, reply_to=message)

    return handler


def _require_no_protection(app: ClientApp, context: Context) -> None:
    """Refuse to send an answer that only seems protected: Flower's mods that mask or add noise cover training alone.

    A mod that is not known to be harmless may protect, because what it wraps cannot be seen. Keys in the client's state
    show that a training of this Flower run was masked, by whatever code.
    """
    mods = [mod for mod in (*app._mods, *_function_mods(app)) if not any(mod is each for each in HARMLESS)]
    mods += [secaggplus_mod] if RECORD_KEY_STATE in context.state else []
    if mods:
        raise FederationError(
            f"this client has the mod {getattr(mods[0], '__name__', type(mods[0]).__name__)}, which may protect its "
            "training and need not cover queries: its answer could travel unprotected. If it may, say so in its app: "
            "register(…, unprotected=True)."
        )


def _function_mods(app: ClientApp) -> Iterator[Any]:
    """Mods of single functions: Flower keeps them only in the closures that it puts around a function."""
    function: Any
    for function in app._registered_funcs.values():
        while getattr(function, "__code__", None) == AROUND:
            held = dict(zip(AROUND.co_freevars, function.__closure__, strict=True))
            yield held["_mod"].cell_contents
            function = held["_ffn"].cell_contents
