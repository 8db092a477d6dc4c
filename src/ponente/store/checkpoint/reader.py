"""Reading a checkpoint: what was asked for, straight to the devices that it is for.

In: a checkpoint's folder and, by name, the shape, type and sharding of each array that is wanted. Out: JAX arrays. All
that does not fit is told before any data is read; each part of an array is read once, however many devices want it.
"""

import logging
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
import numpy as np
import tensorstore as ts

from ponente.store.checkpoint.record import ArrayRecord, CheckpointError, CheckpointMetadata, read_metadata
from ponente.store.paths import absolute, join
from ponente.store.tensors import TensorError, begin_open_array, naming_failure
from ponente.store.volume import volume_of

BYTES_UNDER_WAY = 1 << 29
_CACHE_BYTES = 1 << 28  # of chunks that several devices want parts of
_LISTED = 4

logger = logging.getLogger(__name__)


class Target(Protocol):
    """What an array is to be: a `jax.ShapeDtypeStruct`, or an array like it."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> Any: ...

    @property
    def sharding(self) -> Any: ...  # jax.sharding.Sharding, or None for the default device


def load(
    path: str, targets: Mapping[str, Target], *, allow_missing: bool = False, every: str | None = None
) -> dict[str, jax.Array]:
    """Reads arrays of a checkpoint.

    Args:
        targets: the arrays wanted; others that the checkpoint has are left alone.
        allow_missing: leaves out, with a warning, what the checkpoint does not have.
        every: how names begin of which all that the checkpoint has are to be among the targets, unless that is allowed.

    Example: `load(path, {"step": jax.ShapeDtypeStruct((), jnp.int32)})`
    """
    path = absolute(path)
    metadata = read_metadata(path)
    missing, placeless = _check(path, metadata, targets, allow_missing=allow_missing, every=every)
    if missing:
        logger.warning("%s has no %s: left as they are", path, _listed(missing))
    if placeless:
        logger.warning("%s has %s, for which there is no place: dropped", path, _listed(placeless))
    wanted = {name: target for name, target in targets.items() if name not in missing}
    try:
        return _read(path, metadata, wanted)
    except TensorError as error:
        raise CheckpointError(
            f"found {path} damaged: {error.__cause__ or error}; needed all of its chunks with the checksums that they "
            f"were written with. Restore it from a copy, or remove {path} to go on from the checkpoint before it."
        ) from error


def _check(
    path: str, metadata: CheckpointMetadata, targets: Mapping[str, Target], *, allow_missing: bool, every: str | None
) -> tuple[list[str], list[str]]:
    """The targets that the checkpoint lacks, and what has no place in them; an error about all that does not fit."""
    there = metadata.arrays
    missing = [name for name in targets if name not in there]
    unasked = [name for name in there if name not in targets and name.startswith(every or "")]
    placeless = [] if every is None else unasked
    other = [
        f"{name} ({there[name]} there, {_wanted(target)} wanted)"
        for name, target in targets.items()
        if name in there and (there[name].shape, there[name].dtype) != (tuple(target.shape), str(target.dtype))
    ]
    if not other and (allow_missing or not (missing or placeless)):
        return missing, placeless
    found = []
    if missing:
        beside = f"; it has, unasked, {_listed(unasked)}" if unasked else ""
        found.append(f"without {_listed(missing)}{beside}")
    if other:
        found.append(f"with another shape or type of {_listed(other)}")
    if placeless and not missing:
        found.append(f"with {_listed(placeless)}, for which there is no place")
    fresh = "" if other else ", or trainer.allow_partial_checkpoint: true to take what fits and leave the rest"
    raise CheckpointError(
        f"found {path} {', and '.join(found)}; needed every array as this configuration makes it. "
        f"Use the configuration that wrote the checkpoint{fresh}. To begin anew where this run has written it, give "
        "another trainer.id."
    )


def _wanted(target: Target) -> ArrayRecord:
    return ArrayRecord(shape=tuple(target.shape), dtype=str(target.dtype))


def _listed(names: list[str]) -> str:
    rest = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {rest} more" if rest > 0 else "")


@dataclass(kw_only=True)
class _Piece:
    """A part of an array and the devices that want it."""

    name: str
    index: tuple[slice, ...]
    places: list[jax.sharding.SingleDeviceSharding | None]  # None: the default device
    nbytes: int


@dataclass(kw_only=True)
class _Unfinished:
    """An array of which some parts are on their devices."""

    shape: tuple[int, ...]
    sharding: Any
    left: int
    parts: list[jax.Array] = field(default_factory=list)

    def result(self) -> jax.Array:
        if self.sharding is None:
            return self.parts[0]
        return jax.make_array_from_single_device_arrays(self.shape, self.sharding, self.parts)


def _read(path: str, metadata: CheckpointMetadata, targets: Mapping[str, Target]) -> dict[str, jax.Array]:
    folder = volume_of(path).published_folder(path) or path
    is_sharded = any(target.sharding is not None and target.sharding.num_devices > 1 for target in targets.values())
    context = ts.Context({"cache_pool": {"total_bytes_limit": _CACHE_BYTES if is_sharded else 0}})
    opening = {name: begin_open_array(join(folder, name), context) for name in targets}
    stores = {name: _opened(join(folder, name), metadata.arrays[name], opening.pop(name)) for name in targets}
    unfinished: dict[str, _Unfinished] = {}
    done: dict[str, jax.Array] = {}
    under_way: deque[tuple[_Piece, Any]] = deque()
    waiting = 0

    def finish_one() -> int:
        piece, reading = under_way.popleft()
        with naming_failure(join(folder, piece.name)):
            data = reading.result()
        array = unfinished[piece.name]
        array.parts += [jax.device_put(data, place) for place in piece.places]
        array.left -= 1
        if not array.left:
            whole = unfinished.pop(piece.name).result().block_until_ready()  # then its host memory is free
            impl = metadata.arrays[piece.name].key_impl
            done[piece.name] = jax.random.wrap_key_data(whole, impl=impl) if impl else whole
        return piece.nbytes

    for name, target in targets.items():
        store = stores.pop(name)
        pieces = list(_pieces(name, store, target.sharding))
        unfinished[name] = _Unfinished(shape=store.shape, sharding=target.sharding, left=len(pieces))
        for piece in pieces:
            under_way.append((piece, store[piece.index].read(order="C")))
            waiting += piece.nbytes
            while waiting > BYTES_UNDER_WAY:
                waiting -= finish_one()
    while under_way:
        finish_one()
    return {name: done[name] for name in targets}


def _opened(place: str, record: ArrayRecord, opening: Any) -> Any:
    with naming_failure(place):
        store = opening.result()
        name, rank = store.dtype.name, len(record.shape)
        agrees = store.shape[:rank] == record.shape and (record.key_impl or (name, store.rank) == (record.dtype, rank))
        if not agrees:
            raise ValueError(f"{place} says that it is {name}{list(store.shape)}, the checkpoint's record {record}")
    return store


def _pieces(name: str, store: Any, sharding: Any) -> Iterator[_Piece]:
    """The different parts of an array that the devices of this process want."""
    itemsize = store.dtype.numpy_dtype.itemsize
    if sharding is None:
        whole = tuple(slice(0, size) for size in store.shape)
        yield _Piece(name=name, index=whole, places=[None], nbytes=int(np.prod(store.shape)) * itemsize)
        return
    by_bounds: dict[tuple[tuple[int, int], ...], list[jax.sharding.SingleDeviceSharding | None]] = {}
    for device, index in sharding.addressable_devices_indices_map(store.shape).items():
        bounds = tuple(part.indices(size)[:2] for part, size in zip(index, store.shape, strict=True))
        place = jax.sharding.SingleDeviceSharding(device, memory_kind=sharding.memory_kind)
        by_bounds.setdefault(bounds, []).append(place)
    for bounds, places in by_bounds.items():
        index = tuple(slice(start, stop) for start, stop in bounds)
        size = int(np.prod([stop - start for start, stop in bounds]))
        yield _Piece(name=name, index=index, places=places, nbytes=size * itemsize * len(places))
