"""A pool of worker processes, here and on other machines, that survives the death of any of them.

In: calls to make, one at a time to whichever worker is free. Out: how each ended, in the order in which they ended, and
in between what calls report of themselves. A worker that dies or takes too long fails only its own call and is
replaced. Workers end with their parent.
"""

import contextlib
import logging
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from ponente.cluster.launch import LOG_FORMAT, RESUME_EXIT
from ponente.cluster.nursery import Nursery, can_fork
from ponente.cluster.process import signal_name
from ponente.config.errors import UserError
from ponente.store.volume import is_no_space

_CONTEXT = multiprocessing.get_context("spawn")
_REPORT_SECONDS = 0.2


@dataclass(frozen=True)
class Ended:
    """How one call ended: with a value, or with an error as text."""

    key: int
    value: Any = None
    error: str | None = None
    no_space: bool = False
    is_users: bool = False  # the error speaks to the user: trying again would find the same
    is_lost: bool = False  # with its machine, which is not the call's fault


@dataclass(frozen=True)
class Counted:
    """What a call that still runs has counted so far."""

    key: int
    counts: Mapping[str, int]


class CallSource(Protocol):
    """Where a pool takes its calls from."""

    @property
    def waiting(self) -> int:
        """How many calls are to be made by now."""

    def next_key(self) -> int | None:
        """The next call to make; None while there is none."""


class WorkerProcess(Protocol):
    """What a pool wants of a worker's process."""

    @property
    def exitcode(self) -> int | None: ...

    def kill(self) -> None: ...

    def join(self, timeout: float | None = None) -> None: ...


class Elsewhere(Protocol):
    """Where workers on other machines come from."""

    @property
    def wanted(self) -> int:
        """How many more may be asked for now."""

    def worker(self, call: Callable[[int], Any]) -> "tuple[Connection, WorkerProcess]":
        """A worker that was asked for; it says READY when there is one, and is gone if there is none."""

    def is_lost(self, process: WorkerProcess) -> bool:
        """Whether a worker that is gone went with its machine."""


READY = "ready"


