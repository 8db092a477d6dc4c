"""`trainer.distributed`: several processes, each with devices of its own, that train one model together.

In: where the first process listens, how many there are, and which one this is. Out: a `Gang`, and JAX that sees the
devices of all of them.
"""

import atexit
import contextlib
import hashlib
import json
import logging
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax

from ponente.cluster.gang import Alone, Gang, SocketGang, from_first
from ponente.config import execution
from ponente.config.durations import seconds_of
from ponente.config.errors import RefusedError, UserError
from ponente.train.launchers import place_in
from ponente.train.signals import EXIT_CODE, Preempted

_KEY = "trainer.distributed"
_EXIT_CODE = 1  # of a process whose gang has lost another, unless that was asked to stop
_NEWS_SECONDS = 5.0  # until this process knows that another is gone, of which a collective may have told it first
_HEARTBEAT_SECONDS = 600  # JAX's own watch over processes: ours is quicker, and says who it was

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class DistributedConfig:
    """Processes of a run. All are started with the same config, and each with its own `process_id`."""

    coordinator_address: str | None = execution(None)  # host:port of process 0
    num_processes: int | None = execution(None)
    process_id: int | None = execution(None)
    local_device_ids: int | list[int] | None = execution(None)  # of this machine, where processes share it; None: all
    initialize_jax_distributed: bool = execution(True)  # Levanter's; false: one process, whoever started it
    timeout: str | float = execution("5m")  # in which all processes must have come

    @property
    def is_given(self) -> bool:
        """Whether there are several processes."""
        return self.initialize_jax_distributed and self.coordinator_address is not None

    @property
    def is_first(self) -> bool:
        return not self.is_given or self.process_id == 0

    def found(self, environment: Mapping[str, str]) -> "DistributedConfig":
        """What a launcher says of this process, where the config says nothing."""
        given = (self.coordinator_address, self.num_processes, self.process_id)
        if not self.initialize_jax_distributed or any(value is not None for value in given):
            return self
        place = place_in(environment)
        if place is None:
            return self
        return replace(
            self,
            coordinator_address=place.address,
            num_processes=place.count,
            process_id=place.index,
            local_device_ids=place.local_index if self.local_device_ids is None else self.local_device_ids,
        )

    def check(self) -> None:
        """Refuses a part of what is needed."""
        seconds_of(self.timeout, f"{_KEY}.timeout")
        given = {
            "coordinator_address": self.coordinator_address,
            "num_processes": self.num_processes,
            "process_id": self.process_id,
        }
        missing = [name for name, value in given.items() if value is None]
        if not self.initialize_jax_distributed or len(missing) == len(given):
            return
        if missing:
            raise RefusedError(
                f"found {_KEY} without {', '.join(missing)}; needed coordinator_address (host:port of process 0), "
                "num_processes and process_id together. Give them all, or none for one process."
            )
        assert self.coordinator_address and self.num_processes is not None and self.process_id is not None
        if not self.coordinator_address.rpartition(":")[2].isdecimal() or ":" not in self.coordinator_address:
            raise RefusedError(
                f"found {_KEY}.coordinator_address: {self.coordinator_address}; needed host:port, such as node0:12355."
            )
        if not 0 <= self.process_id < self.num_processes:
            raise RefusedError(
                f"found {_KEY}.process_id: {self.process_id} of {self.num_processes} processes; needed 0 to "
                f"{self.num_processes - 1}, each once."
            )


@contextlib.contextmanager
def joined(config: DistributedConfig, what: Any) -> Iterator[Gang]:
    """The gang of this run's processes, all of which have come; JAX sees the devices of all.

    When one of them ends, the others do: what they wait for would never come, and a run goes on from its last
    checkpoint when all are started again.

    Args:
        what: must be the same for all processes.
    """
    if not config.is_given:
        yield Alone()
        return
    assert config.coordinator_address and config.num_processes is not None and config.process_id is not None
    logger.info("process %d of %d: waiting for the others", config.process_id, config.num_processes)
    timeout = seconds_of(config.timeout, f"{_KEY}.timeout") or 0.0
    gang = SocketGang.join(
        config.coordinator_address, config.process_id, config.num_processes, what=_digest(what), timeout=timeout
    )
    gang.when_lost(_end)
    try:
        _start_jax(config, gang, int(timeout))
        yield gang
        gang.gather("the run is done")
        jax.distributed.shutdown()
    except BaseException as error:
        if isinstance(error, Preempted) and error.is_agreed:
            gang.gather("the run has stopped")
            jax.distributed.shutdown()
            gang.close()
            raise
        if isinstance(error, RuntimeError):  # of a collective, or of the gang itself
            gang.wait_for_loss(_NEWS_SECONDS)  # which ends this process, saying who it was
        code = EXIT_CODE if isinstance(error, Preempted) else _EXIT_CODE
        gang.fail(f"{type(error).__name__}: {error}", code)
        refused = 2  # as the command ends after an error of the user's
        atexit.register(_exit, refused if isinstance(error, UserError) else code)  # before JAX waits for the others
        raise
    gang.close()


def _digest(what: Any) -> str:
    return hashlib.sha256(json.dumps(what, sort_keys=True, default=str).encode()).hexdigest()


def _start_jax(config: DistributedConfig, gang: Gang, timeout: int) -> None:
    assert config.coordinator_address
    host = config.coordinator_address.rpartition(":")[0]
    port = from_first(gang, "port of JAX", _free_port(int(config.coordinator_address.rpartition(":")[2]) + 1))
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        f"{host}:{port}",
        gang.count,
        gang.index,
        local_device_ids=config.local_device_ids,
        initialization_timeout=timeout,
        heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
    )
    jax.devices()  # all processes meet here, too
    gang.gather("JAX is there")


def _free_port(wanted: int) -> int:
    """The port, if it is free, for firewalls may let neighbours of a port pass; or any."""
    for port in (wanted, 0):
        with contextlib.suppress(OSError), socket.create_server(("", port)) as found:
            number: int = found.getsockname()[1]
            return number
    raise RefusedError("found no free port on this machine; needed one for JAX. End what holds them.")


def _end(message: str, code: int) -> None:
    """Ends this process, whose main thread may wait in a collective that nothing can interrupt."""
    logger.error("%s; this process ends too. Start all again: the run goes on from its last checkpoint", message)
    _exit(code)


def _exit(code: int) -> None:
    for handler in logging.getLogger().handlers:
        handler.flush()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
