"""One question to many clients: whom to ask when, whose answer to look at, and when to wait no longer."""

import contextlib
import time
from collections import deque
from collections.abc import Iterator, Mapping

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from ccvr.core.errors import LinkFailed
from ccvr.flower.superlink import Pull, Unsent, push, require_there

INTERVAL = 0.2
"""Seconds between two looks at what has come."""
PATIENCE = 60.0
"""Seconds in which nothing arrives and all have been looked at, after which nobody is waited for when time is over."""
ARRIVING = 3
"""Answers that arrive at the same time; after a third of PATIENCE one does not count any more, and others are read."""
ASKED_BY = 0.75
"""Part of the time in which all are asked, whoever does not answer."""


class Clock:
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


class Exchange:
    """A question with a time limit to clients by number, each at its node with its content.

    ``at_once`` many are asked, then one for each that answers, and never fewer than an even pace takes to ask all in
    time, whoever is silent or slow. ``in_order`` looks at one answer at a time, in the order of the clients.
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
        self.clock = Clock()
        self._grid, self._message_type, self._clients, self._timeout = grid, message_type, clients, timeout
        self._in_order, self._at_once = in_order, at_once
        self._todo, self._open = deque(clients), dict[int, _Open]()

    def answers(self) -> Iterator[tuple[int, RecordDict | str]]:
        """Each client with its answer, or with the reason why there is none."""
        clock, last, is_over = self.clock, 0.0, False
        while self._open or (self._todo and not is_over):
            if not is_over:
                yield from self._ask()
            before = self._state()
            yield from self._look(is_last=is_over)
            if self._state() != before:
                last = clock.seconds
            elif is_over and clock.seconds >= last + PATIENCE:
                break
            else:
                time.sleep(INTERVAL)
            if not is_over and clock.seconds >= self._timeout:  # not before everybody had a chance
                is_over, last = True, clock.seconds
        if self._open:
            require_there(self._grid)  # or nobody is to blame
        for client in self._open:
            yield client, "its answer was still on the way when the time was over"
        for client in self._todo:
            yield client, f"not asked within {self._timeout:g} seconds; allow more time"

    def _state(self) -> tuple[int, int]:
        """How many are open, and how many of them looked at: whatever changes that is a step towards the end."""
        return len(self._open), sum(question.is_begun for question in self._open.values())

    def _ask(self) -> Iterator[tuple[int, str]]:
        """Ask as many as there is room for, or as are due; whom the message could not be sent to, and why."""
        number, at_once = len(self._clients), self._at_once
        due = at_once + int((number - at_once) * self.clock.seconds / (ASKED_BY * self._timeout))
        places = max(at_once - len(self._open), due - (number - len(self._todo)))
        for _ in range(min(places, len(self._todo))):
            if (left := self._timeout + PATIENCE - self.clock.seconds) <= 0:  # sending takes time, too
                break
            client = self._todo.popleft()
            node, content = self._clients[client]
            # Messages live longer than we wait: what is on its way when the time is over can still arrive.
            message = Message(content, node, self._message_type, ttl=2 * (self._timeout + PATIENCE))
            sent = push(self._grid, message, left)
            if isinstance(sent, Unsent):
                yield client, sent.reason
            else:
                self._open[client] = _Open(self._grid, sent)

    def _look(self, *, is_last: bool) -> Iterator[tuple[int, RecordDict | str]]:
        """What has come, while no more than a few answers arrive."""
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
    """A question that was sent, and the look at it that has not ended: its answer is on the way, or the link is cut."""

    def __init__(self, grid: Grid, number: str) -> None:
        self._grid, self._number, self._trouble = grid, number, ""
        self._pull: Pull | None = None
        self.is_new = False
        """Whether the look began just now."""

    @property
    def is_begun(self) -> bool:
        return self._pull is not None

    @property
    def is_arriving(self) -> bool:
        """Whether others are not looked at for its sake."""
        return self._pull is not None and self._pull.seconds < PATIENCE / 3

    def look(self, *, is_last: bool) -> RecordDict | str | None:
        """The answer, or why there is none, "" if nothing came by the last look; None as long as it may come."""
        self.is_new = self._pull is None
        pull = self._pull = self._pull or Pull(self._grid, self._number, is_last=is_last)
        if not pull.ends_within(INTERVAL if self.is_new else 0.0):
            if not self.is_arriving and pull.is_doubtful:
                require_there(self._grid)
                pull.is_doubtful = False
            return None
        self._pull, self.is_new = None, False
        try:
            answer = pull.answer()
        except LinkFailed as error:  # it may have the answer still, or may have lost it
            answer, self._trouble = None, str(error)
        return self._trouble if answer is None and pull.is_last else answer
