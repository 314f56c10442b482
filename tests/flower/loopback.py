"""A grid without a network: it hands messages to a real ClientApp in this process, one node per client."""

import threading
from collections.abc import Iterable
from itertools import count

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity


class Loopback(Grid):
    """Nodes 100, 101, … with partition-id 0, 1, …; whoever is in ``silent`` never answers."""

    def __init__(self, app: ClientApp, number: int, *, silent: Iterable[int] = ()) -> None:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # whoever makes messages must be somebody
        self.app, self.silent = app, set(silent)
        self.contexts = {
            100 + k: Context(1, 100 + k, {"partition-id": k, "num-partitions": number}, RecordDict(), {})
            for k in range(number)
        }
        self.sent: list[Message] = []
        self.pulled: list[list[str]] = []
        self.open: list[int] = []
        self._numbers, self._waiting, self._alone = count(1), {}, threading.Lock()

    def get_node_ids(self) -> list[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        numbers = []
        for message in messages:
            numbers.append(str(next(self._numbers)))
            self._waiting[numbers[-1]] = message
            self.open.append(len(self._waiting))
            self.sent.append(message)
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Run the clients that were asked, now: an answer is in memory only while somebody holds it."""
        self.pulled.append(list(message_ids))
        found = []
        for number in self.pulled[-1]:
            message = self._waiting[number]
            if message.metadata.dst_node_id in self.silent:
                continue
            del self._waiting[number]
            found.append(self._answer(message))
        return found

    def _answer(self, message: Message) -> Message:
        """One client at a time: they share this process, and may share a model."""
        try:
            with self._alone:
                return self.app(message, self.contexts[message.metadata.dst_node_id])
        except Exception as error:  # as Flower does
            reason = f"{type(error)}:<'{error}'>"
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def create_message(self, content, message_type, dst_node_id, group_id, ttl=None):
        raise NotImplementedError

    def send_and_receive(self, messages, *, timeout=None):
        raise NotImplementedError