class WorkerPool:
    """Up to `count` processes here, and those of `elsewhere` as they come, each running `call(key)`."""

    def __init__(
        self,
        call: Callable[[int], Any],
        count: int,
        timeout_seconds: float | None,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self._call = call
        self._count = count
        self._timeout_seconds = timeout_seconds
        self._elsewhere = elsewhere
        self._workers: list[_Worker] = []

    def run(self, source: CallSource) -> Iterator[Ended | Counted | None]:
        """Makes the source's calls until it has none left and all have ended; a None now and then is a tick."""
        try:
            while True:
                self._hand_out(source)
                if source.waiting:
                    self._ask_elsewhere(source.waiting)
                else:
                    self._let_go()
                busy = [worker for worker in self._workers if worker.key is not None]
                if not busy:
                    return
                wait([worker.connection for worker in self._workers if worker.is_heard], timeout=0.5)
                for worker in [worker for worker in self._workers if worker.is_heard]:
                    while (news := self._look_at(worker)) is not None:
                        yield news
                        if isinstance(news, Ended):
                            break
                yield None
        finally:
            for worker in self._workers:
                worker.kill()

    def _ask_elsewhere(self, waiting: int) -> None:
        free = sum(worker.is_elsewhere and worker.key is None for worker in self._workers)
        while self._elsewhere is not None and free < waiting and self._elsewhere.wanted > 0:
            self._workers.append(_Worker(*self._elsewhere.worker(self._call), is_ready=False))
            free += 1

    def _let_go(self) -> None:
        """Gives back the cores elsewhere that have nothing to do: the last calls may take long."""
        for worker in [worker for worker in self._workers if worker.is_elsewhere and worker.key is None]:
            worker.kill()
            self._workers.remove(worker)

    def _hand_out(self, source: CallSource) -> None:
        idle = [worker for worker in self._workers if worker.is_ready and worker.key is None]
        while idle or sum(not worker.is_elsewhere for worker in self._workers) < self._count:
            key = source.next_key()
            if key is None:
                return
            if not idle:
                worker = _Worker(*_worker_here())
                worker.learn(self._call)
                self._workers.append(worker)
                idle.append(worker)
            idle.pop().give(key)

    def _look_at(self, worker: "_Worker") -> Ended | Counted | None:
        try:
            news = worker.news()
        except EOFError:
            self._workers.remove(worker)
            is_lost = self._elsewhere is not None and self._elsewhere.is_lost(worker.process)
            return worker.died(is_lost=is_lost)
        is_timed = self._timeout_seconds is not None and worker.key is not None
        if is_timed and time.monotonic() - worker.since > (self._timeout_seconds or 0) and not isinstance(news, Ended):
            worker.kill()
            self._workers.remove(worker)
            assert worker.key is not None
            return Ended(worker.key, error=f"took longer than {self._timeout_seconds} seconds and was stopped")
        return news


@contextmanager
def nursery_of(module: str) -> Iterator[Nursery | None]:
    """A process that imports `module` while the block prepares work; pools made in the block take workers from it.

    None where processes cannot be forked; workers are then started one by one.
    """
    if not can_fork():
        yield None
        return
    nursery = Nursery(module, _serve)
    token = _nursery.set(nursery)
    try:
        yield nursery
    finally:
        _nursery.reset(token)
        nursery.close()


class _Worker:
    """One process and the call it is busy with."""

    def __init__(self, connection: Connection, process: WorkerProcess, *, is_ready: bool = True) -> None:
        self.connection, self.process = connection, process
        self.is_elsewhere = not is_ready
        self.is_ready = is_ready
        self.key: int | None = None
        self.since = 0.0

    @property
    def is_heard(self) -> bool:
        """Whether it may have something to say."""
        return self.is_elsewhere or self.key is not None

    def learn(self, call: Callable[[int], Any]) -> None:
        """Tells it what to call; what cannot be sent is an error here."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it died; the next look finds out
            self.connection.send(call)

    def give(self, key: int) -> None:
        self.key, self.since = key, time.monotonic()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it died; the next look finds out
            self.connection.send(key)

    def news(self) -> Ended | Counted | None:
        """What it sent, if anything; EOFError where it died."""
        if not self.connection.poll():
            return None
        try:
            news: Ended | Counted | str = self.connection.recv()
        except OSError:  # reset, or ended in the middle of a message
            raise EOFError from None
        if isinstance(news, str):
            self.is_ready = True
            return None
        if isinstance(news, Ended):
            self.key = None
        return news

    def died(self, *, is_lost: bool) -> Ended | None:
        """How its call ended, if it had one."""
        self.process.join(timeout=10)
        code = self.process.exitcode
        how = signal_name(-code) if code is not None and code < 0 else f"exit code {code}"
        how = getattr(self.process, "why", "") or how
        self.connection.close()
        if self.key is None:
            return None
        error = "its worker was lost with its machine" if is_lost else f"its worker process died ({how})"
        return Ended(self.key, error=error, is_lost=is_lost)

    def kill(self) -> None:
        self.process.kill()
        self.process.join(timeout=10)
        self.connection.close()


_nursery: ContextVar[Nursery | None] = ContextVar("ponente_nursery", default=None)


def _worker_here() -> tuple[Connection, WorkerProcess]:
    nursery = _nursery.get()
    forked = nursery.worker() if nursery is not None else None
    return forked or _spawned()


def _spawned() -> tuple[Connection, WorkerProcess]:
    """A process of our own, that shares nothing."""
    ours, theirs = _CONTEXT.Pipe()
    process = _CONTEXT.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return ours, process


def _serve(connection: Connection) -> None:
    """The main loop of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        call: Callable[[int], Any] = connection.recv()
    except (EOFError, OSError):
        return
    while True:
        try:
            key = connection.recv()
        except (EOFError, OSError):
            return
        connection.send(call_safely(call, key, connection.send))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(RESUME_EXIT)


class _Counter:
    """Passes on what a call counts, not too often."""

    def __init__(self, key: int, send: Callable[[Counted], None]) -> None:
        self._key = key
        self._send = send
        self._last = 0.0
        self._unsent: Mapping[str, int] | None = None

    def __call__(self, counts: Mapping[str, int]) -> None:
        self._unsent = counts
        if time.monotonic() - self._last >= _REPORT_SECONDS:
            self.flush()

    def flush(self) -> None:
        if self._unsent is not None:
            self._send(Counted(self._key, self._unsent))
            self._last, self._unsent = time.monotonic(), None


_counter: ContextVar[_Counter | None] = ContextVar("ponente_shard_counter", default=None)


def report_counts(**counts: int) -> None:
    """Says what the running call of a pool has counted so far (`rows=…`); nothing outside one, cheap to call often."""
    counter = _counter.get()
    if counter is not None:
        counter(counts)


def call_safely(call: Callable[[int], Any], key: int, send: Callable[[Counted], None]) -> Ended:
    """The call's value or, whatever user code raises, its error as text; `send` gets what it counts on the way."""
    counter = _Counter(key, send)
    token = _counter.set(counter)
    try:
        value = call(key)
        counter.flush()
        return Ended(key, value=value)
    except UserError as error:
        return Ended(key, error=str(error), no_space=is_no_space(error), is_users=True)
    except Exception as error:  # noqa: BLE001 (told to the parent, which decides)
        return Ended(key, error=traceback.format_exc(), no_space=is_no_space(error))
    finally:
        _counter.reset(token)
