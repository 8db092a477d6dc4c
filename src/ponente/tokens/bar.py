"""The progress of a cache build where people look: a bar in a terminal, a log line now and then elsewhere."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from ponente.tokens.progress import BuildProgress

_LOG_SECONDS = 10.0

logger = logging.getLogger(__name__)


class _Bar:
    """One line a cache, in a terminal."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, now: BuildProgress) -> None:
        if now.name not in self._tasks:
            self._tasks[now.name] = self._progress.add_task(now.name, total=None, counts="")
        text = f"{now.documents:,} docs {now.tokens:,} tokens {now.bytes_per_second / 1e6:.1f} MB/s"
        if now.seconds_left is not None:
            text += f" {now.seconds_left:.0f} s left"
        total = now.total_bytes or None
        self._progress.update(self._tasks[now.name], total=total, completed=now.source_bytes, counts=text)


class _Log:
    """A log line every few seconds."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, now: BuildProgress) -> None:
        if time.monotonic() - self._last >= _LOG_SECONDS:
            self._last = time.monotonic()
            logger.info("%s", now)


@contextmanager
def showing_progress(console: Console | None = None) -> Iterator["_Bar | _Log"]:
    """Gives a function for `build_cache(on_progress=…)`."""
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield _Log()
        return
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TextColumn("{task.fields[counts]}"))
    with Progress(*columns, console=console) as progress:
        yield _Bar(progress)
