"""One question to many clients: the order in which they are asked, the looks at their answers, the time limit."""

import contextlib
import time
from collections import deque
from collections.abc import Iterator, Mapping

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from ccvr.core.errors import FederationError, LinkFailed
from ccvr.flower.superlink import Call, push, reason_of, require_there

INTERVAL = 0.2
"""Seconds between two looks at what has come."""
PATIENCE = 60.0
"""Seconds without any arrival and with all looked at, after which waiting ends once the time is over."""
ARRIVING = 3
"""Answers that arrive at the same time; after a third of PATIENCE one no longer counts, and others are read."""
ASKED_BY = 0.75
"""Part of the time in which all are asked, however many do not answer."""


class Exchange:
    """A question with a time limit to clients by number, each at its node with its content.

    ``at_once`` many are asked, then one for each that answers, and never fewer than an even pace takes to ask all in
    time, however many are silent or slow. ``in_order`` looks at one answer at a time, in the order of the clients.
    """

    def __init__(
        self,
        grid: Grid,
        message_type: str,
        clients: Mapping[int, tuple[int, RecordDict]],
        timeout: float,
        *,
        in_order: bool,
        at_once: int,
    ) -> None:
        self._began = time.monotonic()
        self._grid, self._message_type, self._clients, self._timeout = grid, message_type, clients, timeout
        self._in_order, self._at_once = in_order, at_once
        self._todo, self._open = deque(clients), dict[int, _Open]()

    @property
    def seconds(self) -> float:
        """Since the exchange began, without pauses."""
        return time.monotonic() - self._began

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Stop the clock while the server computes: that is no delay of a client."""
        seconds = self.seconds
        try:
            yield
        finally:
            self._began = time.monotonic() - seconds

    def answers(self) -> Iterator[tuple[int, RecordDict | str]]:
        """Each client with its answer, or with the reason why there is none."""
        last, is_over = 0.0, False
        while self._open or (self._todo and not is_over):
            if not is_over:
                yield from self._ask()
            before = self._state()
            yield from self._look(is_last=is_over)
            if self._state() != before:
                last = self.seconds
            elif is_over and self.seconds >= last + PATIENCE:
                break
            else:
                time.sleep(INTERVAL)
            if not is_over and self.seconds >= self._timeout:  # after each client was looked at
                is_over, last = True, self.seconds
        if self._open:
            require_there(self._grid)  # without it, no client is at fault
        for client in self._open:
            yield client, "its answer was still on the way when the time was over"
        for client in self._todo:
            yield client, f"not asked within {self._timeout:g} seconds; allow more time"

    def _state(self) -> tuple[int, int]:
        """How many questions are open, and how many of their pulls have begun: a change of either is progress."""
        return len(self._open), sum(question.is_begun for question in self._open.values())

    def _ask(self) -> Iterator[tuple[int, str]]:
        """Ask as many as there is room for, or as are due; yield the clients that could not be asked, and why."""
        number, at_once = len(self._clients), self._at_once
        due = at_once + int((number - at_once) * self.seconds / (ASKED_BY * self._timeout))
        places = max(at_once - len(self._open), due - (number - len(self._todo)))
        for _ in range(min(places, len(self._todo))):
            if (left := self._timeout + PATIENCE - self.seconds) <= 0:  # sending takes time, too
                break
            client = self._todo.popleft()
            node, content = self._clients[client]
            # Messages live longer than we wait: what is on its way when the time is over can still arrive.
            message = Message(content, node, self._message_type, ttl=2 * (self._timeout + PATIENCE))
            try:
                self._open[client] = _Open(self._grid, push(self._grid, message, left))
            except LinkFailed as error:
                yield client, str(error)

    def _look(self, *, is_last: bool) -> Iterator[tuple[int, RecordDict | str]]:
        """The answers that have come, while no more than a few arrive."""
        most = 1 if self._in_order else ARRIVING
        arriving = sum(question.is_arriving for question in self._open.values())
        for client, question in list(self._open.items())[: 1 if self._in_order and not is_last else None]:
            if not question.is_begun and arriving >= most:
                continue
            answer = question.look(is_last=is_last)
            if answer is None:
                arriving += question.is_new
                continue
            del self._open[client]
            yield client, f"no answer within {self._timeout:g} seconds" if answer == "" else answer


class _Open:
    """A question that was sent, and the pull of its answer that has not ended: it arrives, or the link is cut."""

    def __init__(self, grid: Grid, number: str) -> None:
        self._grid, self._number, self._trouble = grid, number, ""
        self._pull: Call[list[Message]] | None = None
        self._began, self._is_last, self._is_doubtful = 0.0, False, True
        self.is_new = False
        """Whether the pull began with the latest look."""

    @property
    def is_begun(self) -> bool:
        return self._pull is not None

    @property
    def is_arriving(self) -> bool:
        """Whether it counts among the answers that arrive; a pull that takes long does not."""
        return self._pull is not None and time.monotonic() - self._began < PATIENCE / 3

    def look(self, *, is_last: bool) -> RecordDict | str | None:
        """The answer, or why there is none, "" if nothing came by the last look; None as long as it may come."""
        self.is_new = self._pull is None
        if self._pull is None:
            self._began, self._is_last, self._is_doubtful = time.monotonic(), is_last, True
            self._pull = Call(lambda: list(self._grid.pull_messages([self._number])))
        if not self._pull.ends_within(INTERVAL if self.is_new else 0.0):
            if not self.is_arriving and self._is_doubtful:
                require_there(self._grid)
                self._is_doubtful = False
            return None
        pull, self._pull, self.is_new = self._pull, None, False
        found = list[Message]()
        try:
            found = pull.result()
        except LinkFailed as error:  # the SuperLink may still have the answer, or may have lost it
            self._trouble = str(error)
        except FederationError:
            raise
        except Exception as error:  # of any kind: no client of ours sends such a message
            return f"its message cannot be read ({type(error).__name__})"
        if not found:
            return self._trouble if self._is_last else None
        return reason_of(found[0].error) if found[0].has_error() else found[0].content
