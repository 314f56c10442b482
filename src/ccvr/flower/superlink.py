"""Calls to the SuperLink that end: Flower tries for ever where it is gone, and waits hours for parts of an answer."""

import contextlib
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import httpx
from flwr.app import Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from ccvr.core.errors import FederationError, LinkFailed

GONE = "the SuperLink does not answer ({}). Bring it back and try again."
FAILS = "the SuperLink failed ({}). Look into its log, then try again."
STEP = 0.2
"""Seconds that a signal may have to wait."""
LIMIT = 60.0
"""Seconds in which a SuperLink that is there says who is connected."""
LOOK = 20.0
"""Seconds after which a message that is not sent is a reason to ask whether the SuperLink is there."""
MAX_LETTERS = 300
"""Of what somebody else wrote."""
FLOWERS_WORDS = {
    ErrorCode.NODE_UNAVAILABLE: "it is not connected",
    ErrorCode.CLIENT_APP_CRASHED: "its process died",
    ErrorCode.MESSAGE_UNAVAILABLE: "its answer did not arrive whole, or not in time",
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: "its answer came too late",
}
"""Flower's codes whose own words say less."""

FAILED = "it failed"
"""Where no reason is given."""

T = TypeVar("T")


class Call(Generic[T]):
    """A call in a thread of its own, which nobody has to wait for."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._found: list[T] = []
        self._raised: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, args=(function,), daemon=True)
        self._thread.start()

    def _run(self, function: Callable[[], T]) -> None:
        try:
            self._found.append(function())
        except BaseException as error:  # some of Flower's are no Exception; whoever asks for the result raises them
            self._raised.append(error)

    def ends_within(self, seconds: float) -> bool:
        """Step by step: signals that Flower's threads raise in this process do not end a step, but are heeded after."""
        deadline = time.monotonic() + seconds
        while self._thread.is_alive() and (left := deadline - time.monotonic()) > 0:
            self._thread.join(min(left, STEP))
        return not self._thread.is_alive()

    def result(self) -> T:
        """What the call gave; a network that fails is nobody's fault, and one line."""
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
    """Flower's nodes that are connected."""
    return within(LIMIT, lambda: list(grid.get_node_ids()))


def require_there(grid: Grid) -> None:
    """An error where the SuperLink does not answer, however it does."""
    with contextlib.suppress(LinkFailed):
        nodes_of(grid)


@dataclass(frozen=True)
class Unsent:
    """Why a message was not sent."""

    reason: str


def push(grid: Grid, message: Message, seconds: float) -> str | Unsent:
    """The number of a message that was sent; while that takes long, the SuperLink must be there.

    One message at a time: Flower leaves out those that it cannot send, and does not say which.
    """
    call, deadline = Call(lambda: list(grid.push_messages([message]))), time.monotonic() + seconds
    try:
        while not call.ends_within(min(LOOK, deadline - time.monotonic())):
            require_there(grid)
            if time.monotonic() >= deadline:
                return Unsent("the message could not be sent in time")
        number = next(iter(call.result()), None)
    except LinkFailed as error:
        return Unsent(str(error))
    except FederationError:
        raise
    except Exception as error:  # whatever Flower raises over one message: the others are none the worse
        return Unsent(f"the message could not be sent ({type(error).__name__})")
    return number or Unsent("the message could not be sent")


class Pull:
    """A look at whether a message is answered."""

    def __init__(self, grid: Grid, number: str, *, is_last: bool) -> None:
        self.is_last = is_last
        """Whether it was begun when the time was over."""
        self.is_doubtful = True
        """Whether the SuperLink may be gone, for all that is known."""
        self._begun = time.monotonic()
        self._call = Call(lambda: list(grid.pull_messages([number])))

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self._begun

    def ends_within(self, seconds: float) -> bool:
        return self._call.ends_within(seconds)

    def answer(self) -> RecordDict | str | None:
        """The answer, or why there is none; None as long as it may come."""
        try:
            found = self._call.result()
        except FederationError:
            raise
        except Exception as error:  # whatever Flower raises over a message that no honest client sends
            return f"its message cannot be read ({type(error).__name__})"
        if not found:
            return None
        return _why(found[0].error) if found[0].has_error() else found[0].content


def _why(error: Error) -> str:
    """Flower's reason in one line: "<class 'ValueError'>:<'text'>", or Ray's page around it."""
    if error.code in FLOWERS_WORDS:
        return FLOWERS_WORDS[error.code]
    text = re.sub(r"\x1b\[\d*m", "", error.reason or "")
    text = text.rpartition("occurred. Message: ")[2][: 10 * MAX_LETTERS]  # what follows takes squares of its time
    text = re.sub(r"^<class '(?:[\w.]*\.)?(\w+)[^>]*>:<'", r"\1: ", text).removesuffix("'>")
    return one_line(text.strip().partition("\n")[0]) or FAILED


def one_line(text: str) -> str:
    """What somebody else wrote, without line ends and other signs that do something to a terminal."""
    printable = "".join(letter if letter.isprintable() else " " for letter in text[:10_000])
    return " ".join(printable.split())[:MAX_LETTERS]
