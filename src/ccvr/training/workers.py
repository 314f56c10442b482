"""Workers: a fixed pool of processes, one model and one thread each, that train the clients of a round.

Results do not depend on the number of workers: each client's part is a function of what it gets, and results are
yielded in the cohort's order. Samples lie in files that all workers map, so they are not copied.
"""

import contextlib
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ccvr.algorithms.messages import Client, GlobalState, LocalResult
from ccvr.algorithms.spec import TrainingSpec
from ccvr.core.errors import CcvrError, TrainingError
from ccvr.core.machine import keep_freed_memory
from ccvr.core.processes import bare_start, end_with_parent, ending, limit, readable, receive, send
from ccvr.models.split import SplitModel
from ccvr.training.client_state import ClientStates
from ccvr.training.mailbox import Mailbox, State, pack_state, room_for, unpack_state
from ccvr.training.mapped_clients import MappedClients
from ccvr.training.trainer import OneByOne, scratch_of

START_LIMIT = 300.0
"""Seconds that workers may take to be ready."""
LIMIT = min(max(float(os.environ.get("CCVR_WORKER_LIMIT", "7200")), 1.0), 1e6)
"""Seconds that may pass without an answer, which may be for AT_ONCE small clients, or within one message."""
SMALL = 8
"""Clients are small if they are at most this fraction (1/8) of what each worker still has to do."""
AT_ONCE, MAX_BYTES = 8, 2**25
"""Clients that a worker gets together at most, and bytes of its mailbox when those are several."""


class _Task(NamedTuple):
    """One client's part of a round; ``last`` is the round of its state."""

    place: int
    client: int
    last: int | None
    round: int
    size: int
    """Examples of this client."""
    left: int
    """Examples of this and all later clients of the cohort."""


@dataclass
class _Worker:
    """A process and its tasks: the clients that it trains now, and those that it trains next."""

    process: SpawnProcess
    pipe: Connection
    mailbox: Mailbox | None = None
    tasks: deque[tuple[_Task, ...]] = field(default_factory=deque)
    knows: bool = False
    """Whether it has the model of this round."""


