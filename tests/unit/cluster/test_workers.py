"""A pool with workers elsewhere: when they are asked for, and when they are let go."""

import multiprocessing
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from calls import fail, rest

from ponente.cluster.workers import READY, Ended, WorkerPool, WorkerProcess, call_safely


class Thread:
    """A worker that is a thread, and ready after a while."""

    exitcode = None

    def __init__(self, call: Callable[[int], Any], connection: Connection, ready_after: float) -> None:
        self._call, self._connection, self._ready_after = call, connection, ready_after
        self.ended_at: float | None = None
        self.calls: list[int] = []
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        try:
            time.sleep(self._ready_after)
            self._connection.send(READY)
            while True:
                key = self._connection.recv()
                self.calls.append(key)
                self._connection.send(call_safely(self._call, key, lambda counted: None))
        except (EOFError, OSError):
            self._connection.close()

    def kill(self) -> None:
        self.ended_at = self.ended_at or time.monotonic()

    def join(self, timeout: float | None = None) -> None:
        return None


class Far:
    """Where threads are asked for."""

    def __init__(self, most: int, ready_after: float = 0.0) -> None:
        self._most, self._ready_after = most, ready_after
        self.made: list[Thread] = []

    @property
    def wanted(self) -> int:
        return self._most - sum(worker.ended_at is None for worker in self.made)

    def worker(self, call: Callable[[int], Any]) -> tuple[Connection, WorkerProcess]:
        ours, theirs = multiprocessing.Pipe()
        self.made.append(Thread(call, theirs, self._ready_after))
        return ours, self.made[-1]

    def is_lost(self, process: WorkerProcess) -> bool:
        return False


class Keys:
    """Calls by their keys."""

    def __init__(self, *keys: int) -> None:
        self.left = list(keys)

    @property
    def waiting(self) -> int:
        return len(self.left)

    def next_key(self) -> int | None:
        return self.left.pop(0) if self.left else None


def ended(pool: WorkerPool, keys: Keys, on_ended: Callable[[Ended], None] = lambda one: None) -> list[Ended]:
    found = []
    for news in pool.run(keys):
        if isinstance(news, Ended):
            found.append(news)
            on_ended(news)
    return found


def test_what_has_nothing_to_do_elsewhere_is_let_go_before_the_last_call_ends() -> None:
    far = Far(2)
    found = ended(WorkerPool(rest, 1, None, far), Keys(200, 1, 1, 1, 1))
    assert sorted(one.value for one in found) == [1, 1, 1, 1, 200]
    assert 1 <= len(far.made) <= 2 and sum(len(worker.calls) for worker in far.made) == 4
    assert all(worker.ended_at is not None and worker.ended_at < time.monotonic() - 1 for worker in far.made)


def test_no_more_are_asked_for_than_there_are_calls_that_wait() -> None:
    far = Far(50, ready_after=30.0)
    assert len(ended(WorkerPool(rest, 1, None, far), Keys(30, 1, 1))) == 3
    assert len(far.made) == 2  # for the two that waited at first; they were let go before they were ready


def test_a_call_that_fails_here_and_is_made_again_here_asks_for_nobody() -> None:
    far, keys, tries = Far(5), Keys(7), [0]

    def again(one: Ended) -> None:
        tries[0] += 1
        if tries[0] < 3:
            keys.left.append(one.key)

    found = ended(WorkerPool(fail, 1, None, far), keys, again)
    assert len(found) == 3 and all("ValueError: 7" in (one.error or "") for one in found)
    assert far.made == []
