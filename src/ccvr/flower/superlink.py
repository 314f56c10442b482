"""Calls to the SuperLink with a time limit: Flower retries for ever without it, and waits hours for lost chunks."""

import contextlib
import re
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

import httpx
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from ccvr.core.errors import FederationError, LinkFailed

GONE = "the SuperLink does not answer ({}). Bring it back and try again."
FAILS = "the SuperLink failed ({}). Look into its log, then try again."
STEP = 0.2
"""Seconds after which a signal is handled at the latest."""
LIMIT = 60.0
"""Seconds in which a SuperLink lists the connected nodes."""
LOOK = 20.0
"""Seconds without a message being sent, after which the SuperLink is checked."""
MAX_LETTERS = 300
"""Letters that are shown of a text from outside."""
REASONS = {
    ErrorCode.NODE_UNAVAILABLE: "it is not connected",
    ErrorCode.CLIENT_APP_CRASHED: "its process died",
    ErrorCode.MESSAGE_UNAVAILABLE: "its answer did not arrive whole, or not in time",
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: "its answer came too late",
}
"""Our reasons for some of Flower's error codes, whose own texts say less."""
FAILED = "it failed"
"""The reason where none is given."""

T = TypeVar("T")


class Call(Generic[T]):
    """A call in a thread of its own, which can be left running."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._found: list[T] = []
        self._raised: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, args=(function,), daemon=True)
        self._thread.start()

    def _run(self, function: Callable[[], T]) -> None:
        try:
            self._found.append(function())
        except BaseException as error:  # some of Flower's are no Exception; result() raises them
            self._raised.append(error)

    def ends_within(self, seconds: float) -> bool:
        """Wait in steps: signals that Flower's threads raise in this process are handled between two steps."""
        deadline = time.monotonic() + seconds
        while self._thread.is_alive() and (left := deadline - time.monotonic()) > 0:
            self._thread.join(min(left, STEP))
        return not self._thread.is_alive()

    def result(self) -> T:
        """What the call returned; an error of the network becomes one line."""
        try:
            for error in self._raised:
                raise error
        except httpx.HTTPStatusError as error:
            status = error.response.status_code
            raise LinkFailed(FAILS.format(f"{status} {error.response.reason_phrase}".strip())) from error
        except (ConnectionError, httpx.HTTPError) as error:
            raise FederationError(GONE.format(one_line(str(error)))) from error
        return self._found[0]


def within(seconds: float, function: Callable[[], T]) -> T:
    call = Call(function)
    if not call.ends_within(seconds):
        raise FederationError(GONE.format(f"nothing for {seconds:g} seconds"))
    return call.result()


def nodes_of(grid: Grid) -> list[int]:
    """Ids of the nodes that are connected."""
    return within(LIMIT, lambda: list(grid.get_node_ids()))


def require_there(grid: Grid) -> None:
    """Raise an error if the SuperLink does not answer; an answer that reports a failure is enough."""
    with contextlib.suppress(LinkFailed):
        nodes_of(grid)


def push(grid: Grid, message: Message, seconds: float) -> str:
    """Send a message and return its id; LinkFailed if it cannot be sent. A slow SuperLink is checked meanwhile.

    One message at a time: Flower leaves out those that it cannot send, and does not say which.
    """
    call, deadline = Call(lambda: list(grid.push_messages([message]))), time.monotonic() + seconds
    try:
        while not (is_done := call.ends_within(min(LOOK, deadline - time.monotonic()))):
            require_there(grid)
            if time.monotonic() >= deadline:
                break
        number = next(iter(call.result()), None) if is_done else None
    except FederationError:
        raise
    except Exception as error:  # of any kind: the other messages can still be sent
        raise LinkFailed(f"the message could not be sent ({type(error).__name__})") from error
    if not number:
        raise LinkFailed(f"the message could not be sent{'' if is_done else ' in time'}")
    return number


def reason_of(error: Error) -> str:
    """The reason of Flower's error in one line: "<class 'ValueError'>:<'text'>", or Ray's page around it."""
    if error.code in REASONS:
        return REASONS[error.code]
    text = re.sub(r"\x1b\[\d*m", "", error.reason or "")
    text = text.rpartition("occurred. Message: ")[2][: 10 * MAX_LETTERS]  # the next expression takes quadratic time
    text = re.sub(r"^<class '(?:[\w.]*\.)?(\w+)[^>]*>:<'", r"\1: ", text).removesuffix("'>")
    return one_line(text.strip().partition("\n")[0]) or FAILED


def one_line(text: str) -> str:
    """A text from outside, without line ends and other control characters."""
    printable = "".join(letter if letter.isprintable() else " " for letter in text[:10_000])
    return " ".join(printable.split())[:MAX_LETTERS]
