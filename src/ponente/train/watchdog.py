"""A watchdog for runs that hang: it ends the process, after showing where each thread is, when no step comes.

A hung collective or filesystem does not raise; whoever started the run (the executor, a scheduler) starts it again from
its last checkpoint when it ends with exit code 124.
"""

import faulthandler
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from ponente.config.durations import seconds_of
from ponente.config.fields import Kind

EXIT_CODE = 124

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class WatchdogConfig:
    """How long a run may stand still; None for ever."""

    config_kind = Kind.EXECUTION

    step_timeout: str | float | None = None  # "30m", or seconds; between two steps, evaluation and saving included
    startup_timeout: str | float | None = None  # until the first step has ended


class Watchdog:
    """Watches that steps end; give it a sign with `alive`."""

    def __init__(
        self,
        config: WatchdogConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        end: Callable[[int], object] = os._exit,
    ) -> None:
        self._step_seconds = seconds_of(config.step_timeout, "trainer.progress_watchdog.step_timeout")
        self._seconds = seconds_of(config.startup_timeout, "trainer.progress_watchdog.startup_timeout")
        self._clock = clock
        self._end = end
        self._last = clock()
        self._what = "the first step"
        self._closed = threading.Event()
        if self._seconds is not None or self._step_seconds is not None:
            threading.Thread(target=self._watch, name="ponente-watchdog", daemon=True).start()

    def alive(self, step: int) -> None:
        """A step has ended."""
        self._last, self._seconds, self._what = self._clock(), self._step_seconds, f"a step after step {step}"

    def close(self) -> None:
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(min(1.0, (self._seconds or self._step_seconds or 1.0) / 4)):
            if self._seconds is not None and self._clock() - self._last > self._seconds:
                logger.critical(
                    "no progress: waited %.0f s for %s, which trainer.progress_watchdog allows; the process ends with "
                    "exit code %d. Start the run again: it goes on from its last checkpoint. Where threads are:",
                    self._seconds,
                    self._what,
                    EXIT_CODE,
                )
                faulthandler.dump_traceback(file=sys.__stderr__ or sys.stderr, all_threads=True)
                self._end(EXIT_CODE)
                return
