"""Launchers: where a task runs. In the driver's own process, or in a process of its own (the default).

A task is a function by name and a JSON job. Launching never blocks on the task (unless it runs in the driver's own
thread); its end is told through a callback with the exit code, negative for a signal. A task's process lives in a
group of its own and ends with its driver: it watches the driver's end of its standard input.
"""

import collections
import contextlib
import importlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import IO, Any, Protocol

from ponente.cluster.resources import Resources
from ponente.store.redaction import Redactor
from ponente.store.text_log import open_log
from ponente.store.volume import volume_of

logger = logging.getLogger(__name__)

OnExit = Callable[[int], None]
RESUME_EXIT = 75  # EX_TEMPFAIL: "resume me"
LOST_EXIT = 69  # EX_UNAVAILABLE: the machine is gone, and the task with it
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"  # of a step's log file
_TAIL_LINES = 40
_MAX_LINE_BYTES = 1 << 16
_DRAIN_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class Task:
    """A function of this or another package, called with a JSON job; its return value is the exit code."""

    name: str
    entry: str  # module:function
    job: Any
    log_path: str
    env: Mapping[str, str] = field(default_factory=dict)
    resources: Resources | None = None
    requirements: Sequence[str] = ()  # packages that its machine must have
    path: Sequence[str] = ()  # where its process finds modules, before all that is installed


class Running(Protocol):
    """A task that was started."""

    @property
    def waits_for(self) -> str | None:
        """What it needs before it can begin, in words; None once it runs."""

    def stop(self, signal_number: int) -> None:
        """Sends a signal to all processes of the task; nothing happens where it has ended."""

    def tail(self) -> str:
        """The last lines that it printed."""


class Launcher(Protocol):
    """Starts tasks."""

    @property
    def finds_room(self) -> bool:
        """Whether it waits itself until a machine has what a task asks for."""

    def start(self, task: Task, on_exit: OnExit) -> Running: ...


