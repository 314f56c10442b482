"""Workers: a fixed pool of processes, one model and one thread each, that train the clients of a round.

Results do not depend on the number of workers: each client's part is a function of what it gets, and parts are handed
on in the cohort's order, however they come in. Images lie in files that all workers map, so nobody copies them.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from ccvr.core.errors import CcvrError, TrainingError
from ccvr.models.split import SplitModel
from ccvr.training.local import Client, GlobalState, LocalMetrics, LocalResult
from ccvr.training.memories import Memories
from ccvr.training.shared import SharedClients
from ccvr.training.spec import TrainingSpec
from ccvr.training.trainer import OneByOne

START_LIMIT = 300.0
"""Seconds that workers may take to be ready."""
LIMIT = float(os.environ.get("CCVR_WORKER_LIMIT", "7200"))
"""Seconds that may pass without any result."""


@dataclass(frozen=True)
class _Task:
    """One client's part of a round; ``sent`` comes with a worker's first task of the round."""

    place: int
    client: int
    last: int | None
    round: int
    sent: bytes | None


@dataclass
class _Worker:
    process: SpawnProcess
    pipe: Connection
    task: _Task | None = None
    round: int = -1


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

    def __enter__(self) -> "Workers":
        context = multiprocessing.get_context("spawn")
        with tempfile.TemporaryDirectory(prefix="ccvr-", ignore_cleanup_errors=True) as folder:
            shared = SharedClients.write(Path(folder), self._clients)
            try:
                with _no_main_module():
                    for _ in range(self._number):
                        ours, theirs = context.Pipe()
                        process = context.Process(target=_work, args=(theirs, shared, *self._job), daemon=True)
                        process.start()
                        theirs.close()
                        self._workers.append(_Worker(process, ours))
                self._await_all_ready()
            except BaseException:
                self.close()
                raise
        # The files are unlinked now, and live on in the workers' mappings: nothing is left behind, whoever is killed.
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

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

    def _await_all_ready(self) -> None:
        ends = time.monotonic() + START_LIMIT
        for worker in self._workers:
            if not worker.pipe.poll(max(0.0, ends - time.monotonic())):
                raise TrainingError(f"a worker was not ready after {START_LIMIT:.0f} seconds. Lower --workers.")
            self._receive(worker)

    def train(
        self, cohort: Sequence[Client], sent: GlobalState, remembered: Mapping[int, int], *, round: int
    ) -> Iterator[LocalResult]:
        """The results in the cohort's order; at most 2 × workers of them wait for an earlier one."""
        blob, waiting = _pack_state(sent), dict[int, LocalResult]()
        todo = iter([(place, client.id, remembered.get(client.id)) for place, client in enumerate(cohort)])
        for place in range(len(cohort)):
            while place not in waiting:
                self._hand_out(todo, blob, round, room=2 * len(self._workers) - len(waiting))
                waiting |= self._collect(round)
            yield waiting.pop(place)

    def _hand_out(self, todo: Iterator[tuple[int, int, int | None]], blob: bytes, round: int, *, room: int) -> None:
        """Give a client to every idle worker, while there is ``room`` for more finished results."""
        busy = sum(worker.task is not None for worker in self._workers)
        for worker in self._workers:
            if worker.task is None and (busy == 0 or busy < room):
                if (following := next(todo, None)) is None:
                    return
                worker.task = _Task(*following, round, None if worker.round == round else blob)
                worker.round, busy = round, busy + 1
                with contextlib.suppress(OSError):  # a dead worker is told apart when its results are awaited
                    worker.pipe.send(worker.task)

    def _collect(self, round: int) -> dict[int, LocalResult]:
        """Wait for a result, or for the end of a worker."""
        busy = [worker for worker in self._workers if worker.task is not None]
        ready = wait([worker.pipe for worker in busy], LIMIT)
        if not ready:
            names = ", ".join(str(worker.task.client) for worker in busy if worker.task)
            raise TrainingError(
                f"no worker answered for {LIMIT:.0f} seconds in round {round} (clients {names}). "
                "Resume the run, with CCVR_WORKER_LIMIT=SECONDS for more patience."
            )
        found = {}
        for worker in busy:
            if worker.pipe in ready and worker.task is not None:
                place, worker_result = worker.task.place, self._receive(worker)
                found[place], worker.task = worker_result, None
        return found

    def _receive(self, worker: _Worker) -> Any:
        try:
            kind, content = worker.pipe.recv()
        except (EOFError, OSError) as error:
            worker.process.join(10)
            raise TrainingError(_obituary(worker)) from error
        if kind == "error":
            raise TrainingError(content)
        return _unpack_result(content) if kind == "result" else content


