"""Questions to the clients that a grid reaches: answers as they come, a quorum, a time limit, names of the missing."""

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from ccvr.core.errors import CcvrError, FederationError, LinkFailed
from ccvr.flower.link import Pull, Unsent, nodes_of, one_line, push, require_there
from ccvr.flower.messages import ERROR, SETTINGS

INTERVAL = 0.2
"""Seconds between two looks at what has come."""
PATIENCE = 60.0
"""Seconds without an answer after which nothing is waited for any more that is on its way when the time is over."""
ARRIVING = 3
"""Answers that arrive at the same time; after a third of PATIENCE one does not count any more, and others are read."""
ASKED_BY = 0.75
"""Part of the time in which all are asked, whoever does not answer."""
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
        """Send each client its content and give what ``read`` makes of the answers, while the next few arrive.

        As they come, or one by one in the order of ``contents``. Whoever fails, lies or is silent is missing; fewer
        than the quorum is an error, after the last answer. ``at_once`` many are asked, then one for each that answers,
        and never fewer than an even pace takes to ask all in time, whoever is silent or slow.
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
                missing[client] = one_line(str(error))
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
        todo, waiting = deque[tuple[int, int]](), dict[int, _Open]()
        for client in contents:
            if (node := self.nodes[client]) is None:
                yield client, "there is not one SuperNode that says it is this client"
            else:
                todo.append((client, node))
        number, is_over, end = len(todo), False, math.inf
        while (todo and not is_over) or waiting:
            spent, came = clock.seconds, False
            due = at_once + int((number - at_once) * spent / (ASKED_BY * self.timeout)) - (number - len(todo))
            places = 0 if is_over else max(at_once - len(waiting), due)
            for client, node in [todo.popleft() for _ in range(min(places, len(todo)))]:
                sent = self._push(node, message_type, contents[client])
                if isinstance(sent, Unsent):
                    yield client, sent.reason
                else:
                    waiting[client] = _Open(self.grid, sent)
            arriving = sum(question.is_arriving for question in waiting.values())
            for client in list(waiting)[: 1 if in_order and not is_over else None]:
                question = waiting[client]
                if question.pull is None and arriving >= (1 if in_order else ARRIVING):
                    continue
                answer = question.look(is_last=is_over)
                if answer is None:
                    arriving += question.is_new
                    continue
                del waiting[client]
                yield client, f"no answer within {self.timeout:g} seconds" if answer == "" else answer
                came = True
            if is_over and came:
                end = clock.seconds + PATIENCE
            elif clock.seconds >= end:
                break
            if not came:
                time.sleep(INTERVAL)
            if not is_over and clock.seconds >= self.timeout:
                is_over, end = True, clock.seconds + PATIENCE
        if waiting:
            require_there(self.grid)  # or nobody is to blame
        for client in waiting:
            yield client, "its answer was still on the way when the time was over"
        for client, _ in todo:
            yield client, f"not asked within {self.timeout:g} seconds; allow more time"

    def _push(self, node: int, message_type: str, content: RecordDict) -> str | Unsent:
        """Messages live longer than we wait: what is on its way when the time is over can still arrive."""
        message = Message(content, node, message_type, ttl=2 * (self.timeout + PATIENCE))
        return push(self.grid, message, self.timeout + PATIENCE)


class _Open:
    """A question that was sent, and the look at it that has not ended: its answer is on the way, or the link is cut."""

    def __init__(self, grid: Grid, number: str) -> None:
        self.pull: Pull | None = None
        self.is_new = False
        """Whether the look began just now."""
        self._grid, self._number, self._trouble = grid, number, ""

    @property
    def is_arriving(self) -> bool:
        """Whether others are not looked at for its sake."""
        return self.pull is not None and self.pull.seconds < PATIENCE / 3

    def look(self, *, is_last: bool) -> RecordDict | str | None:
        """The answer, or why there is none, "" if nothing came by the last look; None as long as it may come."""
        self.is_new = self.pull is None
        pull = self.pull = self.pull or Pull(self._grid, self._number, is_last=is_last)
        if not pull.ends_within(INTERVAL if self.is_new else 0.0):
            if not self.is_arriving and pull.is_doubtful:
                require_there(self._grid)
                pull.is_doubtful = False
            return None
        self.pull, self.is_new = None, False
        try:
            answer = pull.answer()
        except LinkFailed as error:  # it may have the answer still, or may have lost it
            answer, self._trouble = None, str(error)
        return self._trouble if answer is None and pull.is_last else answer


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


def _require_no_error(content: RecordDict) -> None:
    """A client of ours says in a setting what went wrong."""
    record = content.config_records.get(SETTINGS)
    if record is not None and ERROR in record:
        raise FederationError(str(record[ERROR]))


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
    enough, deadline, patience, nodes = enough or number, time.monotonic() + timeout, math.inf, list[int]()
    while True:
        failed: LinkFailed | None = None
        try:
            nodes = nodes_of(grid)
        except LinkFailed as error:
            failed = error
        now = time.monotonic()
        patience = min(patience, now + PATIENCE) if len(nodes) >= enough else math.inf
        if len(nodes) >= number or now >= min(deadline, patience):
            break
        time.sleep(INTERVAL)
    if failed and len(nodes) < enough:
        raise failed
    if len(nodes) < enough:
        needed = f", where {enough} are needed" if enough < number else ""
        raise FederationError(
            f"{len(nodes)} of {number} clients connected within {timeout:g} seconds{needed}. "
            "Start the missing SuperNodes, or allow more time."
        )
    return sorted(nodes)
