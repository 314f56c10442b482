"""The client's side of the stage: a ClientApp that answers questions about the server's model."""

from collections.abc import Callable
from functools import wraps

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from ccvr.core.errors import CcvrError, FederationError
from ccvr.flower.messages import ERROR, pack
from ccvr.flower.protection import protection_of
from ccvr.flower.questions import SCORES, STATISTICS, answer_scores, answer_statistics, require_count
from ccvr.statistics.collect import Batches

Load = Callable[[Context], tuple[nn.Module, Batches] | tuple[nn.Module, Batches, Batches]]


def register(app: ClientApp, load: Load, *, min_count: int = 8, unprotected: bool = False) -> None:
    """Let ``app`` answer ``ccvr.flower.calibrate``.

    ``load(context)`` gives a model, whose weights are replaced by the server's, batches (inputs, labels [B]) of this
    client's training data and, for a validation, batches that entered neither training nor statistics. Classes of fewer
    than ``min_count`` samples are withheld, of either, whatever the server asks for. ``unprotected`` lets answers go
    out although the app has mods that may protect its training, say by secure aggregation, and do not cover them.
    """
    require_count("min_count", min_count)

    def loaded(context: Context) -> tuple[nn.Module, Batches, Batches]:
        if not unprotected:
            _require_no_protection(app, context)
        found = load(context)
        if not isinstance(found, tuple | list) or len(found) not in (2, 3):
            raise FederationError(
                f"this client's load() gives {_described(found)}; let it give its model, batches, and held-out batches "
                "if it has some."
            )
        model, batches, held_out = (*found, ())[:3]
        return model, batches, held_out

    @app.query(STATISTICS)
    @answering
    def statistics(message: Message, context: Context) -> RecordDict:
        model, batches, _ = loaded(context)
        return answer_statistics(model, batches, message.content, min_count=min_count)

    @app.query(SCORES)
    @answering
    def scores(message: Message, context: Context) -> RecordDict:
        model, _, held_out = loaded(context)
        return answer_scores(model, held_out, message.content, min_count=min_count)


def _described(found: object) -> str:
    return f"{len(found)} things" if isinstance(found, tuple | list) else f"one {type(found).__name__}"


def answering(answer: Callable[[Message, Context], RecordDict]) -> Callable[[Message, Context], Message]:
    """A handler that replies with what ``answer`` gives, or with its mistake in one line."""

    @wraps(answer)
    def handler(message: Message, context: Context) -> Message:
        try:
            content = answer(message, context)
        except CcvrError as error:
            content = pack({}, **{ERROR: str(error)})
        return Message(content, reply_to=message)

    return handler


def _require_no_protection(app: ClientApp, context: Context) -> None:
    """Refuse to send what looks protected and is not."""
    if (mod := protection_of(app, context)) is not None:
        raise FederationError(
            f"this client has the mod {mod}, which may protect its training and need not cover queries: its answer "
            "could travel unprotected. If it may, say so in its app: register(…, unprotected=True)."
        )