def _obituary(worker: _Worker) -> str:
    code = worker.process.exitcode
    how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
    what = f"client {worker.task.client} in round {worker.task.round}" if worker.task else "nothing yet"
    hint = " Out of memory, perhaps: lower --workers." if code == -signal.SIGKILL else ""
    return f"the worker that trained {what} ended ({how}).{hint} The run can be resumed."


@contextlib.contextmanager
def _no_main_module() -> Iterator[None]:
    """Keep new processes from running the user's script again: they need nothing of it."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


# --- in a worker ------------------------------------------------------------------------------------------------------


def _work(
    pipe: Connection,
    shared: SharedClients,
    build: Callable[[], SplitModel],
    spec: TrainingSpec,
    seed: int,
    memories: Path,
) -> None:
    """Train what comes through the pipe until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to deal with
    torch.set_num_threads(1)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        clients, trainer = shared.open(), OneByOne(build(), spec, seed, Memories(memories))
        pipe.send(("ready", None))
        sent: GlobalState | None = None
        while True:
            task: _Task = pipe.recv()
            sent = sent if task.sent is None else _unpack_state(task.sent)
            assert sent is not None
            pipe.send(_answer(trainer, clients[task.client], sent, task))


def _answer(trainer: OneByOne, client: Client, sent: GlobalState, task: _Task) -> tuple[str, Any]:
    try:
        return "result", _pack_result(trainer.train_one(client, sent, task.last, round=task.round))
    except CcvrError as error:
        return "error", str(error)
    except Exception as error:  # a user's model may raise anything
        where = error.__traceback__
        while where is not None and where.tb_next is not None:
            where = where.tb_next
        line = f"{where.tb_frame.f_code.co_filename}:{where.tb_lineno}" if where else "an unknown place"
        fact = f"{type(error).__name__} in {line}: {error}"
        return "error", f"client {task.client} failed in round {task.round} ({fact}). The run can be resumed."


def _pack_state(state: GlobalState) -> bytes:
    groups = {"parameters": state.parameters, "buffers": state.buffers, "broadcast": state.broadcast}
    return save({f"{group}/{name}": t.contiguous() for group, tensors in groups.items() for name, t in tensors.items()})


def _unpack_state(blob: bytes) -> GlobalState:
    groups: dict[str, dict[str, Tensor]] = {"parameters": {}, "buffers": {}, "broadcast": {}}
    for key, tensor in load(blob).items():
        group, _, name = key.partition("/")
        groups[group][name] = tensor
    return GlobalState(**groups)


Packed = tuple[bytes, int, int, int, bool, LocalMetrics]


def _pack_result(result: LocalResult) -> Packed:
    state = GlobalState(result.parameters, result.buffers, result.payload)
    numbers = (result.client, result.num_examples, result.num_steps, result.remembers)
    return _pack_state(state), *numbers, result.metrics


def _unpack_result(packed: Packed) -> LocalResult:
    blob, client, num_examples, num_steps, remembers, metrics = packed
    state = _unpack_state(blob)
    return LocalResult(
        client, state.parameters, state.buffers, num_examples, num_steps, state.broadcast, {}, metrics, remembers
    )
