"""What runs inside Ray's workers: an actor that holds one task's process, and one that works through shards."""

import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray import cloudpickle

from ponente.cluster.launch import Running, SubprocessLauncher, Task
from ponente.cluster.ray.connection import membership
from ponente.cluster.workers import Counted, Ended, call_safely
from ponente.config.errors import RefusedError
from ponente.store.redaction import Redactor

_LINGER_SECONDS = 3.0  # for whoever started it to ask how it ended; its log tells the rest


@dataclass(frozen=True)
class Ending:
    """How a task ended: its exit code, and the last lines that it printed."""

    code: int
    tail: str


class TaskHost:
    """On some machine of the cluster: one task, in a process of its own, as on a laptop.

    With a task from the start it outlives the driver that asked for it, and goes when the task has ended; else it ends
    with its owner.
    """

    def __init__(self, task: Task | None = None, secrets: Sequence[str] = ()) -> None:
        self._ended = threading.Event()
        self._code = 0
        self._running: Running | None = None
        self._is_detached = task is not None
        if task is not None:
            self.start(task, secrets)

    def start(self, task: Task, secrets: Sequence[str] = ()) -> None:
        """Starts the task's process."""
        os.environ.update(task.env)  # its log may lie in a bucket
        joining = replace(task, env={**task.env, **membership()})
        self._running = SubprocessLauncher(Redactor(list(secrets))).start(joining, self._end)

    def _end(self, code: int) -> None:
        self._code = code
        self._ended.set()
        if self._is_detached:
            timer = threading.Timer(_LINGER_SECONDS, os._exit, (0,))  # nobody has asked: the driver is gone
            timer.daemon = True
            timer.start()

    def wait(self, seconds: float) -> Ending | None:
        """How it ended, if it does in that time."""
        return Ending(self._code, self.tail()) if self._ended.wait(seconds) else None

    def stop(self, signal_number: int) -> None:
        """Sends a signal to all processes of the task."""
        if self._running is not None:
            self._running.stop(signal_number)

    def tail(self) -> str:
        """The last lines that it printed."""
        return self._running.tail() if self._running is not None else ""

    def free_address(self) -> str:
        """An address of this machine that nothing listens at."""
        host = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
        with socket.socket() as one:
            one.bind((host, 0))
            return f"{host}:{one.getsockname()[1]}"


class ShardHost:
    """On some machine of the cluster: a worker of a sharded map."""

    def __init__(self, call: bytes, path: Sequence[str], variables: Mapping[str, str], place: str) -> None:
        os.environ.update(variables)
        sys.path[:0] = [one for one in path if one not in sys.path]
        if "://" not in place and not os.path.isdir(place):
            raise RefusedError(
                f"found no {place} on {socket.gethostname()}; needed a place that all machines of the cluster see: a "
                "bucket, or a disk that they share"
            )
        self._call: Callable[[int], Any] = cloudpickle.loads(call)  # only now: its modules may lie in those folders
        self._counted: Counted | None = None

    def node(self) -> str:
        """Which machine it is on."""
        return str(ray.get_runtime_context().get_node_id())

    def run(self, key: int) -> Ended:
        self._counted = None
        return call_safely(self._call, key, self._count)

    def _count(self, counted: Counted) -> None:
        self._counted = counted

    def counted(self) -> Counted | None:
        """What the running call has counted so far."""
        return self._counted
