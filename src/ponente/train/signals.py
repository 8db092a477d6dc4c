"""Being asked to stop: a signal is noted, and the loop saves and ends with exit code 75, which means "resume me"."""

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_CODE = 75  # EX_TEMPFAIL: the executor reads it as preemption

logger = logging.getLogger(__name__)


class Preempted(SystemExit):
    """The run was asked to stop; what it had is saved, and the same command goes on.

    Args:
        is_agreed: all processes of the run stop here.
    """

    def __init__(self, step: int, *, is_agreed: bool = False) -> None:
        super().__init__(EXIT_CODE)
        self.step, self.is_agreed = step, is_agreed


@contextmanager
def ending_at_sigterm() -> Iterator[None]:
    """SIGTERM raises `Preempted`: for the time before the first step, when there is nothing to save."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread is told of signals
        return

    def end(_: int, __: FrameType | None) -> None:
        logger.warning("SIGTERM before the first step: stopping; the same command goes on")
        raise Preempted(0)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def noting_signals() -> Iterator[threading.Event]:
    """An event that is set by SIGTERM, or by SIGINT; a second SIGINT interrupts at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked  # only the main thread is told of signals
        return

    def note(number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT and asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        logger.warning("%s: saving after this step, then stopping", signal.Signals(number).name)

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
