"""Reading many spans of tokens at once: neighbours in one read, all reads under way together.

In: spans in the numbering of all tokens of a cache. Out: rows of a matrix, each with one span. One Python call is made
for each read that goes to storage and one for each row that is laid out; nothing is done token by token.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorstore as ts
from numpy.typing import NDArray

from ponente.store.tensors import CHUNK_ELEMENTS, naming_failure
from ponente.store.token_cache.ledger import SegmentRecord
from ponente.store.token_cache.open_segments import OpenSegments


@dataclass(frozen=True)
class _Piece:
    """A part of one span as it lies in what was read: `out[row, at:at + length] = read[begin:begin + length]`."""

    row: int
    at: int
    begin: int
    length: int


@dataclass(frozen=True)
class SpanRead:
    """Reads that are under way."""

    place: str
    reads: list[tuple["ts.Future[NDArray[np.generic]]", list[_Piece]]]

    def into(self, out: NDArray[np.generic]) -> None:
        """Waits, and writes span i to the beginning of `out[i]`; what lies behind it stays."""
        for future, pieces in self.reads:
            with naming_failure(self.place):
                read = future.result()
            for piece in pieces:
                out[piece.row, piece.at : piece.at + piece.length] = read[piece.begin : piece.begin + piece.length]


def begin_read(
    arrays: OpenSegments,
    segments: Sequence[SegmentRecord],
    token_ends: NDArray[np.int64],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    column: str,
) -> SpanRead:
    """Begins to read spans; `token_ends` says where each segment ends among all tokens."""
    first = np.searchsorted(token_ends, starts, side="right")
    last = np.searchsorted(token_ends, stops, side="left")
    counts = np.where(stops > starts, last - first + 1, 0)
    row = np.repeat(np.arange(len(starts)), counts)  # a piece for each segment that a span touches
    segment = ragged_arange(first, counts)
    segment_start = np.concatenate([np.zeros(1, np.int64), token_ends])[segment]
    start = np.maximum(starts[row], segment_start)
    stop = np.minimum(stops[row], token_ends[segment])
    order = np.argsort(start, kind="stable")
    group = _groups(start[order], stop[order], segment[order])
    opened = arrays.columns([segments[number] for number in np.unique(segment)], column)
    reads = []
    for members in np.split(order, np.flatnonzero(np.diff(group)) + 1) if len(order) else []:
        number = int(segment[members[0]])
        base = int(segment_start[members[0]])
        low, high = int(start[members[0]]), int(stop[members].max())
        future = opened[segments[number].name][low - base : high - base].read()
        columns = (row[members], start[members] - starts[row[members]], start[members] - low, (stop - start)[members])
        reads.append((future, [_Piece(*one) for one in zip(*(part.tolist() for part in columns), strict=True)]))
    return SpanRead(column, reads)


def _groups(start: NDArray[np.int64], stop: NDArray[np.int64], segment: NDArray[np.int64]) -> NDArray[np.int64]:
    """Numbers of the reads that sorted spans share: those of one segment less than a chunk apart."""
    if not len(start):
        return np.empty(0, np.int64)
    reach = np.maximum.accumulate(stop)
    is_new = (start[1:] > reach[:-1] + CHUNK_ELEMENTS) | (segment[1:] != segment[:-1])
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(is_new)])


def ragged_arange(firsts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """first, first + 1, … of each, so many: `ragged_arange([5, 9], [2, 1])` is 5, 6, 9."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    shifts: NDArray[np.int64] = np.repeat(firsts - (ends - counts), counts)
    return np.arange(total) + shifts
