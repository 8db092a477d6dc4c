"""Steps on a Ray cluster: each in a process of its own, on a machine that has what it asks for.

What runs a step belongs to nobody: when the driver dies it goes on, and commits. The next driver finds its claim in the
step's log and waits for it, as it would for any other process.
"""

import contextlib
import secrets
import signal
import threading
import time
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, OutOfMemoryError, RayError, RuntimeEnvSetupError

from ponente.cluster.address import STEP_VARIABLE
from ponente.cluster.launch import LOST_EXIT, OnExit, Running, Task
from ponente.cluster.ray.connection import handed_on, nodes, own_paths
from ponente.cluster.ray.host import Ending, TaskHost
from ponente.cluster.ray.resources import task_options, without_accelerators
from ponente.store.redaction import Redactor

_ASK_SECONDS = 5.0  # how long one question for a task's end stands


class RayLauncher:
    """Starts tasks on the cluster that this process has joined."""

    finds_room = True

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._host: Any = ray.remote(TaskHost)

    def start(self, task: Task, on_exit: OnExit) -> Running:
        options = task_options(task.resources)
        named = {STEP_VARIABLE: ",".join(task.env)} if task.env else {}
        variables = {**handed_on(), **without_accelerators(task.resources), **named, **task.env}
        whole = replace(task, env=variables, path=own_paths(), resources=None)
        actor = self._host.options(
            name=f"{task.name}-{secrets.token_hex(8)}",  # what is detached must have one
            lifetime="detached",
            max_concurrency=4,
            runtime_env={"pip": list(task.requirements)} if task.requirements else None,
            **options,
        ).remote(whole, self._redactor.secrets)
        running = _OnRay(task.name, actor, on_exit, options, has_packages=bool(task.requirements))
        running.follow()
        return running


class _OnRay:
    """A task somewhere in the cluster; a thread awaits its end."""

    def __init__(self, name: str, actor: Any, on_exit: OnExit, asked: dict[str, Any], *, has_packages: bool) -> None:
        self._name = name
        self._actor = actor
        self._on_exit = on_exit
        self._asked = asked
        self._has_packages = has_packages
        self._is_placed = False
        self._tail = ""

    def follow(self) -> None:
        threading.Thread(target=self._follow, name=f"ray-{self._name}", daemon=True).start()

    def _follow(self) -> None:
        code = self._end()
        with contextlib.suppress(RayError):
            ray.kill(self._actor)
        self._on_exit(code)

    def _end(self) -> int:
        while True:
            try:
                ending = self._ask()
                if ending is not None:
                    self._tail = ending.tail
                    return ending.code
            except ActorUnavailableError:  # for the moment, says Ray
                time.sleep(1.0)
            except RuntimeEnvSetupError as error:
                self._tail = f"its environment could not be made: {error}"
                return 1
            except OutOfMemoryError as error:
                self._tail = str(error)
                return -signal.SIGKILL
            except ActorDiedError as error:
                self._tail = str(error)
                return 1 if error.actor_init_failed else LOST_EXIT
            except RayError as error:
                self._tail = f"Ray lost sight of it: {error}"
                return LOST_EXIT

    def _ask(self) -> Ending | None:
        asked = self._actor.wait.remote(_ASK_SECONDS if self._is_placed else 0.0)
        ending: Ending | None = ray.get(asked)
        self._is_placed = True
        return ending

    @property
    def waits_for(self) -> str | None:
        return None if self._is_placed else _waited_for(self._asked, has_packages=self._has_packages)

    def stop(self, signal_number: int) -> None:
        with contextlib.suppress(RayError):
            if self._is_placed and signal_number != signal.SIGKILL:
                self._actor.stop.remote(signal_number)
            else:  # what waits for a machine would begin some day; and what holds a task takes it along
                ray.kill(self._actor)

    def tail(self) -> str:
        return self._tail


def _waited_for(asked: dict[str, Any], *, has_packages: bool) -> str:
    """What a task that has not begun needs, in words."""
    most = max((node["Resources"].get("CPU", 0.0) for node in nodes() if node["Alive"]), default=0.0)
    words = f"a machine with {asked} to spare"
    if asked.get("num_cpus", 0) > most:
        words += f" (the largest has {most:g} cores by now)"
    return f"{words}, or for its packages to be installed there" if has_packages else words
