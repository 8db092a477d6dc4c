"""Reading a token cache: any span of tokens, any row, while segments are opened only when they are needed.

In: a folder that `tokens.build` made or is still making. Out: NumPy arrays. All rows of a cache stand in one order and
all tokens in one line; segments are found by bisection, so opening costs one small file and a read one or two
segments, however many there are. A cache that is being built shows the rows that are published so far.
"""

import bisect
import hashlib
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ponente.store.paths import absolute, join
from ponente.store.tensors import naming_failure
from ponente.store.token_cache.ledger import (
    LEDGER,
    CacheError,
    CacheLedger,
    CachePlan,
    SegmentRecord,
    TokenizerRecord,
    read_ledger,
    read_plan,
)
from ponente.store.token_cache.open_segments import OpenSegments
from ponente.store.token_cache.segment import OFFSETS, SegmentNote, published_segments, read_note
from ponente.store.token_cache.spans import Pieces, SpanRead, begin_read, bisect_left, pieces_of, ragged_arange
from ponente.store.volume import volume_of

INPUT_IDS = "input_ids"


@dataclass(frozen=True)
class _Known:
    """What is known of a cache's segments, replaced as a whole when more of them come."""

    segments: list[SegmentRecord]
    row_ends: list[int]
    token_ends: list[int]
    token_ends_array: NDArray[np.int64]
    is_finished: bool

    @classmethod
    def of(cls, segments: list[SegmentRecord], *, is_finished: bool) -> "_Known":
        row_ends = list(accumulate(segment.rows for segment in segments))
        token_ends = list(accumulate(segment.tokens for segment in segments))
        return cls(segments, row_ends, token_ends, np.array(token_ends, np.int64), is_finished)

    @property
    def rows(self) -> int:
        return self.row_ends[-1] if self.row_ends else 0

    @property
    def tokens(self) -> int:
        return self.token_ends[-1] if self.token_ends else 0


