"""Writing a checkpoint: taken on the caller's thread, written in the background, published whole.

In: named JAX arrays and what to say of them. Out: a folder `step-N`, a zarr 3 group with one array a name, in plain
chunks with a crc32c each. Killed at any moment, a save leaves only a private folder; while it writes, host memory grows
by no more than the chunks under way.
"""

import datetime
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol

import jax
import tensorstore as ts

from ponente.config.errors import RefusedError
from ponente.store.checkpoint.chunks import chunk_pieces, chunk_shape
from ponente.store.checkpoint.record import (
    CheckpointError,
    CheckpointMetadata,
    encode_metadata,
    find_metadata,
    step_of,
)
from ponente.store.checkpoint.snapshot import HostArray, Staging, take_snapshot
from ponente.store.paths import absolute, join, protocol_of
from ponente.store.tensors import naming_failure, tensor_store
from ponente.store.volume import is_no_space, publishing_folder, volume_of
from ponente.store.zarr_group import GROUP_FILE

CHUNK_BYTES = 1 << 26
BYTES_UNDER_WAY = 1 << 28
_SYNCING_THREADS = 8
CODECS: tuple[dict[str, Any], ...] = (
    {"name": "bytes", "configuration": {"endian": "little"}},
    {"name": "crc32c"},
)
_NAME = re.compile(r"[A-Za-z0-9_\[][A-Za-z0-9_.\-\[\]]{0,199}")


class Writers(Protocol):
    """Processes that write a checkpoint together; a `Gang`, for one."""

    @property
    def index(self) -> int: ...

    def gather(self, name: str, value: Any = None) -> list[Any]:
        """What all gave under a name, once all have; raises where one of them is gone."""


class _OneWriter:
    index = 0

    def gather(self, name: str, value: Any = None) -> list[Any]:
        return [value]


class PendingSave:
    """A checkpoint on its way to disk."""

    def __init__(self, path: str, future: "Future[None]") -> None:
        self.path = path
        self._future = future

    def wait(self) -> None:
        """Returns when the checkpoint is whole; raises what kept it from becoming so."""
        self._future.result()

    def is_done(self) -> bool:
        """Whether it is whole or has failed, so that `wait` returns at once."""
        return self._future.done()


def begin_save(
    path: str,
    arrays: Mapping[str, jax.Array],
    metadata: Mapping[str, Any],
    *,
    is_temporary: bool = False,
    staging: Staging | None = None,
    when_whole: Callable[[], None] | None = None,
    writers: Writers | None = None,
) -> PendingSave:
    """Begins to save a checkpoint; when it returns, the caller may donate or delete the arrays.

    Args:
        path: `…/step-N`; a checkpoint that is there already stays, and the new one is dropped.
        metadata: JSON, to be found again as `read_metadata(path).about`.
        staging: host memory to use again; hand in the same one for every save of a run.
        when_whole: called in the background once the checkpoint can be seen.
        writers: processes that hold parts of the arrays, each of which calls this and writes its own; None: this one.
    """
    path = absolute(path)
    step = step_of(path)
    _check(path, step, arrays)
    staging = staging or Staging()
    staging.acquire()
    try:
        taken = take_snapshot(arrays, staging)
        described = CheckpointMetadata(
            step=step or 0,
            timestamp=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
            is_temporary=is_temporary,
            arrays={name: array.record for name, array in taken.items()},
            about=dict(metadata),
        )
        record = encode_metadata(described)
        executor = ThreadPoolExecutor(1, thread_name_prefix=f"checkpoint-{step}")
    except BaseException:
        staging.release()
        raise
    future = executor.submit(_write, path, taken, record, staging, when_whole, writers or _OneWriter())
    executor.shutdown(wait=False)  # the thread ends with its one task, for which the interpreter waits when it exits
    return PendingSave(path, future)


def _check(path: str, step: int | None, arrays: Mapping[str, jax.Array]) -> None:
    if step is None:
        raise RefusedError(f"found {path} as the place of a checkpoint; needed a name step-N. Use step_path().")
    wrong = [name for name in arrays if not _NAME.fullmatch(name) or name == GROUP_FILE]
    if wrong:
        raise RefusedError(
            f"found an array named {wrong[0]!r} for {path}; needed letters, digits and any of _ . - [ ], at most 200, "
            "for it names a folder. Rename it."
        )
    tensor_store(path)  # refuses what it cannot reach
    if volume_of(path).exists(path) and find_metadata(path) is None:
        raise RefusedError(
            f"found {path}, which is no checkpoint of ours; needed a free place. Move it away, or choose another "
            "trainer.checkpointer.base_path or trainer.id."
        )


