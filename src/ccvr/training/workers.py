"""Workers: a fixed pool of processes, one model and one thread each, that train the clients of a round.

Results do not depend on the number of workers: each client's part is a function of what it gets, and parts are handed
on in the cohort's order, however they come in. Images lie in files that all workers map, so nobody copies them.
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
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ccvr.core.errors import CcvrError, TrainingError
from ccvr.core.machine import keep_freed_memory
from ccvr.core.processes import bare_start, end_with_parent, ending, limit, readable, receive, send
from ccvr.models.split import SplitModel
from ccvr.models.state import Scratch
from ccvr.training.local import Client, GlobalState, LocalResult
from ccvr.training.memories import Memories
from ccvr.training.parcels import Mailbox, State, pack_state, room_for, unpack_state
from ccvr.training.shared import SharedClients
from ccvr.training.spec import TrainingSpec
from ccvr.training.trainer import OneByOne

START_LIMIT = 300.0
"""Seconds that workers may take to be ready."""
LIMIT = min(max(float(os.environ.get("CCVR_WORKER_LIMIT", "7200")), 1.0), 1e6)
"""Seconds that may pass without any result, or in the midst of a message."""
MANY = 8
"""Clients left per worker from which on a worker gets the next one ahead of time."""


class _Task(NamedTuple):
    """One client's part of a round; ``last`` is the round of its memory."""

    place: int
    client: int
    last: int | None
    round: int


@dataclass
class _Worker:
    """A process and what it has been given: the client that it trains, and at most one to go on with."""

    process: SpawnProcess
    pipe: Connection
    mailbox: Mailbox | None = None
    tasks: deque[_Task] = field(default_factory=deque)
    knows: bool = False
    """Whether it has been sent the model of this round."""


class Workers:
    """The pool, as a context manager. ``build`` makes a model of the right shape in each worker."""

    def __init__(
        self,
        number: int,
        clients: Sequence[Client],
        build: Callable[[], SplitModel],
        spec: TrainingSpec,
        *,
        seed: int,
        memories: Memories,
    ) -> None:
        self._job = (build, spec, seed, memories.folder)
        self._clients, self._number = clients, min(number, len(clients))
        self._workers: list[_Worker] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

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
        self._tidy()  # files live on in the workers' mappings: from here on a kill leaves nothing behind
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _share(self) -> SharedClients:
        try:
            self._folder = tempfile.TemporaryDirectory(prefix="ccvr-", ignore_cleanup_errors=True)
            return SharedClients.write(Path(self._folder.name), self._clients)
        except OSError as error:
            where = Path(self._folder.name).parent if self._folder else "any temporary folder"
            raise TrainingError(f"no room for the images in {where}: {error}. Set TMPDIR.") from error

    def _tidy(self) -> None:
        if self._folder:
            self._folder.cleanup()

    def _start(self) -> None:
        """Processes that know nothing yet: what they are started with goes through a pipe that has no limit."""
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
        """End all workers, whatever they are doing."""
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
            worker.mailbox = Mailbox(*self._receive(worker))
            limit(worker.pipe, LIMIT)

    def train(
        self, cohort: Sequence[Client], sent: GlobalState, remembered: Mapping[int, int], *, round: int
    ) -> Iterator[LocalResult]:
        """The results in the cohort's order; at most 2 × workers of them wait for an earlier one."""
        parcel, waiting = pack_state(sent), dict[int, LocalResult]()
        while any(worker.tasks for worker in self._workers):
            self._collect()  # of a round whose results were not all asked for: they are nobody's
        for worker in self._workers:
            worker.knows = False
        tasks = (_Task(place, client.id, remembered.get(client.id), round) for place, client in enumerate(cohort))
        todo = deque(tasks)
        for place in range(len(cohort)):
            self._hand_out(todo, parcel, len(waiting))
            while place not in waiting:
                waiting |= self._collect()
                self._hand_out(todo, parcel, len(waiting) - (place in waiting))
            yield waiting.pop(place)

    def _hand_out(self, todo: deque[_Task], parcel: State, waiting: int) -> None:
        """Give idle workers a client each, as long as 2 × workers finished results at most will wait.

        Where many clients are left, a worker gets a second one to go on with: small ones should not wait for us.
        """
        room = 2 * len(self._workers) - waiting - sum(len(worker.tasks) for worker in self._workers)
        for depth in (1, 2) if len(todo) > MANY * len(self._workers) else (1,):
            for worker in self._workers:
                if todo and room > 0 and len(worker.tasks) < depth:
                    task, room = todo.popleft(), room - 1
                    known, worker.knows = worker.knows, True
                    worker.tasks.append(task)
                    self._send(worker, (task, None if known else parcel))

    def _send(self, worker: _Worker, message: object) -> None:
        try:
            send(worker.pipe, message)
        except BlockingIOError as error:
            raise _silence([worker]) from error
        except OSError:  # a worker that has ended is told apart when its results are awaited
            pass

    def _collect(self) -> dict[int, LocalResult]:
        """Wait for a result, or for the end of a worker."""
        busy = [worker for worker in self._workers if worker.tasks]
        ready = readable([worker.pipe for worker in busy], LIMIT)
        if not ready:
            raise _silence(busy)
        found = {}
        for worker in busy:
            if worker.pipe in ready:
                result = self._receive(worker)
                found[worker.tasks.popleft().place] = result
        return found

    def _receive(self, worker: _Worker) -> Any:
        try:
            kind, content = receive(worker.pipe)
        except BlockingIOError as error:
            raise _silence([worker]) from error
        except (EOFError, OSError) as error:
            worker.process.join(10)
            raise TrainingError(_obituary(worker)) from error
        if kind == "error":
            raise TrainingError(content)
        return worker.mailbox.take(content) if worker.mailbox else content


