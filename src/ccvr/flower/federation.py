"""Questions to the clients that a grid reaches: answers as they come, a quorum, a time limit, names of the missing."""

import math
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from flwr.app import Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError

from ccvr.core.errors import CcvrError, FederationError
from ccvr.flower.messages import ERROR, SETTINGS

INTERVAL = 0.2
"""Seconds between two looks at what has come."""
PATIENCE = 60.0
"""Seconds that the others wait while one answer arrives; as long may what is on its way when the time is over."""
UNREADABLE = (LookupError, TypeError, ValueError, AttributeError, RecursionError, DecodeError)
"""What Flower raises over a message that no honest client sends."""
FLOWERS_WORDS = {
    ErrorCode.NODE_UNAVAILABLE: "it is not connected",
    ErrorCode.CLIENT_APP_CRASHED: "its process died",
    ErrorCode.MESSAGE_UNAVAILABLE: "its answer did not arrive whole",
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: "its answer came too late",
}
"""Flower's codes whose own words say less."""

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Federation:
    """Clients by number, and what is expected of them."""

    grid: Grid
    nodes: Mapping[int, int | None]
    """Flower's node of each client; None of one that no node says it is."""
    quorum: float = 1.0
    """Part of the clients asked that must answer."""
    timeout: float = 3600.0
    """Seconds until nobody is waited for any more."""
    missing: dict[str, dict[int, str]] = field(default_factory=dict)
    """By question, who did not answer it, and why."""
    without_samples: set[int] = field(default_factory=set)
    """Who answered that it has nothing to send."""
    about: str = ""
    """Ends each question, to tell it apart from others of the same words."""

    def ask(
        self,
        question: str,
        message_type: str,
        contents: Mapping[int, RecordDict],
        read: Callable[[int, RecordDict], Answer],
        *,
        in_order: bool = False,
        at_once: int = 10**6,
    ) -> Iterator[Answer]:
        """Send each client its content and give what ``read`` makes of the answers, one in memory at a time.

        As they come, or in the order of ``contents``. Whoever fails, lies or is silent is missing; fewer than the
        quorum is an error, after the last answer. ``at_once`` many are asked, then one for each that answers; but by
        half of the time everybody is, so that silent ones hold nobody up.
        """
        question, missing = question + self.about, dict[int, str]()
        self.missing.setdefault(question, {})
        for client, answer in self._answers(message_type, contents, in_order=in_order, at_once=at_once):
            try:
                if isinstance(answer, str):
                    missing[client] = answer
                else:
                    _require_no_error(answer)
                    yield read(client, answer)
            except CcvrError as error:
                missing[client] = _one_line(str(error))
            self.missing[question] |= missing  # who was missing when the same was asked before stays there
        needed = math.ceil(self.quorum * len(contents) - 1e-9)
        answered = len(contents) - len(missing)
        if answered < needed or not answered:
            raise FederationError(
                f"{answered} of {len(contents)} clients answered {question}, where {max(needed, 1)} are needed. "
                f"Missing: {listed(missing)}. Bring them back and try again, or lower the quorum."
            )

    def _answers(
        self, message_type: str, contents: Mapping[int, RecordDict], *, in_order: bool, at_once: int
    ) -> Iterator[tuple[int, RecordDict | str]]:
        """Each client with its content, or with the reason why there is none."""
        started = time.monotonic()
        deadline = started + self.timeout
        todo, waiting, pulls = deque(contents), dict[int, str](), dict[int, _Pull]()
        while todo or waiting:
            spent, came = time.monotonic() - started, False
            while todo and len(waiting) < at_once + int(len(contents) * spent / (self.timeout / 2)):
                client = todo.popleft()
                node = self.nodes[client]
                if node is None:
                    yield client, "no SuperNode says that it is this client"
                elif number := self._push(node, message_type, contents[client]):
                    waiting[client] = number
                else:
                    yield client, "the message could not be sent"
            for client in list(waiting)[: 1 if in_order and spent < self.timeout else None]:
                pull = pulls.get(client) or pulls.setdefault(client, _Pull(self.grid, waiting[client]))
                if pull.ends_within(min(PATIENCE, deadline + PATIENCE - time.monotonic())):
                    del pulls[client]
                    if (answer := pull.answer()) is not None:
                        del waiting[client]
                        yield client, answer
                        came = True
            if spent >= self.timeout and not (pulls and time.monotonic() < deadline + PATIENCE):
                break
            if not came:
                time.sleep(INTERVAL)
        for client in waiting:
            on_its_way = "its answer was still on the way when the time was over"
            yield client, on_its_way if client in pulls else f"no answer within {self.timeout:g} seconds"

    def _push(self, node: int, message_type: str, content: RecordDict) -> str | None:
        """The number of the message that was sent, if it was.

        One message at a time: Flower leaves out those that it cannot send, and does not say which. They live longer
        than we wait, so that what is on its way when the time is over can still arrive.
        """
        message = Message(content, node, message_type, ttl=self.timeout + 2 * PATIENCE)
        return next(iter(self.grid.push_messages([message])), None)


