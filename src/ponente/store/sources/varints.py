"""Protocol-buffer varints to integers, all of a buffer at once."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
_MAX_LENGTH = 10


def decode_varints(data: bytes) -> Integers:
    """The integers that packed varints stand for, as int64.

    Raises:
        ValueError: the last one is not whole, or one is longer than 64 bits can be.
    """
    raw = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(raw < 0x80)
    if not raw.size:
        return np.empty(0, np.int64)
    if not ends.size or ends[-1] != raw.size - 1:
        raise ValueError("the last number is cut off")
    starts = np.empty_like(ends)
    starts[0], starts[1:] = 0, ends[:-1] + 1
    lengths = ends - starts + 1
    longest = int(lengths.max())
    if longest > _MAX_LENGTH or (longest == _MAX_LENGTH and raw[ends[lengths == _MAX_LENGTH]].max() > 1):
        raise ValueError("a number is longer than 64 bits")
    bits = raw & 0x7F
    values = bits[starts].astype(np.uint64)
    for index in range(1, longest):
        which = np.flatnonzero(lengths > index)
        values[which] |= bits[starts[which] + index].astype(np.uint64) << np.uint64(7 * index)
    return values.view(np.int64)


def decode_many(buffers: Sequence[bytes]) -> list[Integers]:
    """`decode_varints` of each buffer, in one go; raises as that does if one is broken."""
    if not buffers:
        return []
    for buffer in buffers:
        if buffer and buffer[-1] >= 0x80:
            raise ValueError("the last number is cut off")
    joined = b"".join(buffers)
    values = decode_varints(joined)
    ends = np.flatnonzero(np.frombuffer(joined, np.uint8) < 0x80)
    bounds = np.searchsorted(ends, np.cumsum([len(buffer) for buffer in buffers]))
    return np.split(values, bounds[:-1])
