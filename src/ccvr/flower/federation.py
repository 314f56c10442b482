"""Questions to the clients that a grid reaches: answers as they come, a quorum, a time limit, names of the missing."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from flwr.app import RecordDict
from flwr.serverapp import Grid

from ccvr.core.errors import CcvrError, FederationError, LinkFailed
from ccvr.flower import exchange
from ccvr.flower.exchange import Exchange
from ccvr.flower.messages import ERROR, SETTINGS
from ccvr.flower.superlink import FAILED, nodes_of, one_line

NOBODY = "there is not one SuperNode that says it is this client"
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
        than the quorum is an error, after the last answer. ``at_once``: how many are asked, as long as time allows.
        """
        question, there = question + self.about, self._there(contents)
        missing = {client: NOBODY for client in contents if client not in there}
        asked = Exchange(self.grid, message_type, there, self.timeout, in_order=in_order, at_once=at_once)
        known = self.missing.setdefault(question, {})  # who was missing when the same was asked before stays there
        known |= missing
        for client, answer in asked.answers():
            try:
                if isinstance(answer, str):
                    missing[client] = answer
                else:
                    _require_no_error(answer)
                    with asked.clock.standing():
                        yield read(client, answer)
            except CcvrError as error:
                missing[client] = one_line(str(error))
            known |= missing
        number, answered = len(contents) + self.absent, len(contents) - len(missing)
        needed = needed_of(number, self.quorum)
        if answered < needed:
            raise FederationError(
                f"{answered} of {number} clients answered {question}, where {needed} are needed. "
                f"Missing: {listed(missing, absent=self.absent)}. Bring them back and try again, or lower the quorum."
            )

    def _there(self, contents: Mapping[int, RecordDict]) -> dict[int, tuple[int, RecordDict]]:
        """Those who have a node, each with it and its content."""
        nodes = {client: self.nodes[client] for client in contents}
        return {client: (node, contents[client]) for client, node in nodes.items() if node is not None}


def _require_no_error(content: RecordDict) -> None:
    """A client of ours says in a setting what went wrong."""
    record = content.config_records.get(SETTINGS)
    if record is not None and ERROR in record:
        raise FederationError(one_line(str(record[ERROR])) or FAILED)


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
        patience = min(patience, now + exchange.PATIENCE) if len(nodes) >= enough else math.inf
        if len(nodes) >= number or now >= min(deadline, patience):
            break
        time.sleep(exchange.INTERVAL)
    if failed and len(nodes) < enough:
        raise failed
    if len(nodes) < enough:
        needed = f", where {enough} are needed" if enough < number else ""
        raise FederationError(
            f"{len(nodes)} of {number} clients connected within {timeout:g} seconds{needed}. "
            "Start the missing SuperNodes, or allow more time."
        )
    return sorted(nodes)