class SubprocessLauncher:
    """Each task in a process of its own: a crash of native code ends the task, not the driver."""

    finds_room = False

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor

    def start(self, task: Task, on_exit: OnExit) -> Running:
        log = open_log(task.log_path)  # the pump closes it
        process = subprocess.Popen(
            [sys.executable, "-P", "-u", "-m", "ponente.cluster.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **task.env},
            start_new_session=True,
        )
        running = _Subprocess(process, log, self._redactor, on_exit)
        path = [*task.path, *(path for path in sys.path if path not in task.path)]
        running.begin(json.dumps({"entry": task.entry, "job": task.job, "path": path}).encode())
        return running


class _Subprocess:
    """A task's process; one thread carries its output, without secrets, to its log file, another awaits its end.

    What the task started and forgot ends with it: nobody else would end it, and it may keep the output open for ever.
    """

    waits_for = None

    def __init__(self, process: subprocess.Popen[bytes], log: IO[bytes], redactor: Redactor, on_exit: OnExit) -> None:
        self._process = process
        self._tail: collections.deque[str] = collections.deque(maxlen=_TAIL_LINES)
        self._on_exit = on_exit
        self._pump = threading.Thread(target=self._carry, args=(log, redactor), daemon=True)
        self._pump.start()

    def begin(self, message: bytes) -> None:
        """Sends the process its task; from now on its end is told."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died at once; its exit code says so
            self._process.stdin.write(message + b"\n")
            self._process.stdin.flush()  # and stays open: its end tells the task that the driver is gone
        threading.Thread(target=self._await_end, daemon=True).start()

    def _carry(self, log: IO[bytes], redactor: Redactor) -> None:
        assert self._process.stdout is not None
        writable = True
        with contextlib.suppress(OSError), log, self._process.stdout as output:
            for line in _whole_lines(output):
                text = redactor.text(line.decode(errors="replace"))
                self._tail.append(text)
                if writable:
                    try:
                        log.write(text.encode())
                        log.flush()
                    except OSError as error:  # a full disk must not stop the task: its pipe has to be emptied
                        writable = False
                        self._tail.append(f"(log cut short: {error})\n")

    def _await_end(self) -> None:
        code = self._process.wait()
        self._signal(signal.SIGKILL)
        self._pump.join(timeout=_DRAIN_SECONDS)  # what left the task's group may still hold its output
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._on_exit(code)

    def stop(self, signal_number: int) -> None:
        if self._process.returncode is None:
            self._signal(signal_number)

    def _signal(self, signal_number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal_number)

    def tail(self) -> str:
        return "".join(self._tail)


def _whole_lines(output: IO[bytes]) -> Iterator[bytes]:
    """Lines of a stream; one without end comes in pieces that break at a space, so that no secret is cut in two."""
    held = b""
    while piece := output.readline(_MAX_LINE_BYTES):
        line = held + piece
        end = len(line) if line.endswith(b"\n") else line.rfind(b" ") + 1 or len(line)
        held = line[end:]
        yield line[:end]
    if held:
        yield held


class DriverLauncher:
    """Tasks in the driver's own process: one after another (1), or in that many threads.

    Nothing is started and nothing travels, so it is the quickest for small steps, and the only launcher for memory://.
    """

    finds_room = False

    def __init__(self, redactor: Redactor, *, concurrency: int = 1) -> None:
        self._redactor = redactor
        self._concurrency = concurrency

    def start(self, task: Task, on_exit: OnExit) -> Running:
        if self._concurrency > 1:
            threading.Thread(target=lambda: on_exit(self._call(task)), name=task.name, daemon=True).start()
            return _InDriver()
        try:
            code = self._call(task)
        except BaseException:  # the user's Ctrl-C: the task has ended, and the driver must hear of both
            on_exit(RESUME_EXIT)
            raise
        on_exit(code)
        return _InDriver()

    def _call(self, task: Task) -> int:
        try:
            with _variables(task.env), _logging_to(task.log_path, self._redactor):
                return load_entry(task.entry)(task.job)
        except Exception:
            logger.exception("%s could not be run", task.name)
            return 1


class _InDriver:
    waits_for = None

    def stop(self, signal_number: int) -> None:
        """A thread cannot be stopped; the driver waits for it or leaves it to be taken over."""

    def tail(self) -> str:
        return ""


def load_entry(name: str) -> Callable[[Any], int]:
    """The function `module:function`."""
    module, _, function = name.partition(":")
    entry: Callable[[Any], int] = getattr(importlib.import_module(module), function)
    return entry


@contextlib.contextmanager
def _variables(env: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in env}
    os.environ.update(env)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


_lines: ContextVar[list[str] | None] = ContextVar("ponente_log_lines", default=None)


class _StepLogHandler(logging.Handler):
    """Keeps what a step logs, if the step runs in this process."""

    def emit(self, record: logging.LogRecord) -> None:
        lines = _lines.get()
        if lines is not None and not record.name.startswith("ponente."):
            lines.append(self.format(record) + "\n")


_handler = _StepLogHandler()
_handler.setFormatter(logging.Formatter(LOG_FORMAT))


@contextlib.contextmanager
def _logging_to(path: str, redactor: Redactor) -> Iterator[None]:
    """Writes what is logged inside the block to a file, if anything is."""
    root = logging.getLogger()
    if _handler not in root.handlers:
        root.addHandler(_handler)
    lines: list[str] = []
    token = _lines.set(lines)
    try:
        yield
    finally:
        _lines.reset(token)
        if lines:
            volume_of(path).replace(path, redactor.text("".join(lines)).encode())


def stop_all(running: list[Running], still_running: Callable[[], bool], grace_seconds: float) -> None:
    """Asks tasks to end, then makes them; `still_running` is asked until it says no."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        for task in running:
            task.stop(signal_number)
        deadline = time.monotonic() + grace_seconds
        while still_running() and time.monotonic() < deadline:
            time.sleep(0.02)
