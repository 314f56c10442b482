"""Events of a run as lines of Flower's log: as JSON for `ccvr run`, which shows them as its own, or in words."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import get_args

from ccvr.core.errors import CcvrError, FederationError
from ccvr.experiment.events import ClientsAbsent, ClientScored, Event, Finished, HeadScored, Noted, RoundDone, Started
from ccvr.flower.federation import listed

MARK = "ccvr: "
"""Begins our lines for people in Flower's log; a user's model may print the same."""
EVENTS: dict[str, type[Event]] = {each.__name__: each for each in get_args(Event)}


def _below(kind: type[CcvrError]) -> Iterator[type[CcvrError]]:
    for child in kind.__subclasses__():
        yield child
        yield from _below(child)


ERRORS = {kind.__name__: kind for kind in _below(CcvrError)}


def as_json(what: Event | CcvrError) -> str:
    if isinstance(what, CcvrError):
        return json.dumps({"error": type(what).__name__, "text": str(what)})
    return json.dumps({"event": type(what).__name__, **asdict(what)})


def event_of(line: str, token: str) -> Event | CcvrError | None:
    """The event or the error behind a run's own token; None in a line of Flower's or of a user's model.

    Wherever in the line it stands: what others print before it need not end with a newline.
    """
    _, found, text = line.partition(f"{token} ")
    if not token or not found:
        return None
    try:
        fields, _ = json.JSONDecoder().raw_decode(text)
        if "error" in fields:
            return ERRORS.get(fields["error"], FederationError)(fields["text"])
        return EVENTS[fields.pop("event")](**fields)
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


def in_words(what: Event | CcvrError, path: Path) -> str:
    match what:
        case Noted():
            return what.text
        case Started():
            return f"{len(what.label_counts)} clients, {what.rounds - what.round} rounds"
        case RoundDone():
            score = "" if what.accuracy is None else f"accuracy {what.accuracy:.2f} %, "
            return f"round {what.round}/{what.rounds}: {score}loss {what.loss:.3f}, {what.seconds:.1f} s"
        case HeadScored():
            return f"{what.label}: accuracy {what.accuracy:.2f} %"
        case ClientScored():
            return f"{what.label}: client {what.done}/{what.clients}"
        case ClientsAbsent():
            return f"{what.question}: missing {listed(what.clients)}"
        case Finished():
            return f"finished, see it with: ccvr show {path.absolute()}"
        case CcvrError():
            return f"{type(what).__name__}: {what}"
