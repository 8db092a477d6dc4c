"""Arrays of the devices in host memory: one copy, whole before the caller goes on and gives its buffers away.

In: JAX arrays, sharded or not. Out: each shard once (no replicas), as NumPy arrays that nobody else writes to. Nothing
is gathered. Host memory is bounded by one copy of the state, kept for the next snapshot, and two windows of transfers.
"""

import itertools
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from ponente.config.errors import RefusedError
from ponente.store.checkpoint.record import ArrayRecord

Index = tuple[slice, ...]
WINDOW_BYTES = 1 << 28  # of transfers at once; two such are under way
_COPY_BYTES = 1 << 25  # by one thread at a time
_THREADS = min(8, os.cpu_count() or 1)
_PINNED = "pinned_host"
_STORABLE = {
    *("bool", "int4", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "complex64"),
    *("bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"),
}

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class HostArray:
    """An array in host memory, in the pieces that its sharding gives; `shape` is as it lies on disk."""

    record: ArrayRecord
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    shard_shape: tuple[int, ...]
    shards: list[tuple[Index, NDArray[Any]]]


class Staging:
    """Host memory for one snapshot at a time, kept for the next: as large as the state once it has been used."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, int], NDArray[Any]] = {}
        self._in_use = threading.Lock()
        self.has_pinned = True  # until the runtime says otherwise, for it takes seconds to say so

    def acquire(self) -> None:
        """Waits until no snapshot lies in it."""
        self._in_use.acquire()

    def release(self) -> None:
        """Gives it back, from any thread."""
        self._in_use.release()

    def buffer(self, name: str, number: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """The memory that the shard of this name and number had the last time, if it is still the same."""
        buffer = self._buffers.get((name, number))
        if buffer is None or buffer.shape != shape or buffer.dtype != dtype:
            buffer = self._buffers[name, number] = np.empty(shape, dtype)
        return buffer

    def prepare(self, arrays: Mapping[str, jax.Array]) -> None:
        """Takes the memory of a snapshot of such arrays beforehand, so that the first does not wait for it.

        Pinned memory, through which pieces go, is taken at once, by a piece of each shape; the rest in a thread.
        """
        pieces = {}
        for name, array in arrays.items():
            for number, (_, data) in enumerate(_own_shards(array)):
                for piece in _pieces(data, self.buffer(name, number, data.shape, np.dtype(data.dtype))):
                    pieces[data.shape, data.dtype, piece.target.shape] = piece
        try:
            jax.block_until_ready([piece.begin(self) for piece in pieces.values()])
        except jax.errors.JaxRuntimeError as error:
            logger.warning("no pinned host memory was taken beforehand: %s", error)
        threading.Thread(target=self._touch, name="ponente-staging", daemon=True).start()

    def _touch(self) -> None:
        self.acquire()
        try:
            for buffer in self._buffers.values():
                buffer.fill(0)
        finally:
            self.release()

    def forget_all_but(self, names: Mapping[str, object]) -> None:
        """Frees what arrays had that are no longer there."""
        self._buffers = {key: buffer for key, buffer in self._buffers.items() if key[0] in names}


def take_snapshot(arrays: Mapping[str, jax.Array], staging: Staging) -> dict[str, HostArray]:
    """Copies all arrays to the host; when it returns, the devices' buffers may be donated or deleted."""
    staging.forget_all_but(arrays)
    records = {name: _record(name, array) for name, array in arrays.items()}
    taken: dict[str, HostArray] = {}
    pieces: list[_Piece] = []
    for name, given in arrays.items():
        array = jax.random.key_data(given) if records[name].key_impl else given
        shards = _own_shards(array)
        dtype = np.dtype(array.dtype)
        buffers = [staging.buffer(name, number, data.shape, dtype) for number, (_, data) in enumerate(shards)]
        for (_, data), buffer in zip(shards, buffers, strict=True):
            pieces += _pieces(data, buffer)
        taken[name] = HostArray(
            record=records[name],
            shape=array.shape,
            dtype=dtype,
            shard_shape=array.sharding.shard_shape(array.shape),
            shards=list(zip([index for index, _ in shards], buffers, strict=True)),
        )
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="snapshot") as threads:
        arriving: list[tuple[jax.Array, NDArray[Any]]] = []
        for window in [*_windows(pieces), []]:  # one is on its way while the one before is copied
            following = [(piece.begin(staging), piece.target) for piece in window]
            while arriving:
                data, target = arriving.pop()
                list(threads.map(lambda part: np.copyto(*part), _copy_parts(np.asarray(data), target)))
                del data  # its memory is for the next
            arriving = following
    return taken


