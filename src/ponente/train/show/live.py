"""A training run where people look: one live line in a terminal, log lines now and then elsewhere.

While the line is shown, what `logging` and `print` send to the terminal goes above it. Standard error takes the line.
"""

import logging
import sys
import threading
import time
from typing import Any, Protocol, TextIO, cast

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ponente.train.show.progress import Progress

_DRAW_SECONDS = 0.1
_LOG_SECONDS = 10.0
_FIRST_STEPS = 3  # of a life; each is told

logger = logging.getLogger(__name__)


class Show(Protocol):
    """Shows how far a run is."""

    def update(self, progress: Progress) -> None: ...

    def close(self) -> None:
        """Ends the showing; what was shown last stays. May be called twice."""


class NoShow:
    """Shows nothing: of a run's processes, one speaks."""

    def update(self, progress: Progress) -> None:
        return None

    def close(self) -> None:
        return None


class _Above:
    """A stream whose lines appear above the live line, as wide as they are."""

    def __init__(self, console: Console, stream: TextIO) -> None:
        self._console = console
        self._stream = stream
        self._line = ""
        self._lock = threading.RLock()

    def write(self, text: str) -> int:
        with self._lock:
            *lines, self._line = (self._line + text).split("\n")
            for line in lines:
                self._console.print(Text.from_ansi(line), soft_wrap=True)
        return len(text)

    def end_line(self) -> None:
        """Shows what was written without an end of line."""
        with self._lock:
            if self._line:
                self.write("\n")

    def flush(self) -> None:
        self._stream.flush()

    @property
    def rich_proxied_file(self) -> TextIO:
        """By this name rich finds the stream that its own consoles must write to."""
        return self._stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _LiveLine:
    """One line of a terminal, drawn again a few times a second."""

    def __init__(self, console: Console, begin: Progress) -> None:
        self._drawn = 0.0
        self._last = begin
        self._live = Live(
            _text(begin, console.width),
            console=console,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start(refresh=True)
        console.show_cursor(True)  # a process that is killed could not show it again
        self._streams: dict[int, _Above] = {}
        self._console = console
        self._handlers: list[tuple[logging.StreamHandler[Any], Any]] = []
        self._redirect()

    def update(self, progress: Progress) -> None:
        self._last = progress
        now = time.monotonic()
        if now - self._drawn >= _DRAW_SECONDS or progress.step >= progress.steps:
            self._drawn = now
            self._live.update(_text(progress, self._console.width), refresh=True)

    def close(self) -> None:
        if not self._live.is_started:
            return
        for above in self._streams.values():
            above.end_line()
        self._live.update(_text(self._last, self._console.width), refresh=True)
        self._live.stop()
        for handler, stream in self._handlers:
            handler.setStream(stream)
        sys.stdout, sys.stderr = self._stdout, self._stderr

    def _redirect(self) -> None:
        """Has handlers of logging, and print, write above the line where they would write into it."""
        self._stdout, self._stderr = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = self._above(sys.stdout), self._above(sys.stderr)
        for handler in _stream_handlers():
            above = self._above(handler.stream)
            if above is not handler.stream:
                self._handlers.append((handler, handler.stream))
                handler.setStream(above)

    def _above(self, stream: TextIO) -> TextIO:
        if stream is not self._console.file and not _is_terminal(stream):
            return stream
        return cast(TextIO, self._streams.setdefault(id(stream), _Above(self._console, stream)))


class _LogLines:
    """A log line for the first steps, every few seconds, and for the last step."""

    def __init__(self, log_seconds: float) -> None:
        self._log_seconds = log_seconds
        self._told = 0
        self._last = time.monotonic()
        self._untold: Progress | None = None

    def update(self, progress: Progress) -> None:
        now = time.monotonic()
        is_due = self._told < _FIRST_STEPS or now - self._last >= self._log_seconds or progress.step >= progress.steps
        self._untold = progress
        if is_due:
            self._told += 1
            self._last = now
            self.close()

    def close(self) -> None:
        if self._untold is not None:
            logger.info("%s", self._untold)
            self._untold = None


def showing(
    total_steps: int, first_step: int = 0, *, console: Console | None = None, log_seconds: float = _LOG_SECONDS
) -> Show:
    """A show for a run of so many steps, which has done `first_step` of them; close it in any case.

    Example:
        with contextlib.closing(showing(10_000)) as show:
            show.update(Progress(step=1, steps=10_000, loss=10.8))
    """
    console = console or Console(stderr=True)
    if not console.is_terminal or console.is_dumb_terminal:
        return _LogLines(log_seconds)
    return _LiveLine(console, Progress(step=first_step, steps=total_steps, note="starting"))


def _text(progress: Progress, width: int) -> Text:
    return Text(progress.within(width), no_wrap=True, overflow="ellipsis")


def _stream_handlers() -> list[logging.StreamHandler[Any]]:
    """All handlers of all loggers that write to a stream of their own, which neither a file nor sys.stderr is."""
    loggers = [logging.getLogger(), *(one for one in logging.root.manager.loggerDict.values())]
    handlers = {id(one): one for log in loggers if isinstance(log, logging.Logger) for one in log.handlers}
    return [
        one
        for one in handlers.values()
        if isinstance(one, logging.StreamHandler) and not isinstance(one, logging.FileHandler)
        if not isinstance(getattr(type(one), "stream", None), property)  # as `logging.lastResort`: sys.stderr, always
    ]


def _is_terminal(stream: object) -> bool:
    """Whether a stream, which may be of anybody's making, writes to a terminal."""
    isatty = getattr(stream, "isatty", None)
    return isatty is not None and not getattr(stream, "closed", False) and bool(isatty())
