"""The arrays of a cache's segments that are open, and the starts of rows that are in memory: as many as are of use.

In: segments of a ledger. Out: TensorStore arrays, checked against the ledger, and where their rows begin. Many are
opened at once where many are wanted; those not used for longest are let go.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence

import numpy as np
import tensorstore as ts
from numpy.typing import NDArray

from ponente.store.paths import join
from ponente.store.tensors import TensorError, begin_open_array, naming_failure
from ponente.store.token_cache.ledger import SegmentRecord
from ponente.store.token_cache.segment import OFFSETS, segment_folder, segment_path

_OPEN_ARRAYS = 4096
_ROW_STARTS = 16 << 20  # of a cache: 128 MB

Numbers = NDArray[np.int64]


class OpenSegments:
    """What of one cache is open. Several threads may use it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._context = ts.Context()
        self._lock = threading.RLock()
        self._arrays: OrderedDict[tuple[str, str], ts.TensorStore] = OrderedDict()
        self._folders: dict[str, str] = {}
        self._starts = _RowStarts()

    def place(self, segment: str, column: str) -> str:
        """Where a column of a segment lies."""
        if segment not in self._folders:
            self._folders[segment] = segment_folder(self._path, segment)
        return join(self._folders[segment], column)

    def column(self, segment: SegmentRecord, column: str) -> ts.TensorStore:
        """The open array of a column of a segment."""
        return self.columns([segment], column)[segment.name]

    def columns(self, segments: Iterable[SegmentRecord], column: str) -> dict[str, ts.TensorStore]:
        """The open arrays of a column, by the names of their segments."""
        wanted = {segment.name: segment for segment in segments}
        with self._lock:
            found = {name: self._arrays[name, column] for name in wanted if (name, column) in self._arrays}
            for name in found:
                self._arrays.move_to_end((name, column))
        opening = {
            name: begin_open_array(self.place(name, column), self._context) for name in wanted if name not in found
        }
        for name, future in opening.items():
            with naming_failure(self.place(name, column)):
                found[name] = future.result()
            self._check(wanted[name], column, found[name])
        with self._lock:
            self._arrays.update({(name, column): found[name] for name in opening})
            while len(self._arrays) > _OPEN_ARRAYS:
                self._arrays.popitem(last=False)
        return found

    def _check(self, segment: SegmentRecord, column: str, array: ts.TensorStore) -> None:
        needed = segment.rows + 1 if column == OFFSETS else segment.tokens
        if array.shape[0] != needed:
            raise TensorError(
                f"found {array.shape[0]} elements in {column} of {segment_path(self._path, segment.name)}; needed "
                f"{needed}, as the ledger says. Restore the folder from a copy, or remove the cache and build it again."
            )

    def row_starts(self, segments: Sequence[SegmentRecord]) -> tuple[Numbers, Numbers, Numbers]:
        """Where rows begin within segments: an array, and for each segment the first place in it and the one after."""
        with self._lock:
            self._starts.make_room_for(segments)
            missing = {segment.name: segment for segment in segments if segment.name not in self._starts.places}
            arrays = self.columns(missing.values(), OFFSETS)
            reading = {name: arrays[name][: segment.rows].read() for name, segment in missing.items()}
            for name, future in reading.items():
                with naming_failure(self.place(name, OFFSETS)):
                    self._starts.add(name, np.asarray(future.result()))
            places = np.array([self._starts.places[segment.name] for segment in segments], np.int64)
            return self._starts.flat, places[:, 0], places[:, 1]


class _RowStarts:
    """The starts of rows of many segments in one array; when they become too many, all are dropped."""

    def __init__(self) -> None:
        self.places: dict[str, tuple[int, int]] = {}
        self.flat = np.empty(1 << 16, np.int64)
        self._used = 0

    def make_room_for(self, segments: Sequence[SegmentRecord]) -> None:
        """Drops what is there, unless the segments that are missing fit beside it."""
        missing = sum(segment.rows for segment in segments if segment.name not in self.places)
        if missing and self._used + missing > _ROW_STARTS:
            self.places, self._used = {}, 0
            self.flat = np.empty(1 << 16, np.int64)  # a new one: readers of the old go on

    def add(self, name: str, starts: Numbers) -> None:
        """Takes in a segment."""
        end = self._used + len(starts)
        if end > len(self.flat):
            larger = np.empty(max(2 * len(self.flat), end), np.int64)
            larger[: self._used] = self.flat[: self._used]
            self.flat = larger
        self.flat[self._used : end] = starts
        self.places[name] = (self._used, end)
        self._used = end
