"""How an array is cut into chunks: one file each, within one shard, of a bounded size.

In: the shapes of an array and of its shards. Out: the shape of a chunk, and the parts of the array that make one each.
"""

import itertools
import math
from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray

from ponente.store.checkpoint.snapshot import HostArray, Index


def chunk_shape(
    shape: tuple[int, ...], shard_shape: tuple[int, ...], itemsize: int, most_bytes: int
) -> tuple[int, ...]:
    """The chunks of an array: each within one shard, so that no two writers share a file, and of at most `most_bytes`.

    An axis over which the array is sharded is cut by divisors alone; where there is none that fits, a chunk is larger.
    Other axes are cut evenly, because the last chunk of an axis is stored as large as the others.
    """
    chunk = [max(1, size) for size in shard_shape]
    for axis, size in enumerate(chunk):
        parts = math.ceil(math.prod(chunk) * itemsize / most_bytes)
        if parts <= 1:
            break
        largest = max(1, size // parts)
        if shard_shape[axis] < shape[axis]:
            chunk[axis] = max(part for part in range(1, largest + 1) if size % part == 0)
        else:
            chunk[axis] = math.ceil(size / math.ceil(size / largest))
    return tuple(chunk)


def chunk_pieces(array: HostArray, chunk: tuple[int, ...]) -> Iterator[tuple[Index, NDArray[Any]]]:
    """The parts of an array that make one chunk each, with their places in it."""
    for index, data in array.shards:
        starts = [part.indices(size)[0] for part, size in zip(index, array.shape, strict=True)]
        corners = itertools.product(*(range(0, size, step) for size, step in zip(data.shape, chunk, strict=True)))
        for corner in corners:
            local = tuple(slice(at, at + step) for at, step in zip(corner, chunk, strict=True))
            piece = data[local]
            places = zip(starts, corner, piece.shape, strict=True)
            yield tuple(slice(start + at, start + at + size) for start, at, size in places), piece