class TokenCache:
    """A token cache, finished (`open_cache`) or growing (`open_growing_cache`).

    Example:
        cache = open_cache("cache/train")
        cache.read(0, 2048)          # the first 2,048 ids
        cache.row(7)["input_ids"]    # the eighth document
    """

    def __init__(self, path: str, about: CachePlan | CacheLedger, segments: list[SegmentRecord]) -> None:
        self.path = path
        self.tokenizer: TokenizerRecord = about.tokenizer
        self.row_format = about.row_format
        self.columns = about.columns
        self._unit_count = 0 if isinstance(about, CacheLedger) else len(about.units)
        self._notes: dict[str, SegmentNote] = {}
        self._open = OpenSegments(path)
        self._known = _Known.of(segments, is_finished=isinstance(about, CacheLedger))

    @property
    def is_finished(self) -> bool:
        """Whether no more rows will come."""
        return self._known.is_finished

    @property
    def rows(self) -> int:
        """How many rows (documents) can be read."""
        return self._known.rows

    @property
    def tokens(self) -> int:
        """How many tokens can be read."""
        return self._known.tokens

    @cached_property
    def digest(self) -> str:
        """The sha256 of a finished cache's ledger."""
        return hashlib.sha256(volume_of(self.path).read(join(self.path, LEDGER))).hexdigest()

    def refresh(self) -> None:
        """Takes in what a build has published since; nothing changes for rows that were there."""
        if self.is_finished:
            return
        ledger = read_ledger(self.path)
        if ledger is not None:
            self._known = _Known.of(ledger.segments, is_finished=True)
        else:
            self._known = _Known.of(_published_prefix(self.path, self._unit_count, self._notes), is_finished=False)

    def read(self, start: int, stop: int, column: str = INPUT_IDS) -> NDArray[Any]:
        """The tokens from number `start` to `stop` of all, whatever rows they belong to."""
        if column not in self.columns:
            raise KeyError(f"found column {column!r} asked of {self.path}, which has {', '.join(self.columns)}")
        self._check(start, stop, self.tokens, "tokens")
        pieces, known = [], self._known
        position = bisect.bisect_right(known.token_ends, start)
        while start < stop:
            first = known.token_ends[position] - known.segments[position].tokens
            end = min(stop, known.token_ends[position])
            pieces.append(self._open.column(known.segments[position], column)[start - first : end - first].read())
            start, position = end, position + 1
        with naming_failure(self.path):
            arrays = [np.asarray(piece.result()) for piece in pieces]
        return _joined(arrays, self.columns[column])

    def row_offsets(self, start: int, stop: int) -> NDArray[np.int64]:
        """Where rows `start` to `stop` begin among all tokens, and, last, where the last of them ends."""
        self._check(start, stop, self.rows, "rows")
        pieces: list[NDArray[np.int64]] = []
        known = self._known
        position = bisect.bisect_right(known.row_ends, start)
        while start < stop:
            first_row = known.row_ends[position] - known.segments[position].rows
            first_token = known.token_ends[position] - known.segments[position].tokens
            end = min(stop, known.row_ends[position])
            with naming_failure(self.path):
                offsets = self._open.column(known.segments[position], OFFSETS)
                found = offsets[start - first_row : end - first_row + 1].read().result()
            pieces.append(np.asarray(found[1:] if pieces else found) + first_token)
            start, position = end, position + 1
        return _joined(pieces, "int64")

    def pieces(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> Pieces:
        """Spans of tokens, which may overlap, as `begin_read` and `document_starts` want them."""
        if len(starts):
            self._check(int(starts.min()), int(stops.max()), self.tokens, "tokens")
        return pieces_of(self._known.token_ends_array, starts, stops)

    def begin_read(self, pieces: Pieces, column: str = INPUT_IDS) -> SpanRead:
        """Begins to read many spans; `.into(array, rows)` waits for them and lays them out."""
        return begin_read(self._open, self._known.segments, pieces, column)

    def document_starts(self, pieces: Pieces) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The rows of the cache that begin within spans, after their first token: (number of the span, place in it)."""
        if not len(pieces.span):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        touched, which = np.unique(pieces.segment, return_inverse=True)
        starts, firsts, lasts = self._open.row_starts([self._known.segments[number] for number in touched.tolist()])
        low = bisect_left(starts, firsts[which], lasts[which], pieces.start + (pieces.at == 0))
        counts = bisect_left(starts, low, lasts[which], pieces.stop) - low
        shifts = np.repeat(pieces.at - pieces.start, counts)
        return np.repeat(pieces.span, counts), starts[ragged_arange(low, counts)] + shifts

    def row(self, index: int) -> dict[str, NDArray[Any]]:
        """All columns of one row."""
        start, stop = (int(end) for end in self.row_offsets(index, index + 1))
        return {column: self.read(start, stop, column) for column in self.columns}

    def _check(self, start: int, stop: int, total: int, what: str) -> None:
        if not 0 <= start <= stop <= total:
            state = "" if self.is_finished else " so far"
            raise IndexError(f"found {what} {start} to {stop} asked of {self.path}, which has {total}{state}")


def _joined(arrays: list[NDArray[Any]], dtype: str) -> NDArray[Any]:
    if len(arrays) == 1:
        return arrays[0]
    return np.concatenate(arrays) if arrays else np.empty(0, dtype)


def open_cache(path: str) -> TokenCache:
    """Opens a finished cache.

    Raises:
        CacheError: there is none, or it is not finished.
    """
    whole = absolute(path)
    ledger = read_ledger(whole)
    if ledger is not None:
        return TokenCache(whole, ledger, ledger.segments)
    if read_plan(whole) is None:
        raise CacheError(
            f"found no token cache at {whole}; needed a finished one. "
            "Build it: ponente cache-dataset --config_path CONFIG.yaml"
        )
    raise CacheError(
        f"found the token cache {whole} unfinished; needed a finished one. "
        "Finish it (what is done stays): ponente cache-dataset --config_path CONFIG.yaml"
    )


def open_growing_cache(path: str) -> TokenCache:
    """Opens a cache that may still be in the making, with the rows it has so far; `refresh` takes in more."""
    whole = absolute(path)
    ledger = read_ledger(whole)
    if ledger is not None:
        return TokenCache(whole, ledger, ledger.segments)
    plan = read_plan(whole)
    if plan is None:
        raise CacheError(
            f"found no token cache at {whole}; needed one that is built or being built. "
            "Begin it: ponente cache-dataset --config_path CONFIG.yaml"
        )
    cache = TokenCache(whole, plan, [])
    cache.refresh()
    return cache


def _published_prefix(cache: str, unit_count: int, notes: dict[str, SegmentNote]) -> list[SegmentRecord]:
    """The segments that are there without a gap, from the first unit on; `notes` remembers what was read of them."""
    published = published_segments(cache)
    segments: list[SegmentRecord] = []
    unit, position = 0, 0
    while unit < unit_count and (name := published.get((unit, position))):
        if name not in notes:
            notes[name] = read_note(cache, name)
        note = notes[name]
        segments.append(SegmentRecord(name, note.rows, note.tokens))
        unit, position = (unit + 1, 0) if note.is_last else (unit, position + 1)
    return segments