class _Pull:
    """A look at whether a message is answered, in a thread: Flower waits two hours for the chunks of an answer."""

    def __init__(self, grid: Grid, message_id: str) -> None:
        self._found: list[Message | BaseException] = []
        self._thread = threading.Thread(target=self._look, args=(grid, message_id), daemon=True)
        self._thread.start()
        self._is_new = True

    def _look(self, grid: Grid, message_id: str) -> None:
        try:
            self._found.extend(grid.pull_messages([message_id]))
        except BaseException as error:  # some of Flower's are no Exception; whoever asks for the answer raises them
            self._found.append(error)

    def ends_within(self, seconds: float) -> bool:
        """Whether the look is over; the first time that is waited for, then the others have their turn."""
        self._thread.join(max(0.0, seconds) if self._is_new else 0.0)
        self._is_new = False
        return not self._thread.is_alive()

    def answer(self) -> RecordDict | str | None:
        """The answer, or why there is none; None as long as it may come."""
        if not self._found:
            return None
        found = self._found[0]
        if isinstance(found, UNREADABLE):
            return f"its message cannot be read ({type(found).__name__})"
        if isinstance(found, BaseException):
            raise found
        return _why(found.error) if found.has_error() else found.content


def _require_no_error(content: RecordDict) -> None:
    """A client of ours says in a setting what went wrong."""
    record = content.config_records.get(SETTINGS)
    if record is not None and ERROR in record:
        raise FederationError(str(record[ERROR]))


def _why(error: Error) -> str:
    """Flower's reason in one line: "<class 'ValueError'>:<'text'>", or Ray's page around it."""
    if error.code in FLOWERS_WORDS:
        return FLOWERS_WORDS[error.code]
    text = re.sub(r"\x1b\[\d*m", "", error.reason or "it failed")
    text = text.rpartition("occurred. Message: ")[2]
    text = re.sub(r"^<class '(?:[\w.]*\.)?(\w+)[^>]*>:<'", r"\1: ", text).removesuffix("'>")
    return _one_line(text.strip().partition("\n")[0])


def _one_line(text: str) -> str:
    """What somebody else wrote, without line ends and other signs that do something to a terminal."""
    printable = "".join(letter if letter.isprintable() else " " for letter in text[:10_000])
    return " ".join(printable.split())[:300]


def listed(missing: Mapping[int, str] | Mapping[str, str], most: int = 5) -> str:
    """Who is missing, and why, in one line."""
    named = [f"client {client} ({reason.rstrip('.')})" for client, reason in list(missing.items())[:most]]
    more = [f"and {len(missing) - most} more"] if len(missing) > most else []
    return ", ".join([*named, *more]) or "nobody"


def connected(grid: Grid, number: int, timeout: float, *, enough: int | None = None) -> list[int]:
    """Flower's nodes, as soon as there are ``number`` of them.

    Once there are ``enough``, the others have PATIENCE left to come.
    """
    enough, deadline, patience = enough or number, time.monotonic() + timeout, math.inf
    while len(nodes := list(grid.get_node_ids())) < number:
        now = time.monotonic()
        patience = min(patience, now + PATIENCE) if len(nodes) >= enough else math.inf
        if now >= min(deadline, patience):
            break
        time.sleep(INTERVAL)
    if len(nodes) < enough:
        needed = f", where {enough} are needed" if enough < number else ""
        raise FederationError(
            f"{len(nodes)} of {number} clients connected within {timeout:g} seconds{needed}. "
            "Start the missing SuperNodes, or allow more time."
        )
    return sorted(nodes)
