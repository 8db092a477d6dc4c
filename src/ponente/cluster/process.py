"""Processes by name: who this one is, whether another is gone, and that this one was asked to end.

A process is named by host (boot and process-id space included), pid, start time and a random token, so a pid that was
used again, a fork, and an equal pid in another container are told apart.
"""

import os
import secrets
import signal
import socket
from functools import cache
from pathlib import Path

import msgspec


class StoppedError(BaseException):
    """This process was asked to end (SIGTERM); no Exception, so that user code does not swallow it."""


class ProcessName(msgspec.Struct, frozen=True):
    """A process of some machine; `started` is in the kernel's ticks, 0 where it has none to tell."""

    host: str
    pid: int
    started: int
    token: str


_known: dict[int, ProcessName] = {}


def this_process() -> ProcessName:
    """The name of the running process; a fork gets a name of its own."""
    pid = os.getpid()
    if pid not in _known:
        _known.clear()
        _known[pid] = ProcessName(host=this_host(), pid=pid, started=_started(pid) or 0, token=secrets.token_hex(8))
    return _known[pid]


@cache
def this_host() -> str:
    """This machine, since its last boot, as seen from this process-id space."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    space = Path("/proc/self/ns/pid")
    parts = [socket.gethostname()]
    if boot.exists() and space.exists():
        parts += [boot.read_text().strip(), os.readlink(space)]
    return "/".join(parts)


def is_gone(process: ProcessName) -> bool:
    """Whether `process` is known to have ended; False where that cannot be seen from here."""
    if process.host != this_host():
        return False
    if process.pid == os.getpid():
        return process.token != this_process().token
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    started = _started(process.pid)
    return started is not None and process.started != 0 and started != process.started


def _started(pid: int) -> int | None:
    """When a process started; -1 for one that has ended but was not waited for; None where nobody tells."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return -1 if fields[0] in "ZX" else int(fields[19])


def signal_name(number: int) -> str:
    """SIGKILL, SIGSEGV, …; "signal 39" for one that has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
