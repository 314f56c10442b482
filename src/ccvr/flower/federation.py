"""Questions to the clients that a grid reaches: answers as they come, a quorum, a time limit, names of the missing."""

import contextlib
import math
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import httpx
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
TURN = 1 / 4
"""Part of the time after which a client that has not answered gives its place to the next one that is asked."""
MOST_LETTERS = 300
"""Of what somebody else wrote."""
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
    """Part of the clients that must answer."""
    timeout: float = 3600.0
    """Seconds until nobody is waited for any more; what we compute with their answers does not count."""
    absent: int = 0
    """Clients that should be there as well, and have no number because they never came."""
    missing: dict[str, dict[int, str]] = field(default_factory=dict)
    """By question, who did not answer it, and why."""
    without_samples: set[int] = field(default_factory=set)
    """Who answered that it has nothing to send."""
    about: str = ""
    """Ends each question, to tell it apart from others of the same words."""

    def reasons(self) -> dict[int, str]:
        """Who was missing in any exchange: in which, and why."""
        found: dict[int, str] = {}
        for question, silent in self.missing.items():
            for client, reason in silent.items():
                before = f"{found[client]}; " if client in found else ""
                found[client] = f"{before}{question}: {reason.rstrip('.')}"
        return found

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
        quorum is an error, after the last answer. ``at_once`` many are asked, then one for each that answers or has
        had its turn: silent ones hold nobody up for long, and no more than a few times as many questions are open.
        """
        question, missing, clock = question + self.about, dict[int, str](), _Clock()
        self.missing.setdefault(question, {})
        for client, answer in self._answers(message_type, contents, clock, in_order=in_order, at_once=at_once):
            try:
                if isinstance(answer, str):
                    missing[client] = answer
                else:
                    _require_no_error(answer)
                    with clock.standing():
                        yield read(client, answer)
            except CcvrError as error:
                missing[client] = _one_line(str(error))
            self.missing[question] |= missing  # who was missing when the same was asked before stays there
        number, answered = len(contents) + self.absent, len(contents) - len(missing)
        needed = needed_of(number, self.quorum)
        if answered < needed:
            raise FederationError(
                f"{answered} of {number} clients answered {question}, where {needed} are needed. "
                f"Missing: {listed(missing, absent=self.absent)}. Bring them back and try again, or lower the quorum."
            )

    def _answers(
        self, message_type: str, contents: Mapping[int, RecordDict], clock: "_Clock", *, in_order: bool, at_once: int
    ) -> Iterator[tuple[int, RecordDict | str]]:
        """Each client with its content, or with the reason why there is none."""
        todo, waiting, pulls = deque[int](), dict[int, _Open](), dict[int, _Pull]()
        for client in contents:
            if self.nodes[client] is None:
                yield client, "there is not one SuperNode that says it is this client"
            else:
                todo.append(client)
        while todo or waiting:
            spent, came = clock.seconds, False
            places = at_once - sum(spent - question.asked < TURN * self.timeout for question in waiting.values())
            for client in [todo.popleft() for _ in range(min(places, len(todo)) if spent < self.timeout else 0)]:
                if number := self._push(client, message_type, contents[client]):
                    waiting[client] = _Open(number, spent)
                else:
                    yield client, "the message could not be sent"
            for client in list(waiting)[: 1 if in_order and spent < self.timeout else None]:
                pull = pulls.get(client) or pulls.setdefault(client, _Pull(self.grid, waiting[client].number))
                if pull.ends_within(min(PATIENCE, self.timeout + PATIENCE - clock.seconds)):
                    del pulls[client]
                    if (answer := pull.answer()) is not None:
                        del waiting[client]
                        yield client, answer
                        came = True
            if spent >= self.timeout and not (pulls and clock.seconds < self.timeout + PATIENCE):
                break
            if not came:
                time.sleep(INTERVAL)
        for client in waiting:
            on_its_way = "its answer was still on the way when the time was over"
            yield client, on_its_way if client in pulls else f"no answer within {self.timeout:g} seconds"
        for client in todo:
            yield client, f"others kept their places for {self.timeout:g} seconds, and it was not asked"

    def _push(self, client: int, message_type: str, content: RecordDict) -> str | None:
        """The number of the message that was sent, if it was.

        One message at a time: Flower leaves out those that it cannot send, and does not say which. They live longer
        than we wait, so that what is on its way when the time is over can still arrive.
        """
        node = self.nodes[client]
        assert node is not None
        message = Message(content, node, message_type, ttl=self.timeout + 2 * PATIENCE)
        with _reaching():
            return next(iter(self.grid.push_messages([message])), None)


@dataclass(frozen=True)
class _Open:
    """A question that was sent."""

    number: str
    """Of Flower's message."""
    asked: float
    """When, by the clock of its exchange."""


class _Clock:
    """Seconds of an exchange; it stands still while we compute: clients are not to blame for that."""

    def __init__(self) -> None:
        self._before, self._since = 0.0, time.monotonic()

    @property
    def seconds(self) -> float:
        return self._before + time.monotonic() - self._since

    @contextlib.contextmanager
    def standing(self) -> Iterator[None]:
        now = self.seconds
        try:
            yield
        finally:
            self._before, self._since = now, time.monotonic()


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
            with _reaching():
                raise found
        return _why(found.error) if found.has_error() else found.content


@contextlib.contextmanager
def _reaching() -> Iterator[None]:
    """A network that fails is nobody's fault, and no reason for a traceback."""
    try:
        yield
    except (ConnectionError, httpx.HTTPError) as error:
        said = _one_line(str(error))
        raise FederationError(
            f"the SuperLink does not answer any more ({said}). Bring it back and try again."
        ) from error


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
    text = text.rpartition("occurred. Message: ")[2][: 10 * MOST_LETTERS]  # what follows takes squares of its time
    text = re.sub(r"^<class '(?:[\w.]*\.)?(\w+)[^>]*>:<'", r"\1: ", text).removesuffix("'>")
    return _one_line(text.strip().partition("\n")[0])


def _one_line(text: str) -> str:
    """What somebody else wrote, without line ends and other signs that do something to a terminal."""
    printable = "".join(letter if letter.isprintable() else " " for letter in text[:10_000])
    return " ".join(printable.split())[:MOST_LETTERS]


def needed_of(number: int, quorum: float) -> int:
    """How many of so many clients a quorum is; nobody is none."""
    return max(1, math.ceil(quorum * number - 1e-9))


def listed(missing: Mapping[int, str] | Mapping[str, str], most: int = 5, *, absent: int = 0) -> str:
    """Who is missing, and why, in one line; and how many more never came."""
    named = [f"client {client} ({reason.rstrip('.')})" for client, reason in list(missing.items())[:most]]
    more = [f"and {len(missing) - most} more"] if len(missing) > most else []
    never = [f"{absent} not connected"] if absent else []
    return ", ".join([*named, *more, *never]) or "nobody"


def connected(grid: Grid, number: int, timeout: float, *, enough: int | None = None) -> list[int]:
    """Flower's nodes, as soon as there are ``number`` of them.

    Once there are ``enough``, the others have PATIENCE left to come.
    """
    enough, deadline, patience = enough or number, time.monotonic() + timeout, math.inf
    while len(nodes := _nodes(grid)) < number:
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


def _nodes(grid: Grid) -> list[int]:
    with _reaching():
        return list(grid.get_node_ids())