def _silence(workers: Sequence[_Worker]) -> TrainingError:
    tasks = [worker.tasks[0] for worker in workers if worker.tasks]
    names = ", ".join(f"client {task.client} in round {task.round}" for task in tasks) or "nothing yet"
    return TrainingError(
        f"no worker answered for {LIMIT:.0f} seconds ({names}). "
        "Resume the run, with CCVR_WORKER_LIMIT=SECONDS for more patience."
    )


def _obituary(worker: _Worker) -> str:
    how, task = ending(worker.process.exitcode), worker.tasks[0] if worker.tasks else None
    what = f"client {task.client} in round {task.round}" if task else "nothing yet"
    hint = " Out of memory, perhaps: lower --workers." if how == "signal SIGKILL" else ""
    return f"the worker that trained {what} ended ({how}).{hint} The run can be resumed."


# --- in a worker ------------------------------------------------------------------------------------------------------


def _work(pipe: Connection) -> None:
    """Train what comes through the pipe until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where the parent could not keep it from us
    threading.Thread(target=end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    keep_freed_memory()
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        shared, build, spec, seed, memories = receive(pipe)
        clients, scratch = shared.open(), Scratch(build())
        trainer = OneByOne(scratch, spec, seed, Memories(memories))
        path, room = shared.images.path.with_name(str(os.getpid())), room_for(scratch.parameters(), scratch.buffers())
        try:
            mailbox = Mailbox(path, room)
        except OSError as error:
            send(pipe, ("error", f"a worker found no room for its results in {path.parent}: {error}. Set TMPDIR."))
            return
        send(pipe, ("ready", (path, room)))
        sent: GlobalState | None = None
        while True:
            task, parcel = receive(pipe)
            sent = sent if parcel is None else unpack_state(parcel)
            assert sent is not None
            send(pipe, _answer(trainer, clients[task.client], sent, task, mailbox))


def _answer(trainer: OneByOne, client: Client, sent: GlobalState, task: _Task, mailbox: Mailbox) -> tuple[str, Any]:
    try:
        return "result", mailbox.put(trainer.train_one(client, sent, task.last, round=task.round))
    except CcvrError as error:
        return "error", str(error)
