"""A tracker in a thread of its own, behind a bounded queue: one that blocks holds up neither training nor the others.

Where the queue is full, what comes is dropped and counted. `flush` and `finish` wait for the thread, up to a limit.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable

from ponente.train.trackers.guard import GuardedTracker
from ponente.train.trackers.tracker import Metrics, Tracker

_CAPACITY = 10_000
_LIMIT_SECONDS = 60.0
_IDLE_SECONDS = 2.0

logger = logging.getLogger(__name__)


class _Background:
    def __init__(self, tracker: Tracker, capacity: int, limit_seconds: float, idle_seconds: float) -> None:
        self._tracker = GuardedTracker(tracker)
        self._limit_seconds = limit_seconds
        self._idle_seconds = idle_seconds
        self._queue: queue.Queue[Callable[[], None] | None] = queue.Queue(capacity)
        self._dropped = 0
        self._is_finished = False
        self._thread = threading.Thread(target=self._work, name=f"tracker {tracker.name}", daemon=True)
        self._thread.start()

    @property
    def name(self) -> str:
        return self._tracker.name

    def log(self, metrics: Metrics, step: int) -> None:
        own = dict(metrics)
        self._put(lambda: self._tracker.log(own, step))

    def log_summary(self, metrics: Metrics) -> None:
        own = dict(metrics)
        self._put(lambda: self._tracker.log_summary(own))

    def flush(self) -> None:
        flushed = threading.Event()

        def flush() -> None:
            self._tracker.flush()
            flushed.set()

        start = time.monotonic()
        try:
            self._queue.put(flush, timeout=self._limit_seconds)
        except queue.Full:
            self._warn_of_wait()
            return
        if not flushed.wait(self._left_since(start)):
            self._warn_of_wait()

    def finish(self) -> None:
        if self._is_finished:
            return
        self._is_finished = True
        start = time.monotonic()
        try:
            self._queue.put(None, timeout=self._limit_seconds)
            self._thread.join(self._left_since(start))
        except queue.Full:
            pass  # told below, for the thread is alive
        if self._thread.is_alive():
            self._warn_of_wait()
        if self._dropped:
            logger.warning("the tracker %s was too slow: %d records were dropped", self.name, self._dropped)

    def _left_since(self, start: float) -> float:
        return max(0.0, self._limit_seconds - (time.monotonic() - start))

    def _warn_of_wait(self) -> None:
        logger.warning(
            "the tracker %s is not done after %g s, with %d records waiting; nobody waits for it any longer",
            self.name,
            self._limit_seconds,
            self._queue.qsize(),
        )

    def _put(self, call: Callable[[], None]) -> None:
        try:
            self._queue.put_nowait(call)
        except queue.Full:
            if not self._dropped:
                logger.warning(
                    "the tracker %s is too slow: %d records wait, and further ones are dropped while they do",
                    self.name,
                    self._queue.qsize(),
                )
            self._dropped += 1

    def _work(self) -> None:
        while True:
            try:
                call = self._queue.get(timeout=self._idle_seconds)
            except queue.Empty:  # a long evaluation, say: let what was told be seen meanwhile
                self._tracker.flush()
                call = self._queue.get()
            if call is None:
                self._tracker.finish()
                return
            call()


def in_background(
    tracker: Tracker,
    *,
    capacity: int = _CAPACITY,
    limit_seconds: float = _LIMIT_SECONDS,
    idle_seconds: float = _IDLE_SECONDS,
) -> Tracker:
    """`tracker` in a thread of its own.

    Args:
        capacity: how many records may wait for it.
        limit_seconds: how long `flush` and `finish` wait.
        idle_seconds: it is flushed when it was told nothing for so long.
    """
    return _Background(tracker, capacity, limit_seconds, idle_seconds)
