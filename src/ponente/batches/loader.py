"""Batches as device arrays, read ahead of the step that wants them.

In: a stream of batches and how arrays lie on devices. Out: an iterator of device batches from any step on. Each process
reads only the rows that its own devices hold. A thread begins to read the next batch before it puts together the one
that has come, and stays a few batches ahead; what it raises is raised where the batch is asked for.
"""

import math
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from numpy.typing import NDArray

from ponente.batches.batch import Batch, PendingBatch
from ponente.batches.permutation import Indices
from ponente.batches.shape import BatchShape
from ponente.batches.stream import BatchStream
from ponente.config.errors import RefusedError

_AHEAD = 2
_LOOK_SECONDS = 0.1  # how often a thread that waits looks whether the loader was closed


class _Closed(Exception):
    """The loader was closed while its thread waited."""


class _Wait(Exception):
    """A batch cannot be begun without waiting."""


def _refuse_to_wait() -> None:
    raise _Wait


class Loader:
    """Iterates over device batches; close it, or use it as a context, to stop its thread.

    Example:
        with Loader(stream, sharding, start=state.step) as batches:
            for step, batch in batches: ...
    """

    def __init__(
        self,
        stream: BatchStream,
        sharding: jax.sharding.Sharding,
        *,
        start: int = 0,
        stop: int | None = None,
        ahead: int = _AHEAD,
        rows_together: Callable[[int], int] | None = None,
        placing: AbstractContextManager[object] | None = None,
        widest: Callable[[int, int], int] | None = None,
    ) -> None:
        """Args:
        sharding: of arrays [B, …], whose first axis it may split.
        start: the first step; any, at no cost.
        stop: the step after the last; by default where the stream ends.
        ahead: how many batches are kept ready.
        rows_together: of a batch of so many rows, how many are computed at once, for tables of their documents; None:
            batches have no tables, which only some kernels take.
        placing: is held while a batch is put on devices. Who holds it while a step is begun keeps batches from landing
            behind the step's temporary memory, where they would cut the free memory in two.
        widest: of a step and the places a row that this process's tables need, the most that any process's do.
        """
        if ahead < 1:
            raise RefusedError(f"found a loader that keeps {ahead} batches ready; needed 1 or more. Give ahead=2.")
        _check_sizes(stream, sharding)
        self._stream = stream
        self._sharding = sharding
        self._rows_together = rows_together
        self._widest = widest
        self._placing = nullcontext() if placing is None else placing
        self._start = start
        self._stop = stream.steps if stop is None else stop
        self._ready: queue.Queue[tuple[int, Batch] | BaseException | None] = queue.Queue(maxsize=ahead)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ponente-loader", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[tuple[int, Batch]]:
        while not self._closed.is_set():
            try:
                ready = self._ready.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                continue
            if ready is None:
                self._closed.set()
                return
            if isinstance(ready, BaseException):
                self._closed.set()
                raise ready
            yield ready

    def close(self) -> None:
        """Stops reading ahead, also where it waits for a cache that is being built.

        A thread that waits for other processes is left alone, for theirs may have stopped a batch before.
        """
        self._closed.set()
        if self._widest is None:
            self._thread.join()

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        try:
            step, pending = self._start, None
            while not self._closed.is_set() and (self._stop is None or step < self._stop):
                pending = pending or self._begin(step, self._stop_if_closed)
                following = self._begin_if_ready(step + 1)
                self._put((step, self._to_devices(step, pending)))
                step, pending = step + 1, following
            self._put(None)
        except _Closed:
            return
        except BaseException as error:  # noqa: BLE001 (raised again where the batch is asked for)
            self._put(error)

    def _begin_if_ready(self, step: int) -> PendingBatch | None:
        """Begins to read the batch of a later step; None where it would have to wait or fails: its turn will come."""
        if self._stop is not None and step >= self._stop:
            return None
        try:
            return self._begin(step, _refuse_to_wait)
        except (_Wait, Exception):  # noqa: BLE001 (it fails again in its turn)
            return None

    def _stop_if_closed(self) -> None:
        if self._closed.is_set():
            raise _Closed

    def _put(self, ready: tuple[int, Batch] | BaseException | None) -> None:
        while not self._closed.is_set():
            with suppress(queue.Full):
                self._ready.put(ready, timeout=_LOOK_SECONDS)
                return

    def _begin(self, step: int, on_wait: Callable[[], None]) -> PendingBatch:
        return self._stream.begin(step, local_rows(self._sharding, self._stream.schedule.size(step)), on_wait)

    def _to_devices(self, step: int, pending: PendingBatch) -> Batch:
        count = self._stream.schedule.size(step)
        rows = local_rows(self._sharding, count)
        together = None if self._rows_together is None else self._rows_together(count)
        batch = pending.finish(together, None if self._widest is None else partial(self._widest, step))
        with self._placing:
            return on_devices(batch, rows, count, self._sharding)


def _check_sizes(stream: BatchStream, sharding: jax.sharding.Sharding) -> None:
    """Refuses, before anything is read, batches that devices cannot divide among them."""
    for stage in stream.schedule.stages:
        try:
            local_rows(sharding, stage.value)
        except ValueError as error:
            over = sharding.spec[0] if isinstance(sharding, NamedSharding) else ()
            axes = (over,) if isinstance(over, str) else tuple(over or ())
            parts = math.prod(sharding.mesh.shape[axis] for axis in axes) if axes else "the devices"  # type: ignore[attr-defined]
            raise RefusedError(
                f"found a batch size of {stage.value} for {parts} devices; needed one that they divide ({error}). "
                f"Set trainer.train_batch_size to a multiple of {parts}."
            ) from error


def local_rows(sharding: jax.sharding.Sharding, count: int) -> Indices:
    """The rows of a batch of `count` that devices of this process hold."""
    held = np.zeros(count, bool)
    for index in sharding.addressable_devices_indices_map((count, 1)).values():
        assert index is not None
        held[index[0]] = True
    return np.flatnonzero(held)


def on_devices(batch: Batch, rows: Indices, count: int, sharding: jax.sharding.Sharding) -> Batch:
    """A batch of `count` rows on devices, of which `batch` has those that this process holds."""
    if sharding.is_fully_addressable:
        placed: Batch = jax.device_put(batch, sharding)
        return placed
    place = np.full(count, -1)
    place[rows] = np.arange(len(rows))

    def spread(local: NDArray[Any]) -> jax.Array:
        def part(index: tuple[slice, ...] | None) -> NDArray[Any]:
            assert index is not None
            mine: NDArray[Any] = local[place[index[0]]]
            return mine[(slice(None), *index[1:])]

        return jax.make_array_from_callback((count, *local.shape[1:]), sharding, part)

    return Batch(*(spread(array) for array in batch))


def abstract_batch(shape: BatchShape, rows: int, sharding: jax.sharding.Sharding, places: int = 0) -> Batch:
    """The shapes and types of a batch of so many rows, with tables of documents that have so many places a row."""
    row = [jax.ShapeDtypeStruct((rows, shape.length), kind, sharding=sharding) for kind in (np.int32, np.float32)]
    table = jax.ShapeDtypeStruct((rows, places), np.int32, sharding=sharding)
    return Batch(row[0], row[0], row[1], row[0], row[0], table, table)
