"""A process that makes ready, once, what workers need, and then forks them: they start at once and share it.

In: a module to import and a task that loads things into it. Out: worker processes, as many as are asked for, with their
connections. It runs nothing else, and its one thread has ended before it forks, so that forking is safe. Where a fork
is not to be had, or the process has died, there is no worker from it, and the caller starts one of its own.
"""

import contextlib
import gc
import importlib
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle

_CONTEXT = multiprocessing.get_context("spawn")
_BEAR, _REAP = "bear", "reap"

Serve = Callable[[Connection], None]


class Nursery:
    """Where workers come from while something is being prepared for them."""

    def __init__(self, module: str, serve: Serve) -> None:
        self._connection, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_tend, args=(theirs, module, serve), daemon=True)
        self._process.start()
        theirs.close()

    def prepare(self, task: Callable[[], None]) -> None:
        """Has the process do something before it makes workers.

        Waits until it has taken a large task, and not in a thread: the caller may go on to call a library that keeps
        Python to itself for long, and all that time the process would have nothing to do.
        """
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it died; asking for a worker finds out
            self._connection.send(task)

    def worker(self) -> "tuple[Connection, ForkedProcess] | None":
        """A new worker; None where the process has died."""
        ours, theirs = _CONTEXT.Pipe()
        try:
            self._connection.send(_BEAR)
            send_handle(self._connection, theirs.fileno(), self._process.pid)
            return ours, ForkedProcess(self, self._connection.recv())
        except (EOFError, OSError):
            ours.close()
            return None
        finally:
            theirs.close()

    def reap(self, pid: int, timeout_seconds: float) -> int | None:
        """The exit code of a worker that ends in time, as `subprocess` writes it; None where nobody knows it."""
        try:
            self._connection.send((_REAP, pid, timeout_seconds))
            code: int | None = self._connection.recv()
        except (EOFError, OSError):
            return None
        return code

    @property
    def is_alive(self) -> bool:
        """Whether the process is there to answer."""
        return self._process.is_alive()

    def close(self) -> None:
        """Ends the process; workers that it made live on."""
        self._process.kill()
        self._process.join(timeout=10)
        self._connection.close()


class ForkedProcess:
    """A worker made by a nursery, with what a pool wants of a process."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self._nursery = nursery
        self._pid = pid
        self._is_over = False  # its number may be another process's by now
        self.exitcode: int | None = None

    def kill(self) -> None:
        if not self._is_over:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)

    def join(self, timeout: float | None = None) -> None:
        """Learns the exit code of a process that was killed or has closed its connection."""
        if not self._is_over:
            self.exitcode = self._nursery.reap(self._pid, 10.0 if timeout is None else timeout)
            self._is_over = self.exitcode is not None or not self._nursery.is_alive


def can_fork() -> bool:
    """Whether processes with NumPy in them can be forked here."""
    return sys.platform.startswith("linux")


def _tend(connection: Connection, module: str, serve: Serve) -> None:
    """The main loop of the nursery's process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    importing = threading.Thread(target=importlib.import_module, args=(module,))
    with contextlib.suppress(EOFError, OSError):  # the parent has gone
        _tend_until_alone(connection, serve, importing)


def _tend_until_alone(connection: Connection, serve: Serve, importing: threading.Thread) -> None:
    while True:
        message = connection.recv()
        if importing.ident is None:
            importing.start()  # no sooner, or the first task would wait for it
        if message == _BEAR:
            importing.join()
            gc.freeze()  # workers need not go through what they share
            handle = recv_handle(connection)
            pid = os.fork()
            if pid == 0:
                connection.close()
                _live(Connection(handle), serve)
            os.close(handle)
            connection.send(pid)
        elif isinstance(message, tuple):
            connection.send(_reaped(*message[1:]))
        else:
            message()


def _reaped(pid: int, timeout_seconds: float) -> int | None:
    deadline = time.monotonic() + timeout_seconds
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            return None
        time.sleep(0.01)


def _live(connection: Connection, serve: Serve) -> None:
    """The life of a forked worker: it never goes back into the nursery's loop."""
    code = 1
    try:
        serve(connection)
        code = 0
    except BaseException:  # noqa: BLE001 (it must not go back into the nursery's loop)
        traceback.print_exc()
    finally:
        os._exit(code)
