"""Many spans of tokens at once: which segments they lie in, and reads of them, neighbours in one, all at the same time.

In: spans in the numbering of all tokens of a cache. Out: rows of a matrix, each with one span. Python does one small
thing for each read that goes to storage and one for each row that is laid out, and nothing for each token.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import tensorstore as ts
from numpy.typing import NDArray

from ponente.store.tensors import CHUNK_ELEMENTS, naming_failure
from ponente.store.token_cache.ledger import SegmentRecord
from ponente.store.token_cache.open_segments import OpenSegments

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Pieces:
    """Spans cut at the borders of segments, sorted by where they lie. Places are those within the segment."""

    span: Numbers  # which span each is of
    at: Numbers  # where in that span it begins
    segment: Numbers
    start: Numbers
    stop: Numbers

    def runs(self, is_new: NDArray[np.bool_]) -> list[tuple[int, int]]:
        """The stretches of pieces from each that is new up to the next."""
        edges = [0, *(np.flatnonzero(is_new) + 1).tolist(), len(self.span)]
        return list(pairwise(edges)) if len(self.span) else []


def pieces_of(token_ends: Numbers, starts: Numbers, stops: Numbers) -> Pieces:
    """The pieces of spans; `token_ends` says where each segment ends among all tokens."""
    first = np.searchsorted(token_ends, starts, side="right")
    last = np.searchsorted(token_ends, stops, side="left")
    counts = np.where(stops > starts, last - first + 1, 0)
    span = np.repeat(np.arange(len(starts)), counts)
    segment = ragged_arange(first, counts)
    base = np.concatenate([np.zeros(1, np.int64), token_ends])[segment]
    start = np.maximum(starts[span], base)
    stop = np.minimum(stops[span], token_ends[segment])
    order = np.argsort(start, kind="stable")
    order = order[stop[order] > start[order]]  # an empty segment has no part of a span
    span, segment, base, start, stop = span[order], segment[order], base[order], start[order], stop[order]
    return Pieces(span, start - starts[span], segment, start - base, stop - base)


@dataclass(frozen=True)
class SpanRead:
    """Reads that are under way, each of a stretch of pieces."""

    place: Callable[[str], str]  # of a segment's column, for errors
    pieces: Pieces
    firsts: Numbers  # where in its read each piece begins
    reads: list[tuple["ts.Future[NDArray[np.generic]]", str, int, int]]  # of which segment, and of which pieces

    def into(self, out: NDArray[np.generic], rows: Numbers) -> None:
        """Waits, and writes span i to the beginning of `out[rows[i]]`; what lies behind it stays."""
        length = self.pieces.stop - self.pieces.start
        row, at, end_at = (part.tolist() for part in (rows[self.pieces.span], self.pieces.at, self.pieces.at + length))
        first, last = self.firsts.tolist(), (self.firsts + length).tolist()
        for future, segment, begin, end in self.reads:
            try:
                read = future.result()
            except ValueError as error:
                with naming_failure(self.place(segment)):
                    raise error
            for piece in range(begin, end):
                out[row[piece], at[piece] : end_at[piece]] = read[first[piece] : last[piece]]


def begin_read(arrays: OpenSegments, segments: Sequence[SegmentRecord], pieces: Pieces, column: str) -> SpanRead:
    """Begins to read a column; pieces less than a chunk apart share a read."""
    opened = arrays.columns([segments[number] for number in np.unique(pieces.segment)], column)
    reach = _reach(pieces)
    is_new = (pieces.start[1:] > reach[:-1] + CHUNK_ELEMENTS) | (pieces.segment[1:] != pieces.segment[:-1])
    runs = pieces.runs(is_new)
    firsts = np.array([begin for begin, _ in runs], np.int64)
    lows, highs = pieces.start[firsts].tolist(), reach[[end - 1 for _, end in runs]].tolist()
    names = [segments[number].name for number in pieces.segment[firsts].tolist()]
    reads = [
        (opened[name][low:high].read(), name, begin, end)
        for (begin, end), name, low, high in zip(runs, names, lows, highs, strict=True)
    ]
    within = pieces.start - np.repeat(pieces.start[firsts], np.diff(np.append(firsts, len(pieces.span))))
    return SpanRead(lambda segment: arrays.place(segment, column), pieces, within, reads)


def _reach(pieces: Pieces) -> Numbers:
    """How far the pieces of the same segment up to each one go."""
    far = np.int64(1) << 40  # a segment is shorter
    reached: Numbers = np.maximum.accumulate(pieces.segment * far + pieces.stop) - pieces.segment * far
    return reached


def ragged_arange(firsts: Numbers, counts: Numbers) -> Numbers:
    """first, first + 1, … of each, so many: `ragged_arange([5, 9], [2, 1])` is 5, 6, 9."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    shifts: Numbers = np.repeat(firsts - (ends - counts), counts)
    return np.arange(total) + shifts


def bisect_left(values: Numbers, low: Numbers, high: Numbers, wanted: Numbers) -> Numbers:
    """For each number wanted, the first place from `low` to `high` of `values`, sorted there, that is not below it."""
    while (low < high).any():
        middle = (low + high) >> 1
        is_below = (low < high) & (values[np.minimum(middle, len(values) - 1)] < wanted)
        low, high = np.where(is_below, middle + 1, low), np.where(is_below, high, middle)
    return low