def _write(
    path: str,
    taken: dict[str, HostArray],
    record: bytes,
    staging: Staging,
    when_whole: Callable[[], None] | None,
    writers: Writers,
) -> None:
    try:
        with _folder_of(path, writers) as private:
            _write_arrays(private, taken)
            writers.gather(f"{private} is written")  # no file comes or goes while folders are synced
            _sync(private, taken)
            writers.gather(f"{private} is synced")
            if writers.index == 0:
                volume_of(private).replace(join(private, GROUP_FILE), record)
        writers.gather(f"{path} is whole")
    except OSError as error:
        raise _failure(path, taken, error) from error
    finally:
        taken.clear()
        staging.release()
    if when_whole is not None:
        when_whole()


@contextmanager
def _folder_of(path: str, writers: Writers) -> Iterator[str]:
    """Where all writers write; the first of them publishes it."""
    if writers.index == 0:
        with publishing_folder(path, is_large=True) as private:
            writers.gather(f"the folder of {path}", private)
            yield private
    else:
        private = writers.gather(f"the folder of {path}")[0]
        if protocol_of(private) == "file" and not volume_of(private).is_folder(private):
            raise CheckpointError(
                f"found no {private} on this machine, where process 0 began a checkpoint; needed a folder that all "
                "processes see. Set trainer.checkpointer.base_path to one."
            )
        yield private


def _failure(path: str, taken: dict[str, HostArray], error: OSError) -> CheckpointError:
    size = sum(data.nbytes for array in taken.values() for _, data in array.shards)
    remedy = "Free some space" if is_no_space(error) else "Mend that"
    return CheckpointError(
        f"found that {path} cannot be written ({error.strerror or error}); needed room for {size / 1e9:.3g} GB there. "
        f"{remedy}, and run the same command again: it goes on from the newest whole checkpoint."
    )


def _write_arrays(folder: str, taken: dict[str, HostArray]) -> None:
    """Writes all arrays chunk by chunk, with a bounded number of bytes under way; none is when it ends, well or not."""
    context = ts.Context({"file_io_sync": False})  # all is synced when it is published
    under_way: deque[tuple[str, int, ts.Future[None]]] = deque()
    try:
        waiting = 0
        for name, array in taken.items():
            place = join(folder, name)
            with naming_failure(place):
                chunk = chunk_shape(array.shape, array.shard_shape, array.dtype.itemsize, CHUNK_BYTES)
                tensor = ts.open(_spec(place, array, chunk), create=True, open=True, context=context).result()
            for index, data in chunk_pieces(array, chunk):
                write = tensor[index].write(data, can_reference_source_data_indefinitely=True)
                under_way.append((place, data.nbytes, write.commit))
                waiting += data.nbytes
                while waiting > BYTES_UNDER_WAY:
                    waiting -= _finish(*under_way.popleft())
        while under_way:
            _finish(*under_way.popleft())
    finally:
        for _, _, write_left in under_way:  # after a failure: they would write into a folder that is being removed
            write_left.exception()


def _sync(folder: str, taken: dict[str, HostArray]) -> None:
    """Syncs all arrays at once: one by one, as publishing would, they wait for the disk in turn."""
    with ThreadPoolExecutor(_SYNCING_THREADS, thread_name_prefix="sync") as threads:
        list(threads.map(volume_of(folder).sync, [join(folder, name) for name in taken]))


def _finish(place: str, size: int, write: "ts.Future[None]") -> int:
    with naming_failure(place):
        write.result()
    return size


def _spec(place: str, array: HostArray, chunk: tuple[int, ...]) -> dict[str, Any]:
    return {
        "driver": "zarr3",
        "kvstore": tensor_store(place),
        "store_data_equal_to_fill_value": True,  # or a lost file would look like zeros
        "metadata": {
            "shape": array.shape,
            "data_type": array.dtype.name,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},  # no folders to sync
            "codecs": list(CODECS),
        },
    }