def _own_shards(array: jax.Array) -> list[tuple[Index, jax.Array]]:
    """The shards of an array, without replicas."""
    array = jax.random.key_data(array) if jnp.issubdtype(array.dtype, jax.dtypes.prng_key) else array
    return [(shard.index, shard.data) for shard in array.addressable_shards if shard.replica_id == 0]


@dataclass(frozen=True)
class _Piece:
    """Some rows of a shard, and where they go."""

    data: jax.Array
    first: int
    target: NDArray[Any]

    def begin(self, staging: Staging) -> jax.Array:
        """Begins to move it to the host."""
        if self.target.shape == self.data.shape:
            return _begin_transfer(self.data, staging)
        return _begin_transfer(_cut(self.data, self.first, len(self.target)), staging)


@partial(jax.jit, static_argnums=2)
def _cut(data: jax.Array, first: int, count: int) -> jax.Array:
    cut: jax.Array = jax.lax.dynamic_slice_in_dim(data, first, count)
    return cut


def _pieces(data: jax.Array, buffer: NDArray[Any]) -> Iterator[_Piece]:
    """A shard in pieces of a window's size, so that little memory of the host has to be pinned."""
    if _is_on_host(data) or data.nbytes <= WINDOW_BYTES:
        yield _Piece(data, 0, buffer)
        return
    step = max(1, WINDOW_BYTES * len(data) // data.nbytes)
    for first in range(0, len(data), step):
        yield _Piece(data, first, buffer[first : first + step])


def _record(name: str, array: jax.Array) -> ArrayRecord:
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        impl = str(jax.random.key_impl(array))
        return ArrayRecord(shape=array.shape, dtype=str(array.dtype), key_impl=impl)
    if array.dtype.name not in _STORABLE:
        raise RefusedError(
            f"found {name} of type {array.dtype.name}; needed one of {', '.join(sorted(_STORABLE))}. Cast it before."
        )
    return ArrayRecord(shape=array.shape, dtype=array.dtype.name)


def _windows(pieces: list[_Piece]) -> Iterator[list[_Piece]]:
    """The pieces in groups that are moved together, of `WINDOW_BYTES` or of one piece."""
    window: list[_Piece] = []
    for piece in pieces:
        if window and sum(one.target.nbytes for one in window) + piece.target.nbytes > WINDOW_BYTES:
            yield window
            window = []
        window.append(piece)
    yield window


def _begin_transfer(data: jax.Array, staging: Staging) -> jax.Array:
    """Begins to move an array to the host; what lies there already stays as it is.

    Pinned memory takes transfers at the full speed of the bus, and the runtime keeps it for the next ones.
    """
    if _is_on_host(data):
        return data
    [device] = data.devices()
    if staging.has_pinned and _PINNED in {memory.kind for memory in device.addressable_memories()}:
        try:
            pinned: jax.Array = jax.device_put(data, data.sharding.with_memory_kind(_PINNED))
        except jax.errors.JaxRuntimeError as error:
            logger.warning("checkpoints are copied the slow way, without pinned host memory: %s", error)
            staging.has_pinned = False
        else:
            return pinned
    # An array keeps the host's copy of itself as long as it lives; this one is gone when we are done.
    fresh: jax.Array = jax.device_put(data, data.sharding)
    fresh.copy_to_host_async()
    return fresh


def _is_on_host(data: jax.Array) -> bool:
    [device] = data.devices()
    return device.platform == "cpu" or data.sharding.memory_kind == _PINNED


def _copy_parts(source: NDArray[Any], target: NDArray[Any]) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Pairs of target and source that together are the whole, each small enough for threads to share the work."""
    if not source.flags.c_contiguous or source.nbytes <= _COPY_BYTES:
        yield target, source
        return
    flat_source, flat_target = source.reshape(-1), target.reshape(-1)
    step = _COPY_BYTES // source.itemsize
    for start, stop in itertools.pairwise([*range(0, source.size, step), source.size]):
        yield flat_target[start:stop], flat_source[start:stop]