class Workers:
    """The pool, as a context manager. ``build`` makes a model of the right shape in each worker.

    An error in training is the end of the pool: make another one.
    """

    def __init__(
        self,
        number: int,
        clients: Sequence[Client],
        build: Callable[[], SplitModel],
        spec: TrainingSpec,
        *,
        seed: int,
        states: ClientStates,
    ) -> None:
        self._job = (build, spec, seed, states.folder)
        self._clients, self._number = clients, min(number, len(clients))
        self._workers: list[_Worker] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._at_once = 1

    def __enter__(self) -> "Workers":
        try:
            shared = self._share()
            self._start()
            for worker in self._workers:
                self._send(worker, (shared, *self._job))
            self._await_all_ready()
        except BaseException:
            self.close()
            raise
        self._tidy()  # the workers keep the files mapped: from here on a kill leaves no files
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _share(self) -> MappedClients:
        try:
            self._folder = tempfile.TemporaryDirectory(prefix="ccvr-", ignore_cleanup_errors=True)
            return MappedClients.write(Path(self._folder.name), self._clients)
        except OSError as error:
            where = Path(self._folder.name).parent if self._folder else "any temporary folder"
            raise TrainingError(f"no room for the samples in {where}: {error}. Set TMPDIR.") from error

    def _tidy(self) -> None:
        if self._folder:
            self._folder.cleanup()

    def _start(self) -> None:
        """Start the processes without arguments: those would go through a pipe that has no time limit."""
        context = multiprocessing.get_context("spawn")
        with bare_start():
            for _ in range(self._number):
                ours, theirs = context.Pipe()
                process = context.Process(target=_work, args=(theirs,), daemon=True)
                process.start()
                theirs.close()
                limit(ours, min(LIMIT, START_LIMIT))
                self._workers.append(_Worker(process, ours))

    def close(self) -> None:
        """End all workers at once."""
        for worker in self._workers:
            worker.pipe.close()
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join(10)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self._workers.clear()
        self._tidy()  # where mapped files cannot be unlinked, now they can

    def _await_all_ready(self) -> None:
        ends = time.monotonic() + START_LIMIT
        for worker in self._workers:
            if not worker.pipe.poll(max(0.0, ends - time.monotonic())):
                raise TrainingError(f"a worker was not ready after {START_LIMIT:.0f} seconds. Lower --workers.")
            path, room, places = self._receive(worker)
            worker.mailbox, self._at_once = Mailbox(path, room, places), places // 2
            limit(worker.pipe, LIMIT)

    def train(
        self, cohort: Sequence[Client], sent: GlobalState, client_rounds: Mapping[int, int], *, round: int
    ) -> Iterator[LocalResult]:
        """The results in the cohort's order. Results that wait for an earlier one stay within the mailboxes' places."""
        parcel, waiting = pack_state(sent), dict[int, LocalResult]()
        while any(worker.tasks for worker in self._workers):
            self._collect()  # drop results of an earlier round that was not read to its end
        for worker in self._workers:
            worker.knows = False
        left = [*accumulate(len(client.indices) for client in reversed(cohort))][::-1]
        todo = deque(
            _Task(place, client.id, client_rounds.get(client.id), round, len(client.indices), left[place])
            for place, client in enumerate(cohort)
        )
        for place in range(len(cohort)):
            self._hand_out(todo, parcel, len(waiting))
            while place not in waiting:
                waiting |= self._collect()
                self._hand_out(todo, parcel, len(waiting) - (place in waiting))
            yield waiting.pop(place)

    def _hand_out(self, todo: deque[_Task], parcel: State, waiting: int) -> None:
        """Give idle workers the next clients, as long as there is room for the results that will wait.

        A worker whose clients are a small part of the work gets the next ones in advance, so that it does not wait.
        """
        under_way = sum(len(tasks) for worker in self._workers for tasks in worker.tasks)
        room = 2 * self._at_once * len(self._workers) - waiting - under_way
        for ahead in (False, True):
            for worker in self._workers:
                if not todo or len(worker.tasks) != ahead or room < (self._at_once if ahead else 1):
                    continue
                if not ahead or self._is_small(worker.tasks[0], todo[0].left):
                    tasks = self._next(todo, min(self._at_once, room))
                    room -= len(tasks)
                    known, worker.knows = worker.knows, True
                    worker.tasks.append(tasks)
                    self._send(worker, (tasks, None if known else parcel))

    def _is_small(self, tasks: Sequence[_Task], left: int) -> bool:
        """Whether the clients are so small a part of the work left that they do not delay the end of the round."""
        return SMALL * len(self._workers) * sum(task.size for task in tasks) <= left

    def _next(self, todo: deque[_Task], most: int) -> tuple[_Task, ...]:
        """The next client, and those after it as long as they are a small part together."""
        tasks: tuple[_Task, ...] = (todo.popleft(),)
        while todo and len(tasks) < most and self._is_small((*tasks, todo[0]), tasks[0].left):
            tasks = (*tasks, todo.popleft())
        return tasks

    def _send(self, worker: _Worker, message: object) -> None:
        try:
            send(worker.pipe, message)
        except BlockingIOError as error:
            raise _silence([worker]) from error
        except OSError:  # a worker that has ended is reported when its results are awaited
            pass

    def _collect(self) -> dict[int, LocalResult]:
        """Wait for a result, or for the end of a worker."""
        busy = [worker for worker in self._workers if worker.tasks]
        ready = readable([worker.pipe for worker in busy], LIMIT)
        if not ready:
            raise _silence(busy)
        found = dict[int, LocalResult]()
        for worker in busy:
            if worker.pipe in ready:
                results = self._receive(worker)
                found |= {task.place: result for task, result in zip(worker.tasks.popleft(), results, strict=True)}
        return found

    def _receive(self, worker: _Worker) -> Any:
        try:
            kind, content = receive(worker.pipe)
        except BlockingIOError as error:
            raise _silence([worker]) from error
        except (EOFError, OSError) as error:
            worker.process.join(10)
            how = ending(worker.process.exitcode)
            hint = " Out of memory, perhaps: lower --workers." if how == "signal SIGKILL" else ""
            raise TrainingError(
                f"the worker that trained {_clients_of(worker)} ended ({how}).{hint} The run can be resumed."
            ) from error
        if kind == "error":
            raise TrainingError(content)
        return [worker.mailbox.take(letter) for letter in content] if worker.mailbox else content


def _silence(workers: Sequence[_Worker]) -> TrainingError:
    return TrainingError(
        f"no worker answered for {LIMIT:.0f} seconds ({', '.join(map(_clients_of, workers))}). "
        "Resume the run, with CCVR_WORKER_LIMIT=SECONDS for more patience."
    )


def _clients_of(worker: _Worker) -> str:
    """The clients that a worker trains."""
    if not worker.tasks:
        return "nothing yet"
    *others, last = (str(task.client) for task in worker.tasks[0])
    clients = f"clients {', '.join(others)} and {last}" if others else f"client {last}"
    return f"{clients} in round {worker.tasks[0][0].round}"


# --- in a worker ------------------------------------------------------------------------------------------------------


def _work(pipe: Connection) -> None:
    """Train the clients that come through the pipe until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where the parent could not block it
    threading.Thread(target=end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    keep_freed_memory()
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        shared, build, spec, seed, folder = receive(pipe)
        clients, scratch = shared.open(), scratch_of(build(), spec).flatten()
        trainer = OneByOne(scratch, spec, seed, ClientStates(folder))
        path, room = shared.folder / str(os.getpid()), room_for(scratch.parameters(), scratch.buffers())
        try:
            places = 2 * max(1, min(AT_ONCE, MAX_BYTES // (2 * room)))
            mailbox = Mailbox(path, room, places)
        except OSError as error:
            send(pipe, ("error", f"a worker found no room for its results in {path.parent}: {error}. Set TMPDIR."))
            return
        send(pipe, ("ready", (path, room, places)))
        sent: GlobalState | None = None
        while True:
            tasks, parcel = receive(pipe)
            sent = sent if parcel is None else unpack_state(parcel)
            assert sent is not None
            try:
                found = (trainer.train_one(clients[each.client], sent, each.last, round=each.round) for each in tasks)
                send(pipe, ("result", [mailbox.put(result) for result in found]))
            except CcvrError as error:
                send(pipe, ("error", str(error)))
