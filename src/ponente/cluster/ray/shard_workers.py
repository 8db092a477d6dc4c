"""Workers of a sharded map on other machines: actors of one core each, as many as the cluster has room for.

Each is reached through a pipe, as a worker here is; a thread carries what goes over it to the actor and back.
"""

import contextlib
import logging
import multiprocessing
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import RayActorError, RayError

from ponente.cluster.ray.connection import connect, handed_on, nodes, own_paths
from ponente.cluster.ray.host import ShardHost
from ponente.cluster.workers import READY, WorkerProcess

logger = logging.getLogger(__name__)

_COUNT_SECONDS = 0.5
_COUNT_CORES_SECONDS = 10.0
_SPARE = 2
_MOST_DEATHS = 20  # of workers before they were ready, one after the other


class RayWorkers:
    """Workers from the cluster at an address: `most` if so many were asked for, else as many as it has cores by now,
    and a few more, for which it may start machines.
    """

    def __init__(self, address: str, most: int, place: str, *, is_asked: bool) -> None:
        connect(address)
        self._most = most
        self._place = place
        self._is_asked = is_asked
        self._cores, self._counted_at = 0, -_COUNT_CORES_SECONDS
        self._host: Any = ray.remote(ShardHost)
        self._call: Any = None
        self._alive: set[_RayWorker] = set()
        self._deaths = 0

    @property
    def wanted(self) -> int:
        self._alive = {worker for worker in self._alive if not worker.is_over}
        limit = self._most if self._is_asked else min(self._most, self._cores_now() + _SPARE)
        return limit - len(self._alive) if self._deaths < _MOST_DEATHS else 0

    def _cores_now(self) -> int:
        if time.monotonic() - self._counted_at > _COUNT_CORES_SECONDS:
            self._counted_at = time.monotonic()
            self._cores = int(ray.cluster_resources().get("CPU", 0))  # type: ignore[no-untyped-call]
        return self._cores

    def worker(self, call: Callable[[int], Any]) -> tuple[Connection, WorkerProcess]:
        if self._call is None:
            self._call = ray.put(cloudpickle.dumps(call))  # type: ignore[no-untyped-call]
        ours, theirs = multiprocessing.Pipe()
        actor = self._host.options(num_cpus=1, max_concurrency=2).remote(
            self._call, own_paths(), handed_on(), self._place
        )
        worker = _RayWorker(actor, theirs)
        self._alive.add(worker)
        worker.follow()
        return ours, worker

    def is_lost(self, process: WorkerProcess) -> bool:
        if not isinstance(process, _RayWorker):
            return False
        self._deaths = 0 if process.was_ready else self._deaths + 1
        if self._deaths == _MOST_DEATHS:
            logger.warning("%d workers on other machines ended before they began: %s", self._deaths, process.why)
        return process.node is None or process.node not in {one["NodeID"] for one in nodes() if one["Alive"]}


class _RayWorker:
    """An actor, and the thread that speaks with it."""

    def __init__(self, actor: Any, connection: Connection) -> None:
        self._actor = actor
        self._connection = connection
        self._thread = threading.Thread(target=self._carry, name="ray-worker", daemon=True)
        self.exitcode: int | None = None
        self.node: str | None = None
        self.was_ready = False
        self.is_over = False
        self.why = ""

    def follow(self) -> None:
        self._thread.start()

    def _carry(self) -> None:
        try:
            self.node = ray.get(self._actor.node.remote())
            self.was_ready = True
            self._connection.send(READY)
            while True:
                self._run(self._connection.recv())
        except RayError as error:
            self.why = str(error)
        except (EOFError, OSError):
            self.why = "nobody wants it any more"
        finally:
            self.is_over = True
            self._connection.close()

    def _run(self, key: int) -> None:
        running = self._actor.run.remote(key)
        while not ray.wait([running], timeout=_COUNT_SECONDS)[0]:
            counted = ray.get(self._actor.counted.remote())
            if counted is not None:
                self._connection.send(counted)
        self._connection.send(ray.get(running))

    def kill(self) -> None:
        self.is_over = True
        with contextlib.suppress(RayActorError):
            ray.kill(self._actor)

    def join(self, timeout: float | None = None) -> None:
        """Its end is known from Ray; there is no process of ours to wait for."""
