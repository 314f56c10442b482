"""Questions to the clients of a grid: answers as they come, a quorum, a time limit, reasons of absent clients."""

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

NO_NODE = "there is not one SuperNode that says it is this client"
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Federation:
    """Clients by number, and what is expected of them."""

    grid: Grid
    nodes: Mapping[int, int | None]
    """Flower's node of each client; None where no node, or more than one, says that it is this client."""
    quorum: float = 1.0
    """Part of the clients that must answer."""
    timeout: float = 3600.0
    """Seconds until waiting ends; what the server computes with the answers does not count."""
    unconnected: int = 0
    """How many expected clients never connected; they have no number."""
    absent: dict[str, dict[int, str]] = field(default_factory=dict)
    """By question, the clients that did not answer it, and why."""
    without_samples: set[int] = field(default_factory=set)
    """The clients that answered that they have nothing to send."""
    about: str = ""
    """Is added to each question, to tell it apart from others of the same words."""

    def reasons(self) -> dict[int, str]:
        """The clients that were absent in any exchange: in which, and why."""
        found: dict[int, str] = {}
        for question, silent in self.absent.items():
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
        """Send each client its content and yield what ``read`` makes of the answers, while the next few arrive.

        As they come, or one by one in the order of ``contents``. A client that fails, lies or is silent is absent.
        Fewer than the quorum is an error, after the last answer. ``at_once`` are asked together while time allows.
        """
        question, nodes = question + self.about, {client: self.nodes[client] for client in contents}
        there = {client: (node, contents[client]) for client, node in nodes.items() if node is not None}
        absent = {client: NO_NODE for client in contents if client not in there}
        asked = Exchange(self.grid, message_type, there, self.timeout, in_order=in_order, at_once=at_once)
        known = self.absent.setdefault(question, {})  # keeps clients that were absent when it was asked before
        known |= absent
        for client, answer in asked.answers():
            try:
                if isinstance(answer, str):
                    absent[client] = answer
                else:
                    _require_no_error(answer)
                    with asked.pause():
                        yield read(client, answer)
            except CcvrError as error:
                absent[client] = one_line(str(error))
            known |= absent
        number, answered = len(contents) + self.unconnected, len(contents) - len(absent)
        needed = needed_of(number, self.quorum)
        if answered < needed:
            names = listed(absent, unconnected=self.unconnected)
            raise FederationError(
                f"{answered} of {number} clients answered {question}, where {needed} are needed. "
                f"Missing: {names}. Bring them back and try again, or lower the quorum."
            )


def _require_no_error(content: RecordDict) -> None:
    """Raise the error that a client of ours reports in a setting."""
    record = content.config_records.get(SETTINGS)
    if record is not None and ERROR in record:
        raise FederationError(one_line(str(record[ERROR])) or FAILED)


def needed_of(number: int, quorum: float) -> int:
    """How many of ``number`` clients a quorum is, at least one."""
    return max(1, math.ceil(quorum * number - 1e-9))


def listed(absent: Mapping[int, str] | Mapping[str, str], most: int = 5, *, unconnected: int = 0) -> str:
    """The absent clients and their reasons in one line, and how many never connected."""
    named = [f"client {client} ({reason.rstrip('.')})" for client, reason in list(absent.items())[:most]]
    more = [f"and {len(absent) - most} more"] if len(absent) > most else []
    never = [f"{unconnected} not connected"] if unconnected else []
    return ", ".join([*named, *more, *never]) or "nobody"


def connected(grid: Grid, number: int, timeout: float, *, enough: int | None = None) -> list[int]:
    """Flower's nodes, as soon as there are ``number`` of them.

    Once there are ``enough``, the others have PATIENCE seconds to connect.
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
